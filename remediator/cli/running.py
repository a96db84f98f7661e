"""Runs a command line: exit codes, and errors as one sentence with the next step.

Exit codes: 0 done; 1 could not be done, or there is nothing of that name; 2 wrong usage.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

import click

from remediator.cli.words import NODE_RIGHTS, OPERATOR_RIGHTS, plain
from remediator.errors import ConflictError, ExpiredError, Refusal, RemediatorError, UnavailableError
from remediator.node_cache import NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DONE, _COULD_NOT, _WRONG_USAGE = 0, 1, 2

_UNREACHABLE = "see whether the API server answers: kubectl get --raw /readyz"
_NEXT = {
    Refusal.UNREACHABLE: _UNREACHABLE,
    Refusal.TIMEOUT: _UNREACHABLE,
    Refusal.UNAUTHORIZED: "log in to the cluster again, or name another file with --kubeconfig",
    Refusal.THROTTLED: "try again in a moment",
    Refusal.SERVER_ERROR: "try again in a moment",
}


def run(command: click.Command, program: str, arguments: Sequence[str], *, rights: str | None = None) -> int:
    """Carry out one command line; returns the exit code. `rights` is what to do about what is forbidden."""
    try:
        code = command.main(args=list(arguments), prog_name=program, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return _WRONG_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else program
        return _fail(program, f"{error.format_message()} (see '{path} --help')", _WRONG_USAGE)
    except click.ClickException as error:
        return _fail(program, error.format_message(), _COULD_NOT)
    except (click.Abort, KeyboardInterrupt):
        return _fail(program, "stopped: nothing else was changed", _COULD_NOT)
    except RemediatorError as error:
        return _fail(program, f"{error}{_advice(error, rights)}", _COULD_NOT)
    return code if isinstance(code, int) else _DONE


def _advice(error: RemediatorError, rights: str | None) -> str:
    if isinstance(error, (ConflictError, ExpiredError)):
        return "; try again"
    if not isinstance(error, UnavailableError):
        return ""
    if error.refusal is Refusal.FORBIDDEN:
        return f"; {rights or (NODE_RIGHTS if NODES in str(error) else OPERATOR_RIGHTS)}"
    advice = _NEXT.get(error.refusal)
    return f"; {advice}" if advice else ""


def _fail(program: str, says: str, code: int) -> int:
    sys.stderr.write(f"{program}: {plain(says.replace(chr(10), ' '))}\n")
    return code


def process(run_line: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command line as the process's own; returns the exit code."""
    # What libraries would warn of is said by the error itself.
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        # A name or a reason that the terminal's encoding does not have must not end in a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = run_line(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _mute(sys.stdout)
        code = _COULD_NOT
    return code


def _mute(stream: TextIO) -> None:
    """Whoever read the output has gone: what is left of it must not raise again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
