"""What `neuron-remediator uninstall` says of what it has done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from remediator.cli.leftovers import summary
from remediator.cli.rendering import console, say
from remediator.cli.words import joined, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remediator.cli.leftovers import Leftover, Scope
    from remediator.cli.removing import Account

_FEW = 20


def report(accounts: list[Account]) -> None:
    """Say exactly what was removed and what was not."""
    done = [account.of for account in accounts if account.done]
    if done:
        say(console(), f"Removed: {summary(done)}.", "green")
    failed = [account for account in accounts if not account.done]
    for account in failed[:_FEW]:
        says = f"not removed: {account.of.kind} {plain(account.of.name)}: {plain(account.says)}"
        say(console(sys.stderr), says, "bold red")
    if len(failed) > _FEW:
        say(console(sys.stderr), f"and {len(failed) - _FEW} more were not removed", "bold red")


def conclude(left: list[Leftover], scope: Scope) -> int:
    """Say what is left after all, as the cluster has it now; raises `click.ClickException` if anything is."""
    if not left:
        meant = f"of {joined(sorted(scope.faults))}" if scope.faults else "with our mark"
        say(console(), f"Nothing {meant} is left.", "green")
        return 0
    raise click.ClickException(f"{summary(left)} left: {_names(left)}; {_why_left(left)}")


def _names(left: Iterable[Leftover]) -> str:
    names = [f"{one.kind} {plain(one.name)}" for one in left]
    return joined(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _why_left(left: Iterable[Leftover]) -> str:
    if any(getattr(one.of.metadata, "deletion_timestamp", None) for one in left):
        return "a finalizer holds the deletion up: see 'kubectl get devicetaintrule NAME -o yaml'; then run this again"
    return "see that no remediator runs, and run this again"
