"""Settings → a remediator on a cluster, in a dry run, or in memory, and what has to run beside it.

It connects, and starts nothing else; who serves and stops it is the process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from remediator.assembly import Parts, Terms, assemble
from remediator.audit import AllTraces, Audit
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.dry_run import DryRunBackend
from remediator.backends.memory import AnyCluster, MemoryBackend
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.election import AlwaysLeads
from remediator.events import Events
from remediator.lease import Lease, LeaseSettings, since_boot
from remediator.pod_label import PodLabel
from remediator.policy import Policy
from remediator.settings import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from exporter.service.connections import Connections
    from remediator.cluster import Api
    from remediator.settings import Settings

DRAIN_SECONDS = 2.0
"""How long Events that wait may still go out when the process stops."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Background = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts, and what runs beside them: what keeps them current, and the one task that writes unasked.

    `farewell` is done in this order once no request is under way any more and that task has ended.
    """

    parts: Parts
    background: tuple[Background, ...] = ()
    farewell: tuple[Callable[[], Awaitable[None]], ...] = field(default=())


def _clock() -> datetime:
    return datetime.now(UTC)


async def wire(settings: Settings, connections: Connections, stack: AsyncExitStack) -> Running:
    """Make what the settings ask for. Raises `UnavailableError` when there are no credentials for the cluster."""
    if settings.backend == MemoryBackend.name:
        return _in_memory(settings)
    api = await stack.enter_async_context(connect(settings.kubeconfig))
    if settings.dry_run:
        return _dry_run(settings, api)
    # Connections of its own: a Lease that waited behind a thousand slow writes would be lost in every mass failure.
    lease_api = await stack.enter_async_context(connect(settings.kubeconfig))
    return _on_cluster(settings, api, lease_api, connections)


def _terms(settings: Settings) -> Terms:
    policy = Policy(taint_key=settings.taint_key, max_effect=settings.max_effect)
    return Terms(policy=policy, limits=settings.limits, cluster=settings.cluster)


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
    return Running(parts=parts)


def _dry_run(settings: Settings, api: Api) -> Running:
    """Read everything and write nothing: neither a Lease nor a label nor an Event."""

    def changed() -> None:
        parts.leveller.poke()

    caches = Caches(api, driver=settings.driver, elapsed=time.monotonic, on_change=changed)
    parts = assemble(
        backend=DryRunBackend(caches.records, _clock),
        held=caches.records.all,
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
    return Running(parts=parts, background=(caches.run,))


def _on_cluster(settings: Settings, api: Api, lease_api: Api, connections: Connections) -> Running:
    namespace = settings.lease_namespace or _own_namespace()
    pod = settings.lease_pod or socket.gethostname()

    def changed() -> None:
        parts.leveller.poke()

    caches = Caches(api, driver=settings.driver, elapsed=time.monotonic, on_change=changed)
    lease = Lease(
        lease_api,
        LeaseSettings(namespace=namespace, name=settings.lease_name, duration=settings.lease_duration, pod=pod),
        elapsed=since_boot,
        clock=_clock,
        ready=lambda: caches.not_ready() is None,
        on_leading=lambda: _each(caches.renew_records, label.look, parts.leveller.poke),
        on_demotion=lambda: _each(label.look, connections.close_idle),
    )
    label = PodLabel(lease_api, namespace=namespace, pod=pod, leads=lambda: lease.not_leading() is None)

    def count(result: str) -> None:
        parts.metrics.events.labels(result).inc()

    events = Events(api, instance=lease.identity, clock=_clock, elapsed=time.monotonic, count=count)
    parts = assemble(
        backend=DeviceTaintRuleBackend(api, caches.records),
        held=caches.records.all,
        surroundings=caches,
        fleet=caches,
        per_device=settings.per_device,
        leadership=lease,
        terms=_terms(settings),
        traces=AllTraces((Audit(), events)),
        clock=_clock,
        elapsed=time.monotonic,
    )

    async def give_the_lease_back() -> None:
        if not parts.writer.in_doubt():
            await lease.release()

    async def tell_the_rest() -> None:
        await events.drain(DRAIN_SECONDS)

    return Running(
        parts=parts,
        background=(caches.run, lease.run, label.run, events.run),
        farewell=(give_the_lease_back, tell_the_rest),
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
