"""`neuron-taints explain`: all there is to know about a node or a device, for somebody who was just woken up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from remediator.cli.explanation import RUNBOOKS, explain
from remediator.cli.options import ADDRESS, RUNBOOK_URL, check_fault, cluster_options
from remediator.cli.picture import Picture
from remediator.cli.reading import cluster
from remediator.cli.rendering import console, show_explanation
from remediator.errors import RemediatorError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from remediator.cli.address import Address
    from remediator.cli.reading import Cluster

T = TypeVar("T")

EPILOG = """\b
Examples:
  neuron-taints explain ip-10-1-1-200.ec2.internal
  neuron-taints explain ip-10-1-1-200.ec2.internal/3
  neuron-taints explain ip-10-1-1-200.ec2.internal/3/hbm
"""


@click.command("explain", epilog=EPILOG, short_help="Why a node or a device is as it is, and what to do.")
@click.argument("about", metavar="NODE[/DEVICE[/FAULT]]", type=ADDRESS)
@click.option(
    "--runbook-url",
    type=RUNBOOK_URL,
    envvar="NEURON_TAINTS_RUNBOOK_URL",
    show_envvar=True,
    default=RUNBOOKS,
    show_default=True,
    metavar="URL",
    help="Where your runbooks are, to name them by.",
)
@cluster_options
def explain_command(about: Address, *, runbook_url: str, kubeconfig: Path | None, driver: str) -> int:
    """Explain a node or a device: what is wrong, what was done, why, what ends it, who is affected, what to do next.

    Everything is read from the cluster now. What may not be read is named, and the rest is told all the same; only
    the right to list devicetaintrules is needed, and that to get the Node for what is recorded there.
    """
    picture = asyncio.run(_look(about, kubeconfig, driver))
    check_fault(about, picture.held)
    told = explain(about, picture, kubeconfig=str(kubeconfig) if kubeconfig else None, runbooks=runbook_url)
    show_explanation(console(), told)
    return 0 if told.found else 1


async def _look(about: Address, kubeconfig: Path | None, driver: str) -> Picture:
    async with cluster(kubeconfig, driver) as cluster_:
        return await look(cluster_, about, claims=True)


async def look(cluster_: Cluster, about: Address, *, claims: bool = False, everywhere: bool = False) -> Picture:
    """Read everything around an address; only the rules must be readable, where there are any.

    `claims`: who uses devices; `everywhere`: the records on other Nodes too.
    """
    rules = await cluster_.rules()
    unread: list[str] = []

    async def attempt(reading: Awaitable[T], of: str = "") -> T | None:
        try:
            return await reading
        except RemediatorError as error:
            unread.append(f"{of}{error}")
            return None

    failed_before = len(unread)
    node = await attempt(cluster_.node(about.node))
    node_read = len(unread) == failed_before
    others = await attempt(cluster_.nodes(), "records on other Nodes: ") if everywhere else None
    nodes = [one for one in others or () if one.metadata.name != about.node]
    held = cluster_.sorted_out(rules, [*nodes, *([node] if node else [])])
    missing = node_read and node is None
    return Picture(
        driver=cluster_.driver,
        now=datetime.now(UTC),
        held=held,
        node=node,
        node_read=node_read,
        nodes=await cluster_.names(held) if missing else frozenset(),
        inventory=await attempt(cluster_.inventory(about.node)),
        claims=await attempt(cluster_.claims()) if claims else None,
        unread=tuple(unread),
    )
