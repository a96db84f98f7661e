"""The process `neuron-taints`: its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from remediator.cli import running
from remediator.cli.explain_command import explain_command
from remediator.cli.list_command import list_command
from remediator.cli.release_command import release_command

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "neuron-taints"
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
    return running.run(commands, PROGRAM, arguments)


def main() -> None:
    """Run as a process."""
    sys.exit(running.process(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
