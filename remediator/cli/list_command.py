"""`neuron-taints list`: what is tainted now."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from remediator.cli.listing import Entry, document, entries, table
from remediator.cli.node_lines import made_anew
from remediator.cli.options import ADDRESS, check_fault, cluster_options
from remediator.cli.reading import cluster
from remediator.cli.rendering import console, say, show_json, show_table
from remediator.cli.strays import keys_of, kubectl, strays, without_annotation, without_keys
from remediator.cli.words import NODE_RIGHTS, counted, joined, no_such_node, plain
from remediator.errors import Refusal, RemediatorError, UnavailableError
from remediator.records import MANAGED_BY, MANAGER, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from remediator.cli.address import Address
    from remediator.cli.picture import Held
    from remediator.cli.reading import Cluster
    from remediator.inventory import Node

EPILOG = """\b
Examples:
  neuron-taints list
  neuron-taints list ip-10-1-1-200.ec2.internal -o wide
  neuron-taints list --state withheld --state released
  neuron-taints list --all -o json | jq '.[] | select(.effect == "NoExecute") | .node'
"""

_NOT_SERVED = (
    "This cluster serves no DeviceTaintRules (resource.k8s.io): all records there can be are on Nodes, which are "
    "tainted as a whole."
)


@click.command("list", epilog=EPILOG, short_help="What is tainted now.")
@click.argument("about", metavar="[NODE[/DEVICE]]", required=False, type=ADDRESS)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    help="How to write it; wide adds times, targets and reasons.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only records in that state.",
)
@click.option("--all", "everything", is_flag=True, help="Also the driver's own taints and other people's rules.")
@cluster_options
def list_command(
    about: Address | None,
    output: str,
    states: tuple[str, ...],
    *,
    everything: bool,
    kubeconfig: Path | None,
    driver: str,
) -> int:
    """List what is tainted now: one row a record, which is one fault on one device.

    A taint is on one device, or, where column ON says so, on its Node as a whole, because no rule can taint the device
    there. AGE is how long the taint has had its present effect. A record in a state other than active has no effect, or
    a weaker one than its fault asks for; an active one too, where the remediator's --max-effect caps it:
    `neuron-taints explain` says why. WHY, with --state withheld, says in a word what it waits for.

    In the JSON document, a target whose device is null is a Node as a whole; its pool is the Node, and it has no rule.
    Records on Nodes are listed for who may list Nodes, or, with NODE, get that one; else what is missing is said.
    """
    chosen = [State(state) for state in states]
    seen = asyncio.run(_read(about, chosen, everything=everything, kubeconfig=kubeconfig, driver=driver))
    if output == "json":
        show_json([document(entry) for entry in seen.found])
    elif seen.found:
        wide, why = output == "wide", State.WITHHELD in chosen
        show_table(console(), table(seen.found, now=datetime.now(UTC), wide=wide, sources=everything, why=why))
    elif not (seen.missing or seen.unread):
        say(console(sys.stderr), _nothing(about, chosen, everything=everything))
    if seen.missing:
        say(console(sys.stderr), seen.missing)
    for note in _notes(seen, kubeconfig):
        say(console(sys.stderr), note)
    return 1 if seen.missing else 0


class _Seen(NamedTuple):
    """What there is to list. `missing` says that its Node is not there at all, `unread` what could not be looked at."""

    held: Held
    found: list[Entry]
    missing: str
    unread: str


async def _read(
    about: Address | None, states: list[State], *, everything: bool, kubeconfig: Path | None, driver: str
) -> _Seen:
    async with cluster(kubeconfig, driver) as cluster_:
        rules = await cluster_.rules()
        nodes, unread = await _nodes(cluster_, about)
        held = cluster_.sorted_out(rules, nodes)
        inventory = await cluster_.inventory(about.node if about else None) if everything else None
        if about is not None:
            check_fault(about, held)
        found = entries(held, inventory, driver=driver, about=about, states=states)
        missing = ""
        # Who may not look at Nodes is told what is on record, which is nothing.
        if about is not None and not (found or nodes or unread):
            missing = f"{about.node}: {no_such_node(about.node, await cluster_.names(held))}"
        return _Seen(held, found, missing, unread)


async def _nodes(cluster_: Cluster, about: Address | None) -> tuple[list[Node], str]:
    """Read the Nodes that are asked about, or say why they could not be."""
    try:
        if about is None:
            return await cluster_.nodes(), ""
        node = await cluster_.node(about.node)
    except RemediatorError as error:
        if cluster_.version is None:
            # There is nowhere else to look.
            raise
        forbidden = isinstance(error, UnavailableError) and error.refusal is Refusal.FORBIDDEN
        return [], plain(f"{error}{f'; {NODE_RIGHTS}' if forbidden else ''}")
    return [] if node is None else [node], ""


def _nothing(about: Address | None, states: Collection[State], *, everything: bool) -> str:
    """What to say when there is nothing to list."""
    there = f" on {about}" if about else " in the cluster"
    if states:
        return f"Nothing{there} is in state {' or '.join(states)}."
    if everything:
        return f"Nothing is tainted{there}: no record, no taint of the driver itself, no other rule."
    return f"Nothing is held{there}: there is no record. (--all shows the driver's own taints and other rules too.)"


def _notes(seen: _Seen, kubeconfig: Path | None) -> Iterator[str]:
    """What to know of the list: what is not in it, and what taints and will never be cleared by anything."""
    held = seen.held
    if not held.served:
        yield _NOT_SERVED
    if seen.unread:
        yield f"{'note' if seen.found else 'No record is a rule'}: records on Nodes are not listed: {seen.unread}"
    lost = [plain(rule.metadata.name) for rule in held.others if rule.metadata.labels.get(MANAGED_BY) == MANAGER]
    if lost:
        text = (
            f"{counted(len(lost), 'rule')} with our mark no longer say which fault they stand for, and are not listed"
        )
        yield f"warning: {text}: {joined(lost)}; look at them with kubectl, and delete them by hand"
    for damaged in held.damaged:
        says = f"{plain(damaged.says)}; its records are not listed; {made_anew(served=held.served)}"
        yield f"warning: {says}; to end it: {_undamaged(damaged.node, held, kubeconfig)}"


def _undamaged(node: Node, held: Held, kubeconfig: Path | None) -> str:
    """How to end an annotation that cannot be read. The taint that it stood for is not known to be ours any more."""
    program, name = kubectl(kubeconfig), node.metadata.name
    annotate = f"{program} {without_annotation(name)}"
    found = strays(node, keys_of(held.records))
    return f"{annotate} && {program} {without_keys(name, found)}" if found else annotate
