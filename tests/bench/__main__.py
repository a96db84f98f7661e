"""Run every benchmark on the real stack, print a table, write `build/bench.json`.

The exit code is 0 when the benchmarks ran: a missed target is shown, not hidden, and is for people to judge.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench import webhook
from tests.bench.measurement import Measurement, table, write
from tests.stack.controlplane import ControlPlane
from tests.stack.kube import Admin
from tests.stack.pipeline import ROOT
from tests.stack.tools import StackBuildError, StackUnavailableError

OUTPUT = ROOT / "build/bench.json"
BENCHMARKS = {"webhook request → rule acknowledged": webhook.run}


def main() -> int:
    """Run them all."""
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="neuron-bench-") as folder:
        print("starting the control plane …", flush=True)
        try:
            control_plane = ControlPlane(Path(folder) / "control-plane")
        except (StackBuildError, StackUnavailableError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        try:
            control_plane.start()
            for name, run in BENCHMARKS.items():
                print(f"measuring: {name} …", flush=True)
                directory = Path(folder) / run.__module__
                directory.mkdir()
                measurements += run(control_plane, Admin(control_plane), directory)
        finally:
            control_plane.stop()
    write(measurements, OUTPUT)
    print(f"\n{table(measurements)}\n\nwritten to {OUTPUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
