"""`neuron-taints list`: what is tainted now."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from remediator.cli.listing import Entry, document, entries, nothing, table
from remediator.cli.options import ADDRESS, cluster_options
from remediator.cli.reading import cluster
from remediator.cli.rendering import console, say, show_json, show_table
from remediator.cli.words import counted, joined, plain
from remediator.records import MANAGED_BY, MANAGER, State

if TYPE_CHECKING:
    from pathlib import Path

    from remediator.cli.address import Address
    from remediator.cli.picture import Rules

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
    weaker one than its fault asks for: `neuron-taints explain` says why.
    """
    chosen = [State(state) for state in states]
    rules, found = asyncio.run(_read(about, chosen, everything=everything, kubeconfig=kubeconfig, driver=driver))
    if output == "json":
        show_json([document(entry) for entry in found])
    elif found:
        drawn = table(found, now=datetime.now(UTC), wide=output == "wide", sources=everything)
        show_table(console(), drawn)
    else:
        say(console(sys.stderr), nothing(about, chosen, everything=everything))
    _warn(rules)
    return 0


async def _read(
    about: Address | None, states: list[State], *, everything: bool, kubeconfig: Path | None, driver: str
) -> tuple[Rules, list[Entry]]:
    async with cluster(kubeconfig, driver) as cluster_:
        rules = await cluster_.rules()
        inventory = await cluster_.inventory(about.node if about else None) if everything else None
        return rules, entries(rules, inventory, driver=driver, about=about, states=states)


def _warn(rules: Rules) -> None:
    """Tell of rules that carry our mark and stand for nothing: they taint, and nothing will ever clear them."""
    lost = [plain(rule.metadata.name) for rule in rules.others if rule.metadata.labels.get(MANAGED_BY) == MANAGER]
    if lost:
        text = (
            f"{counted(len(lost), 'rule')} with our mark no longer say which fault they stand for, and are not listed"
        )
        say(console(sys.stderr), f"warning: {text}: {joined(lost)}; look at them with kubectl, and delete them by hand")
