"""Settings → a remediator on a cluster, in a dry run, or in memory, and what has to run beside it.

It connects, and starts nothing else; who serves and stops it is the process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from remediator import peers
from remediator.assembly import Parts, Terms, assemble
from remediator.audit import AllTraces, Audit
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.dry_run import DryRunBackend
from remediator.backends.memory import AnyCluster, MemoryBackend
from remediator.backends.node_taint import NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.election import AlwaysLeads
from remediator.events import Events
from remediator.lease import Lease, LeaseSettings, since_boot
from remediator.metrics import ACTION_RESULTS, ACTIONS
from remediator.peer_keeper import BACKEND, PeerKeeper
from remediator.placement import Choice
from remediator.pod_label import PodLabel
from remediator.policy import Policy
from remediator.settings import DEFAULT_NAMESPACE, MEMORY

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from exporter.service.connections import Connections
    from remediator.cluster import Api
    from remediator.election import Leadership
    from remediator.metrics import Metrics
    from remediator.peer_object import PeerRule
    from remediator.records import Record
    from remediator.settings import Settings

DRAIN_SECONDS = 2.0
"""How long Events that wait may still go out when the process stops."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Background = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts, and what runs beside them: what keeps them current, and what writes without being asked.

    `farewell` is done in this order once no request is under way any more and what is `unasked` has ended.
    """

    parts: Parts
    unasked: tuple[Background, ...]
    background: tuple[Background, ...] = ()
    farewell: tuple[Callable[[], Awaitable[None]], ...] = field(default=())


def _clock() -> datetime:
    return datetime.now(UTC)


async def wire(settings: Settings, connections: Connections, stack: AsyncExitStack) -> Running:
    """Make what the settings ask for. Raises `UnavailableError` when there are no credentials for the cluster."""
    if settings.backend == MEMORY:
        return _in_memory(settings)
    api = await stack.enter_async_context(connect(settings.kubeconfig))
    if settings.dry_run:
        return _dry_run(settings, api)
    # Connections of its own: a Lease that waited behind a thousand slow writes would be lost in every mass failure.
    lease_api = await stack.enter_async_context(connect(settings.kubeconfig))
    return _on_cluster(settings, api, lease_api, connections)


def _terms(settings: Settings) -> Terms:
    policy = Policy(
        taint_key=settings.taint_key, max_effect=settings.max_effect, node_no_execute=settings.node_no_execute
    )
    return Terms(policy=policy, limits=settings.limits, cluster=settings.cluster)


def _caches(settings: Settings, api: Api, changed: Callable[[], None]) -> Caches:
    choice = Choice(settings.backend)
    return Caches(api, driver=settings.driver, choice=choice, elapsed=time.monotonic, on_change=changed)


def _backend(api: Api, caches: Caches) -> PerNodeBackend:
    return PerNodeBackend(
        rules=DeviceTaintRuleBackend(api, caches.records),
        nodes=NodeTaintBackend(api, caches.node_cache, caches.node_records, _clock),
    )


def _in_memory(settings: Settings) -> Running:
    backend = MemoryBackend(_clock)
    parts = assemble(
        backend=backend,
        held=backend.records,
        surroundings=AnyCluster(settings.driver),
        leadership=AlwaysLeads(),
        terms=_terms(settings),
        traces=Audit(),
        clock=_clock,
        elapsed=time.monotonic,
    )
    return Running(parts=parts, unasked=(parts.leveller.run,))


def _dry_run(settings: Settings, api: Api) -> Running:
    """Read everything and write nothing: neither a Lease nor a label nor an Event."""

    def changed() -> None:
        parts.leveller.poke()

    caches = _caches(settings, api, changed)
    real = _backend(api, caches)
    parts = assemble(
        backend=DryRunBackend(real, _clock),
        held=real.records,
        surroundings=caches,
        fleet=caches,
        per_device=settings.per_device,
        leadership=AlwaysLeads(),
        acts=False,
        terms=_terms(settings),
        traces=Audit(dry_run=True),
        clock=_clock,
        elapsed=time.monotonic,
    )
    return Running(parts=parts, unasked=(parts.leveller.run,), background=(caches.run,))


def _on_cluster(settings: Settings, api: Api, lease_api: Api, connections: Connections) -> Running:
    namespace = settings.lease_namespace or _own_namespace()
    pod = settings.lease_pod or socket.gethostname()

    def changed() -> None:
        parts.leveller.poke()
        keeper.poke()

    def record_changed() -> None:
        keeper.poke()

    caches = _caches(settings, api, changed)
    backend = _backend(api, caches)
    lease = Lease(
        lease_api,
        LeaseSettings(namespace=namespace, name=settings.lease_name, duration=settings.lease_duration, pod=pod),
        elapsed=since_boot,
        clock=_clock,
        ready=lambda: caches.not_ready() is None,
        on_leading=lambda: _each(caches.renew_records, label.look, parts.leveller.poke, keeper.poke),
        on_demotion=lambda: _each(label.look, connections.close_idle),
    )
    label = PodLabel(lease_api, namespace=namespace, pod=pod, leads=lambda: lease.not_leading() is None)

    def count(result: str) -> None:
        parts.metrics.events.labels(result).inc()

    events = Events(api, instance=lease.identity, clock=_clock, elapsed=time.monotonic, count=count)
    parts = assemble(
        backend=backend,
        held=backend.records,
        surroundings=caches,
        fleet=caches,
        per_device=settings.per_device,
        leadership=lease,
        terms=_terms(settings),
        traces=AllTraces((Audit(), events)),
        on_record=record_changed,
        clock=_clock,
        elapsed=time.monotonic,
    )
    # Who wants Nodes tainted alone wants no rules.
    flagging = settings.backend != Choice.NODES
    keeper = _peers(api, caches, backend.records if flagging else tuple, lease, parts.metrics)

    async def give_the_lease_back() -> None:
        if not parts.writer.in_doubt():
            await lease.release()

    async def tell_the_rest() -> None:
        await events.drain(DRAIN_SECONDS)

    return Running(
        parts=parts,
        unasked=(parts.leveller.run, keeper.run),
        background=(caches.run, lease.run, label.run, events.run),
        farewell=(give_the_lease_back, tell_the_rest),
    )


def _peers(
    api: Api, caches: Caches, records: Callable[[], Iterable[Record]], leadership: Leadership, metrics: Metrics
) -> PeerKeeper:
    """What flags the peers of nodes with such records."""

    def wanted() -> Mapping[str, PeerRule]:
        return peers.wanted(
            records=records(),
            members=caches.ultraservers.members(),
            inventory=caches.inventory,
            nodes=caches.known_node,
            held=caches.peer_rules.all(),
        )

    for action, result in product(ACTIONS, ACTION_RESULTS):
        metrics.actions.labels(action, BACKEND, result)
    return PeerKeeper(
        api,
        caches.peer_rules,
        wanted=wanted,
        version=lambda: caches.records.version,
        not_ready=caches.not_ready,
        leadership=leadership,
        count=lambda action, result: metrics.actions.labels(action, BACKEND, result).inc(),
        elapsed=time.monotonic,
    )


def _each(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def _own_namespace() -> str:
    """The namespace of the Pod's service account."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE
