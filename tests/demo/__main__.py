"""`make demo` and `make demo-cluster`: get the parts, start them, tell the story, clean up.

The exit code is 0 only if everything the story tells has happened. `KEEP=1` leaves all of it running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.demo.narrator import Narrator, StoryError
from tests.demo.story import Story
from tests.stack.binaries import locate, locate_for_demo
from tests.stack.controlplane import COMPONENTS, ControlPlane
from tests.stack.kube import Admin
from tests.stack.pipeline import Pipeline
from tests.stack.tools import StackBuildError, StackUnavailableError

NODE = "ip-10-1-1-200.us-west-2.compute.internal"


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="A fault, from driver file to taint and back.")
    parser.add_argument("--cluster", action="store_true", help="on a real control plane, with the eviction of a pod")
    arguments = parser.parse_args()
    try:
        return _run(cluster=arguments.cluster, keep=bool(os.environ.get("KEEP")))
    except (StackUnavailableError, StackBuildError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 130


def _run(*, cluster: bool, keep: bool) -> int:
    narrator = Narrator()
    narrator.headline("0. Starting: all parts are real, but for the files of a simulated Neuron driver")
    with ExitStack() as parts:
        directory = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="neuron-demo-")))
        _get(narrator, cluster=cluster)
        control_plane, admin = _control_plane(parts, narrator, directory) if cluster else (None, None)
        pipeline = Pipeline(directory, node=NODE, control_plane=control_plane, find=locate_for_demo)
        parts.enter_context(pipeline)
        for who, address in _addresses(pipeline, control_plane).items():
            narrator.say(who, address)
        try:
            Story(pipeline, narrator, admin).tell()
        except StoryError as error:
            _failed(error, pipeline)
            return 1
        narrator.headline("Everything above happened." + ("" if keep else " KEEP=1 leaves it running."))
        if keep:
            _keep(pipeline, control_plane)
    return 0


def _get(narrator: Narrator, *, cluster: bool) -> None:
    for name in ("prometheus", "alertmanager"):
        narrator.say(name, f"program {locate_for_demo(name)}")
    for name in COMPONENTS if cluster else ():
        narrator.say("kubernetes", f"program {locate(name)}")


def _control_plane(parts: ExitStack, narrator: Narrator, directory: Path) -> tuple[ControlPlane, Admin]:
    control_plane = ControlPlane(directory / "control-plane")
    parts.callback(control_plane.stop)
    control_plane.start()
    admin = Admin(control_plane)
    admin.node(NODE)
    narrator.say("kubernetes", f"{admin.version()}, node {NODE}, a ResourceSlice with 16 devices")
    return control_plane, admin


def _addresses(pipeline: Pipeline, control_plane: ControlPlane | None) -> dict[str, str]:
    addresses = {
        "exporter": f"{pipeline.exporter.url}/metrics",
        "prometheus": pipeline.prometheus.url,
        "alertmanager": pipeline.alertmanager.url,
        "remediator": f"{pipeline.remediator.url}/metrics",
        "driver": f"(simulated) {pipeline.driver.root}",
    }
    if control_plane is not None:
        addresses["kubernetes"] = control_plane.url
    return addresses


def _failed(error: StoryError, pipeline: Pipeline) -> None:
    print(f"\ndemo: {error}", file=sys.stderr)
    parts = (
        pipeline.exporter.process,
        pipeline.prometheus.process,
        pipeline.alertmanager.process,
        pipeline.remediator.process,
    )
    for part in parts:
        print(f"\nlast lines of {part.name}:\n{part.tail(5)}", file=sys.stderr)


def _keep(pipeline: Pipeline, control_plane: ControlPlane | None) -> None:
    """Say how to play with it, and wait for Ctrl-C."""
    file = pipeline.driver.health_file(7, "unhealthy_components")
    print("\nStill running; Ctrl-C ends it. Break device 7 yourself:")
    print(f"  echo link_host > {file}")
    print(f"  curl -s {pipeline.remediator.url}/metrics | grep neuron_remediator_record")
    if control_plane is not None:
        print(f"  kubectl --kubeconfig {control_plane.kubeconfig('admin')} get devicetaintrules", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
