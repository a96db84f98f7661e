"""`neuron-taints release`: an operator's word that lifts a record for a time, or that takes that word back.

Rights it needs: `list` and `get` of devicetaintrules, and `patch` of them (resource.k8s.io); `get` of nodes, and for
records that are kept there `list` and `patch` of them; to say what else keeps the target tainted, `list` of
resourceslices. Nothing else is written.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click

from remediator.cli.explain_command import look
from remediator.cli.options import ADDRESS, RELEASE_TIME, WORDS, check_fault, cluster_options
from remediator.cli.plan import Intent, Step, remarks, step
from remediator.cli.reading import cluster
from remediator.cli.releasing import Account, Fate, carry_out
from remediator.cli.rendering import console, say
from remediator.cli.words import joined, no_such_node, plain, until

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from remediator.cli.address import Address
    from remediator.cli.picture import Picture
    from remediator.cli.reading import Cluster

EPILOG = """\b
Examples:
  neuron-taints release ip-10-1-1-200.ec2.internal/3 --for 4h --reason 'burn-in test, ticket 4711'
  neuron-taints release ip-10-1-1-200.ec2.internal/3/link_efa --for 30m --reason 'switch is replaced' --dry-run
  neuron-taints release ip-10-1-1-200.ec2.internal/3 --end

\b
Rights needed (ClusterRole neuron-taints-operator of deploy/rbac.yaml):
  resource.k8s.io  devicetaintrules  get, list, patch
  resource.k8s.io  resourceslices    list
  (core)           nodes             get, list
  resource.k8s.io  resourceclaims    list    (for explain)

\b
Further rights needed where a Node is tainted as a whole (ClusterRole neuron-taints-node-operator):
  (core)           nodes             get, list, patch
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the operator has asked for. `length` is None to end a release."""

    about: Address
    length: timedelta | None
    why: str
    by: str | None


class _Plan(NamedTuple):
    cluster: Cluster
    intent: Intent
    steps: list[Step]
    remarks: list[str]


@click.command("release", epilog=EPILOG, short_help="Lift a taint for a time, by your word.")
@click.argument("about", metavar="NODE/DEVICE[/FAULT]", type=ADDRESS)
@click.option("--for", "length", type=RELEASE_TIME, metavar="DURATION", help="How long, such as 30m or 4h; at most 7d.")
@click.option("--reason", type=WORDS, metavar="TEXT", help="Why; kept on the record for everybody to read.")
@click.option("--end", is_flag=True, help="End a release now, instead of making one.")
@click.option("--all-devices", is_flag=True, help="Everything that is held on the node (NODE alone).")
@click.option("--by", type=WORDS, metavar="NAME", help="Whose word it is. [default: who the cluster knows you as]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@cluster_options
def release_command(
    about: Address,
    *,
    length: timedelta | None,
    reason: str | None,
    end: bool,
    all_devices: bool,
    by: str | None,
    yes: bool,
    dry_run: bool,
    kubeconfig: Path | None,
    driver: str,
) -> int:
    """Lift the taint of a record for a time, by your word.

    The record stays, without effect and without its latch. A clean reading removes it meanwhile; if it still stands at
    the end, the fault taints again with its next firing. Work may be placed on a faulty device until then.

    A release makes room in the budget. Records that are withheld for want of it get that room: latched ones rise at
    once, without a new firing, and effect NoExecute evicts. Those of them that must not rise, release as well.
    """
    _check(about, length=length, reason=reason, end=end, all_devices=all_devices)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask for confirmation; expected --yes or --dry-run")
    order = _Order(about=about, length=length, why=reason or "", by=by)
    # One loop for both halves, and none while a person thinks: it would keep Ctrl-C to itself.
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            plan = runner.run(_plan(order, stack, kubeconfig, driver))
            _show(order, plan)
            if dry_run:
                say(console(), "Dry run: nothing was changed.")
                return 0
            if not (yes or _agreed()):
                raise click.ClickException("stopped: nothing was changed")
            return _carry_out(order, plan, runner)
        finally:
            runner.run(stack.aclose())


def _agreed() -> bool:
    try:
        return click.confirm("Go on?", err=True)
    except click.Abort:  # Ctrl-C or the end of the input: what follows goes onto a line of its own
        click.echo(err=True)
        return False


def _check(about: Address, *, length: timedelta | None, reason: str | None, end: bool, all_devices: bool) -> None:
    if about.device is None and not all_devices:
        raise click.UsageError(f"expected a device, such as {about}/3, or --all-devices for everything on the node")
    if about.device is not None and all_devices:
        raise click.UsageError(f"--all-devices goes with a node alone, such as {about.node}")
    if end and length is not None:
        raise click.UsageError("--end and --for exclude each other")
    if not end and length is None:
        raise click.UsageError("expected --for DURATION, such as --for 4h: no release is for ever")
    if not end and reason is None:
        raise click.UsageError("expected --reason TEXT: whoever looks next will want to know")


async def _plan(order: _Order, stack: AsyncExitStack, kubeconfig: Path | None, driver: str) -> _Plan:
    cluster_ = await stack.enter_async_context(cluster(kubeconfig, driver))
    picture = await look(cluster_, order.about, everywhere=True)
    if not picture.node_read:
        raise click.ClickException(f"{joined(picture.unread)}; a release needs to know which machine it is for")
    caller = await cluster_.caller()
    intent = Intent(
        now=caller.now,
        until=None if order.length is None else caller.now + order.length,
        by=order.by or plain(caller.name),
        why=order.why,
    )
    steps = [step(record, intent, picture.node) for record in picture.held.records if order.about.names(record.key)]
    check_fault(order.about, picture.held)
    if not steps:
        raise click.ClickException(_nothing_there(order.about, picture))
    if all(planned.refused for planned in steps):
        why = "; ".join(f"{planned.record.key} {planned.says}" for planned in steps)
        raise click.ClickException(f"nothing was changed: {why}")
    unread = [f"not known: {plain(text)}" for text in picture.unread]
    return _Plan(cluster_, intent, steps, remarks(steps, picture) + unread)


def _nothing_there(about: Address, picture: Picture) -> str:
    held = [str(record.key) for record in picture.held.records if record.key.node == about.node]
    there = f"held on this node: {joined(held)}" if held else "nothing is held on this node"
    if picture.node is None:
        there = no_such_node(about.node, picture.nodes)
    return f"there is no record of {about}; {there}; see 'neuron-taints list --all'"


def _carry_out(order: _Order, plan: _Plan, runner: asyncio.Runner) -> int:
    accounts = [Account(planned.record.key) for planned in plan.steps]
    try:
        runner.run(carry_out(plan.cluster, plan.steps, plan.intent, accounts))
    finally:
        # Also when it was interrupted half-way.
        for account in accounts:
            _report(account, "released" if order.length is not None else "ended the release of")
    return 0 if all(account.well for account in accounts) else 1


def _show(order: _Order, plan: _Plan) -> None:
    out, intent = console(), plan.intent
    if intent.until is None:
        say(out, f"Ending the release of {order.about}, by {intent.by}:", "bold")
    else:
        says = f"Releasing {order.about} until {until(intent.until, intent.now)}, by {intent.by}: {intent.why!r}"
        say(out, says, "bold")
    for planned in plan.steps:
        say(out, f"  {planned.record.key} {planned.says}")
    for remark in plan.remarks:
        say(out, f"  note: {remark}", "yellow")


def _report(account: Account, did: str) -> None:
    """Say exactly what was done and what was not."""
    key, says = account.key, plain(account.says)
    if account.fate is Fate.DONE:
        say(console(), f"{did} {key}", "green")
    elif account.well:
        say(console(), f"left {key}: {says}")
    elif account.fate is Fate.UNSURE:
        say(console(sys.stderr), f"unknown: may have {did} {key}: {says}", "bold red")
    else:
        say(console(sys.stderr), f"failed: has not {did} {key}: {says or account.fate}", "bold red")
