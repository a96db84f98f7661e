"""Command line of the stack: build its programs, show where they are, run a control plane."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.stack.binaries import find, locate
from tests.stack.controlplane import USERS, ControlPlane
from tests.stack.releases import DEFAULT_RULES, Release
from tests.stack.tools import TOOLS, StackBuildError, StackUnavailableError, cache_root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build what is missing into the cache")
    building.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(TOOLS)}")
    commands.add_parser("where", help="show where each binary is")
    running = commands.add_parser("up", help="run a control plane until Ctrl-C")
    running.add_argument("--kubernetes", metavar="VERSION", default="1.37", help="1.37 or 1.36; default: %(default)s")
    running.add_argument(
        "--rules", metavar="VERSION", help="v1, v1beta2 or none; default: v1 with 1.37, none with 1.36, as they are"
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "build" and (unknown := set(arguments.names) - set(TOOLS)):
        parser.error(f'unknown program "{min(unknown)}"; expected one of {", ".join(TOOLS)}')
    if arguments.command == "up":
        try:
            release = Release(arguments.kubernetes, arguments.rules or DEFAULT_RULES.get(arguments.kubernetes, "v1"))
        except ValueError as error:
            parser.error(str(error))
    try:
        match arguments.command:
            case "build":
                _build(arguments.names or list(TOOLS))
            case "where":
                _where()
            case _:
                _up(release)
    except (StackUnavailableError, StackBuildError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _build(names: Sequence[str]) -> None:
    for name in TOOLS:
        if name in names:
            print(f"{name}: {locate(name)}", flush=True)


def _where() -> None:
    print(f"cache: {cache_root()}")
    for name in TOOLS:
        try:
            print(f"{name}: {find(name) or 'not built yet'}")
        except StackUnavailableError as error:
            print(f"{name}: {error}")


def _up(release: Release) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it in order, as Ctrl-C does
    with tempfile.TemporaryDirectory(prefix="neuron-stack-") as directory:
        plane = ControlPlane(Path(directory), kubernetes=release.kubernetes, rules=release.rules)
        try:
            plane.start()
            print(f"kube-apiserver: {plane.url}")
            print(f"audit log:      {plane.audit_log}")
            for user in USERS:
                print(f"{user}: export KUBECONFIG={plane.kubeconfig(user)}")
            print("Ctrl-C ends it", flush=True)
            signal.pause()
        finally:
            plane.stop()


if __name__ == "__main__":
    sys.exit(main())
