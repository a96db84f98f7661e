"""`make demo` and `make demo-cluster`: get the parts, start them, tell the story, clean up.

The exit code is 0 only if everything the story tells has happened. `KEEP=1` leaves all of it running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.demo.narrator import Narrator, StoryError
from tests.demo.story import Story
from tests.stack.binaries import find, locate, locate_for_demo
from tests.stack.controlplane import COMPONENTS, ControlPlane
from tests.stack.kube import Admin
from tests.stack.pipeline import Pipeline
from tests.stack.progress import progress
from tests.stack.tools import StackBuildError, StackUnavailableError

if TYPE_CHECKING:
    from types import FrameType

NODE = "ip-10-1-1-200.us-west-2.compute.internal"
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_REAL = (
    "0. Starting: every process is real, only the driver files are simulated.\n   The taints are kept in the "
    "remediator's memory, not in a cluster: `make demo-cluster` has one."
)
_REAL_CLUSTER = (
    "0. Starting: every process is real, only the driver files are simulated.\n   There is no kubelet and no DRA "
    "driver: the Node and its ResourceSlice are made by hand, and pods are scheduled but do not run."
)


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="A fault, from driver file to taint and back.")
    parser.add_argument("--cluster", action="store_true", help="on a real control plane, with the eviction of a pod")
    arguments = parser.parse_args()
    _unwind_on_signals()
    try:
        return _run(cluster=arguments.cluster, keep=_keep_wanted(os.environ.get("KEEP", "")))
    except (StackUnavailableError, StackBuildError, RuntimeError, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 130


def _keep_wanted(value: str) -> bool:
    return value.lower() in {"1", "true", "yes"}


def _unwind_on_signals() -> None:
    """Let whatever asks for the end stop the parts and remove the files first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    for ending in _ENDING:  # make and the terminal both send one, and the clean-up is to be whole
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def _run(*, cluster: bool, keep: bool) -> int:
    narrator = Narrator()
    narrator.headline(_REAL_CLUSTER if cluster else _REAL)
    with ExitStack() as parts:
        directory = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="neuron-demo-")))
        _get(narrator, cluster=cluster)
        control_plane, admin = _control_plane(parts, narrator, directory) if cluster else (None, None)
        pipeline = Pipeline(directory, node=NODE, control_plane=control_plane, find=locate_for_demo)
        with progress("starting exporter, remediator, Alertmanager and Prometheus"):
            parts.enter_context(pipeline)
        for who, address in _addresses(pipeline, control_plane).items():
            narrator.say(who, address)
        try:
            Story(pipeline, narrator, admin).tell()
        except StoryError as error:
            _failed(error, pipeline)
            return 1
        if keep:
            _keep(pipeline, control_plane)
    if keep:
        print("All parts are stopped.")
    else:
        narrator.headline(
            "Everything above happened, and all parts are stopped. With KEEP=1 they go on, for you to play."
        )
    return 0


def _get(narrator: Narrator, *, cluster: bool) -> None:
    try:
        for name in ("prometheus", "alertmanager"):
            narrator.say(name, f"program {locate_for_demo(name)}")
        for name in COMPONENTS if cluster else ():
            narrator.say("kubernetes", f"program {locate(name)}")
    except OSError as error:
        problem = f'using "{error.filename}": {error.strerror}; NEURON_STACK_CACHE names another folder'
        raise StackUnavailableError(problem) from error


def _control_plane(parts: ExitStack, narrator: Narrator, directory: Path) -> tuple[ControlPlane, Admin]:
    control_plane = ControlPlane(directory / "control-plane")
    parts.callback(control_plane.stop)
    with progress("starting the control plane"):
        control_plane.start()
        admin = Admin(control_plane)
        admin.node(NODE)
    narrator.say("kubernetes", f"{admin.version()}; made by hand: node {NODE}, its ResourceSlice with 16 devices")
    return control_plane, admin


def _addresses(pipeline: Pipeline, control_plane: ControlPlane | None) -> dict[str, str]:
    # Of Prometheus and Alertmanager the API: Debian's packages and the builds here come without web pages.
    addresses = {
        "exporter": f"{pipeline.exporter.url}/metrics",
        "prometheus": f"{pipeline.prometheus.url}/api/v1/alerts",
        "alertmanager": f"{pipeline.alertmanager.url}/api/v2/alerts",
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
    """Say how to play with it, and wait for Ctrl-C, which is the expected end."""
    file = pipeline.driver.health_file(7, "unhealthy_components")
    print("\nEverything above happened, and all of it still runs; Ctrl-C ends it. Break device 7 yourself:")
    print(f"  echo link_host > {file}")
    print("heal it, and its taint goes in about 30 s:")
    print(f"  echo > {file}")
    print("and see what is tainted:")
    print(f"  curl -s {pipeline.remediator.url}/metrics | grep ^neuron_remediator_record")
    if control_plane is not None:
        kubeconfig = control_plane.kubeconfig("admin")
        print(f"  {Path(sys.executable).parent / 'neuron-taints'} list --kubeconfig {kubeconfig}")
        print(f"  {_kubectl()} --kubeconfig {kubeconfig} get devicetaintrules")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    print("\nstopping …", flush=True)


def _kubectl() -> str:
    """Return the one that was built, if it was; else say how to get it."""
    with suppress(StackUnavailableError):
        if (built := find("kubectl")) is not None:
            return str(built)
    print(f"  (without a kubectl on PATH: {sys.executable} -m tests.stack build kubectl)")
    return "kubectl"


if __name__ == "__main__":
    sys.exit(main())
