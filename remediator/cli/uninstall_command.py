"""`neuron-remediator uninstall`: takes away every object that carries our mark, and nothing else.

Events are left, as they expire; labels on our Pods go with the Pods; what operators have put on Nodes is theirs.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from alerts.faults import FAULTS
from remediator import settings
from remediator.cli import running
from remediator.cli.consequences import remarks
from remediator.cli.leading import Which, look, may_lead, watch
from remediator.cli.leftovers import Kind, Scope, Seen, all_records, leftovers, no_record_of
from remediator.cli.options import FAULT_NAME, service_option
from remediator.cli.reading import cluster
from remediator.cli.removing import Account, Remover, remove_all
from remediator.cli.rendering import console, progress, say
from remediator.cli.strays import keys_of, of_strays
from remediator.cli.uninstall_report import conclude, notes, nothing, report, show
from remediator.cli.words import plain
from remediator.errors import RemediatorError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remediator.cli.leftovers import Leftover
    from remediator.cli.reading import Cluster
    from remediator.inventory import Inventory

PROGRAM = "neuron-remediator uninstall"
_RIGHTS = f"the rights it needs are listed by '{PROGRAM} --help'"

EPILOG = """\b
Examples:
  kubectl -n neuron-device-taints scale deploy/neuron-remediator --replicas=0
  neuron-remediator uninstall --dry-run
  neuron-remediator uninstall
  neuron-remediator uninstall --fault link_optical  (removed from the table)

\b
What goes:
  DeviceTaintRules  labelled app.kubernetes.io/managed-by=neuron-remediator
  Nodes             their annotation neuron-remediator/records, and the taints
                    that it says are ours
  Leases            with the same label as the rules
What stays: Nodes' labels, such as neuron-remediator/opt-out; Events, until
they expire; everything of others.

\b
Rights needed:
  resource.k8s.io      devicetaintrules  get, list, delete
  (core)               nodes             get, list, patch
  coordination.k8s.io  leases            get, list, delete
  resource.k8s.io      resourceslices    list    (what the driver taints)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the operator has asked for."""

    scope: Scope
    yes: bool
    dry_run: bool
    force: bool
    driver: str
    lease: Which

    @property
    def watches(self) -> bool:
        """Whether a remediator must not lead: it would make again what is removed, but for faults it does not know."""
        known = not self.scope.faults or not self.scope.faults.isdisjoint(FAULTS)
        return known and not self.force


class _Plan(NamedTuple):
    cluster: Cluster
    seen: Seen
    found: list[Leftover]
    inventory: Inventory | None
    notes: list[str]
    keys: frozenset[str]


@click.command(
    "uninstall",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=FAULT_NAME,
    metavar="NAME",
    help="Only records of this fault; may be repeated. Of a fault that is no longer in the table, records may be "
    "removed while a remediator leads.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and do nothing.")
@click.option(
    "--force", is_flag=True, help="Do not look whether a remediator leads: it may make again what is removed."
)
@service_option(
    settings.KUBECONFIG,
    "Credentials of the cluster. By default as kubectl: $KUBECONFIG, ~/.kube/config, else the Pod's own.",
)
@service_option(settings.DRIVER, "DRA driver whose devices are meant, to say what comes back into service.")
@service_option(settings.LEASE_NAME)
@service_option(settings.LEASE_NAMESPACE, f"Its namespace. [default: {settings.DEFAULT_NAMESPACE}]")
@service_option(settings.LEASE_DURATION)
def uninstall_command(
    *,
    faults: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    force: bool,
    kubeconfig: Path | None,
    driver: str,
    lease_namespace: str | None,
    lease_name: str,
    lease_duration: int,
) -> int:
    """Remove everything from the cluster that carries the remediator's mark, and nothing else.

    Every taint of ours goes with it, so devices come back into service, faulty or not. Stop the remediator first: while
    one leads, this refuses, as it would make again what is removed. What would go is shown before anything is done. It
    may be run again at any time; the exit code is 0 only if nothing with our mark is left.
    """
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask for confirmation; expected --yes or --dry-run")
    order = _Order(
        scope=Scope(faults=frozenset(faults)),
        yes=yes,
        dry_run=dry_run,
        force=force,
        driver=driver,
        lease=Which(
            namespace=lease_namespace or settings.DEFAULT_NAMESPACE,
            name=lease_name,
            duration=lease_duration,
            kubeconfig=kubeconfig,
        ),
    )
    # One loop for all of it, and none while a person thinks: it would keep Ctrl-C to itself.
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            return _uninstall(order, runner.run(_plan(order, stack)), runner)
        finally:
            runner.run(stack.aclose())


def _uninstall(order: _Order, plan: _Plan, runner: asyncio.Runner) -> int:
    if not plan.found:
        say(console(), nothing(order.scope, plan.seen, driver=order.driver))
        notes(plan.notes)
        return 0
    said = remarks(plan.found, plan.seen, order.scope, plan.inventory, driver=order.driver)
    show(plan.found, said, plan.notes)
    if order.dry_run:
        say(console(), "Dry run: nothing was changed.")
        return 0
    watched = runner.run(watch(plan.cluster, order.lease)) if order.watches else None
    if not (order.yes or _agreed()):
        raise click.ClickException("stopped: nothing was changed")
    if watched is not None:
        # A person may have thought for long.
        runner.run(look(plan.cluster, order.lease, watched))
    _carry_out(order, plan, runner)
    seen = runner.run(_seen(order, plan.cluster))
    conclude(leftovers(seen, order.scope, driver=order.driver), order.scope)
    notes(of_strays(seen.nodes, plan.keys, order.lease.kubeconfig))
    return 0


def _agreed() -> bool:
    try:
        return click.confirm("Remove all of this?", err=True)
    except click.Abort:  # Ctrl-C or the end of the input: what follows goes onto a line of its own
        click.echo(err=True)
        return False


async def _plan(order: _Order, stack: AsyncExitStack) -> _Plan:
    cluster_ = await stack.enter_async_context(cluster(order.lease.kubeconfig, order.driver))
    seen = await _seen(order, cluster_)
    said: list[str] = []
    inventory = None
    try:
        inventory = await cluster_.inventory()
    except RemediatorError as error:
        said.append(f"not known: what the driver itself taints: {plain(str(error))}")
    if cluster_.version is None:
        said.append("this cluster serves no DeviceTaintRules: if it has kept any, they cannot be seen or removed")
    found = leftovers(seen, order.scope, driver=order.driver)
    keys = keys_of(all_records(seen, driver=order.driver))
    said += await _of_leases(order, cluster_, watches=bool(found) and order.dry_run and order.watches)
    absent = order.scope.faults.difference(*(one.faults for one in found))
    if found and absent:
        said.append(no_record_of(absent, seen, driver=order.driver))
    said += of_strays(seen.nodes, keys, order.lease.kubeconfig)
    return _Plan(cluster_, seen, found, inventory, said, keys)


async def _of_leases(order: _Order, cluster_: Cluster, *, watches: bool) -> list[str]:
    """What to know of Leases; `watches`: whether a run that is no dry run would watch them."""
    lease = None if order.scope.faults else await cluster_.lease(order.lease.namespace, order.lease.name)
    said = [] if lease is None or lease.ours else [f"Lease {lease.called} does not carry our mark, so it is left"]
    held = await may_lead(cluster_, order.lease) if watches else ""
    return [*said, held] if held else said


async def _seen(order: _Order, cluster_: Cluster) -> Seen:
    leases = [] if order.scope.faults else await cluster_.leases()
    return Seen(await cluster_.rules(), await cluster_.nodes(), leases)


def _carry_out(order: _Order, plan: _Plan, runner: asyncio.Runner) -> None:
    remover = Remover(plan.cluster, order.scope, datetime.now(UTC))
    accounts = [Account(one) for one in plan.found]
    # Leases last: until then, another replica that comes up can be seen.
    leases = [account for account in accounts if account.of.kind is Kind.LEASE]
    others = [account for account in accounts if account.of.kind is not Kind.LEASE]
    try:
        with progress(console(sys.stderr), "Removing", len(accounts)) as advance:
            for batch in (others, leases):
                runner.run(remove_all(remover, batch, lambda _account: advance(1)))
    finally:
        # Also when it was interrupted half-way.
        report(accounts)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; returns the exit code."""
    return running.run(uninstall_command, PROGRAM, arguments, rights=_RIGHTS)


def process(arguments: Sequence[str]) -> int:
    """The same as the process's own command line."""
    return running.process(run, arguments)
