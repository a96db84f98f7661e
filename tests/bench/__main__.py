"""Run benchmarks on the real stack, print a table, write `build/bench.json`.

Each has a control plane of its own, so that none is slowed by what another has left. The exit code is 0 when they ran:
a missed target is shown, not hidden, and is for people to judge.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from tests.bench import burst, repeats, scale, webhook
from tests.bench.measurement import Measurement, table, write
from tests.stack.controlplane import ControlPlane
from tests.stack.pipeline import ROOT
from tests.stack.tools import StackBuildError, StackUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OUTPUT = ROOT / "build/bench.json"


class _Run(Protocol):
    def __call__(self, control_plane: ControlPlane, directory: Path, size: Any) -> list[Measurement]: ...


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured, in words, and about how long that takes; `small` only shows that it runs."""

    what: str
    takes: str
    run: _Run
    full: object
    small: object


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "webhook": Benchmark("webhook request → rule acknowledged", "10 s", webhook.run, webhook.FULL, webhook.SMALL),
        "burst": Benchmark("1,000 faults at once", "2 minutes", burst.run, burst.FULL, burst.SMALL),
        "repeats": Benchmark("a day of repeats", "3 minutes", repeats.run, repeats.FULL, repeats.SMALL),
        "scale": Benchmark("10,000 nodes, 160,000 devices", "6 minutes", scale.run, scale.FULL, scale.SMALL),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run those that are named, or all."""
    asked = _arguments(argv)
    measurements: list[Measurement] = []
    try:
        for name in asked.names or BENCHMARKS:
            measurements += measure(BENCHMARKS[name], small=asked.small)
    except (StackBuildError, StackUnavailableError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    write(measurements, OUTPUT)
    print(f"\n{table(measurements)}\n\nwritten to {OUTPUT.relative_to(ROOT)}")
    return 0


def measure(benchmark: Benchmark, *, small: bool) -> list[Measurement]:
    """Run one on a control plane of its own. Small figures are judged by nobody."""
    print(f"measuring: {benchmark.what} (about {'10 s' if small else benchmark.takes}) …", flush=True)
    with tempfile.TemporaryDirectory(prefix="neuron-bench-") as folder:
        directory = Path(folder) / "run"
        directory.mkdir()
        control_plane = ControlPlane(Path(folder) / "control-plane")
        control_plane.start()
        try:
            taken = benchmark.run(control_plane, directory, benchmark.small if small else benchmark.full)
        finally:
            control_plane.stop()
    return [replace(one, target=None) for one in taken] if small else taken


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without any")
    parser.add_argument("--small", action="store_true", help="small numbers, to see that it runs; nothing is judged")
    asked = parser.parse_args(argv)
    if unknown := sorted(set(asked.names) - set(BENCHMARKS)):
        parser.error(f"unknown: {', '.join(unknown)}; expected some of {', '.join(BENCHMARKS)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
