"""The process `neuron-taints`: commands, exit codes, and errors as one sentence.

Exit codes: 0 done; 1 could not be done, or there is nothing of that name; 2 wrong usage.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

import click

from remediator.cli.explain_command import explain_command
from remediator.cli.list_command import list_command
from remediator.cli.release_command import release_command
from remediator.cli.words import plain
from remediator.errors import ConflictError, ExpiredError, Refusal, RemediatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "neuron-taints"
_DONE, _COULD_NOT, _WRONG_USAGE = 0, 1, 2

_UNREACHABLE = "see whether the API server answers: kubectl get --raw /readyz"
_NEXT = {
    Refusal.UNREACHABLE: _UNREACHABLE,
    Refusal.TIMEOUT: _UNREACHABLE,
    Refusal.UNAUTHORIZED: "log in to the cluster again, or name another file with --kubeconfig",
    Refusal.FORBIDDEN: "have the ClusterRole neuron-taints-operator (deploy/rbac.yaml) bound to you",
    Refusal.THROTTLED: "try again in a moment",
    Refusal.SERVER_ERROR: "try again in a moment",
}
_EPILOG = """\b
Examples:
  neuron-taints list
  neuron-taints explain ip-10-1-1-200.ec2.internal/3
  neuron-taints release ip-10-1-1-200.ec2.internal/3 --for 4h --reason 'burn-in test'
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="neuron-device-taints", prog_name=PROGRAM)
def commands() -> None:
    """What keeps work off Neuron devices in this cluster, why, and your word about it."""


for _command in (list_command, explain_command, release_command):
    commands.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; returns the exit code."""
    try:
        code = commands.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return _WRONG_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else PROGRAM
        return _fail(f"{error.format_message()} (see '{path} --help')", _WRONG_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), _COULD_NOT)
    except (click.Abort, KeyboardInterrupt):
        return _fail("stopped: nothing else was changed", _COULD_NOT)
    except RemediatorError as error:
        return _fail(f"{error}{_advice(error)}", _COULD_NOT)
    return code if isinstance(code, int) else _DONE


def _advice(error: RemediatorError) -> str:
    if isinstance(error, (ConflictError, ExpiredError)):
        return "; try again"
    advice = _NEXT.get(error.refusal) if isinstance(error, UnavailableError) else None
    return f"; {advice}" if advice else ""


def _fail(says: str, code: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {plain(says.replace(chr(10), ' '))}\n")
    return code


def main() -> None:
    """Run as a process."""
    # What libraries would warn of is said by the error itself.
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        # A name or a reason that the terminal's encoding does not have must not end in a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        _mute(sys.stdout)
        code = _COULD_NOT
    sys.exit(code)


def _mute(stream: TextIO) -> None:
    """Whoever read the output has gone: what is left of it must not raise again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
