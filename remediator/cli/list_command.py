"""`neuron-taints list`: what is tainted now."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from remediator.cli.listing import Entry, document, entries, nothing, table
from remediator.cli.options import ADDRESS, check_fault, cluster_options
from remediator.cli.reading import cluster
from remediator.cli.rendering import console, say, show_json, show_table
from remediator.cli.words import counted, joined, no_such_node, plain
from remediator.errors import RemediatorError
from remediator.records import MANAGED_BY, MANAGER, State

if TYPE_CHECKING:
    from pathlib import Path

    from remediator.cli.address import Address
    from remediator.cli.picture import Rules
    from remediator.cli.reading import Cluster

EPILOG = """\b
Examples:
  neuron-taints list
  neuron-taints list ip-10-1-1-200.ec2.internal -o wide
  neuron-taints list --state withheld --state released
  neuron-taints list --all -o json | jq '.[] | select(.effect == "NoExecute") | .node'
"""


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

    AGE is how long the taint has had its present effect. A record in a state other than active has no effect, or a
    weaker one than its fault asks for; an active one too, where the remediator's --max-effect caps it:
    `neuron-taints explain` says why. WHY, with --state withheld, says in a word what it waits for.
    """
    chosen = [State(state) for state in states]
    rules, found, missing = asyncio.run(
        _read(about, chosen, everything=everything, kubeconfig=kubeconfig, driver=driver)
    )
    if output == "json":
        show_json([document(entry) for entry in found])
    elif found:
        drawn = table(
            found, now=datetime.now(UTC), wide=output == "wide", sources=everything, why=State.WITHHELD in chosen
        )
        show_table(console(), drawn)
    elif not missing:
        say(console(sys.stderr), nothing(about, chosen, everything=everything))
    if missing:
        say(console(sys.stderr), missing)
    _warn(rules)
    return 1 if missing else 0


async def _read(
    about: Address | None, states: list[State], *, everything: bool, kubeconfig: Path | None, driver: str
) -> tuple[Rules, list[Entry], str]:
    """Read what is to be listed; the text says that its Node is not there at all, else it is empty."""
    async with cluster(kubeconfig, driver) as cluster_:
        rules = await cluster_.rules()
        inventory = await cluster_.inventory(about.node if about else None) if everything else None
        if about is not None:
            check_fault(about, rules)
        found = entries(rules, inventory, driver=driver, about=about, states=states)
        missing = "" if found or about is None else await _missing(cluster_, about.node, rules)
        return rules, found, missing


async def _missing(cluster_: Cluster, node: str, rules: Rules) -> str:
    try:
        if await cluster_.node(node) is not None:
            return ""
    except RemediatorError:
        # Who may not look at Nodes is told what is on record, which is nothing.
        return ""
    return f"{node}: {no_such_node(node, await cluster_.nodes(rules))}"


def _warn(rules: Rules) -> None:
    """Tell of rules that carry our mark and stand for nothing: they taint, and nothing will ever clear them."""
    lost = [plain(rule.metadata.name) for rule in rules.others if rule.metadata.labels.get(MANAGED_BY) == MANAGER]
    if lost:
        text = (
            f"{counted(len(lost), 'rule')} with our mark no longer say which fault they stand for, and are not listed"
        )
        say(console(sys.stderr), f"warning: {text}: {joined(lost)}; look at them with kubectl, and delete them by hand")
