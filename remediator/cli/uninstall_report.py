"""What `neuron-remediator uninstall` says of what it would do, and of what it has done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from remediator.cli.leftovers import no_record_of, summary, table
from remediator.cli.rendering import console, fits, say, show_table
from remediator.cli.words import joined, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remediator.cli.consequences import Remarks
    from remediator.cli.leftovers import Leftover, Scope, Seen
    from remediator.cli.removing import Account

_FEW = 20


def nothing(scope: Scope, seen: Seen, *, driver: str) -> str:
    """Say that nothing is to be removed."""
    if scope.faults:
        return f"Nothing to remove: {no_record_of(scope.faults, seen, driver=driver)}."
    return "Nothing to remove: nothing in the cluster carries our mark."


def show(found: list[Leftover], said: Remarks, more: list[str]) -> None:
    """Show what would go, and what comes of it."""
    out = console()
    named = table(found, names=True)
    show_table(out, named if fits(out, named) else table(found, names=False))
    say(out, f"To be removed: {summary(found)}.", "bold")
    notes([*said.quiet, *more])
    for remark in said.loud:
        say(out, remark, "bold red")


def notes(said: Iterable[str]) -> None:
    """Write notes."""
    for note in said:
        say(console(), f"  note: {note}", "yellow")


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


def conclude(left: list[Leftover], scope: Scope) -> None:
    """Say what is left after all, as the cluster has it now; raises `click.ClickException` if anything is."""
    if left:
        raise click.ClickException(f"{summary(left)} left: {_names(left)}; {_why_left(left)}")
    meant = f"of {joined(sorted(scope.faults))}" if scope.faults else "with our mark"
    say(console(), f"Nothing {meant} is left.", "green")


def _names(left: Iterable[Leftover]) -> str:
    names = [f"{one.kind} {plain(one.name)}" for one in left]
    return joined(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _why_left(left: Iterable[Leftover]) -> str:
    if any(getattr(one.of.metadata, "deletion_timestamp", None) for one in left):
        return "a finalizer holds the deletion up: see 'kubectl get devicetaintrule NAME -o yaml'; then run this again"
    return "see that no remediator runs, and run this again"
