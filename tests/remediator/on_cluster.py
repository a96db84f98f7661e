"""A remediator in this process on a real API server, records by rule or by Node as there, with any terms of service.

As the process wires it, but for the Lease: it always leads. Its way to the API server is handed out, so that a test may
come between.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp.test_utils import TestClient

from alerts.faults import FORMER
from remediator.app import WEBHOOK, Webhook, make_app
from remediator.assembly import Parts, Terms, assemble
from remediator.audit import Audit
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.node_taint import NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.budget import Limits
from remediator.caches import Caches
from remediator.cluster import Api, connect
from remediator.election import AlwaysLeads
from remediator.placement import Choice
from remediator.policy import Policy
from remediator.records import Key
from tests.remediator.conftest import AsServed
from tests.remediator.live import USER, now
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, Json, body
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from remediator.records import Record
    from tests.stack.controlplane import ControlPlane

DEFAULT_POLICY = Policy(taint_key=TAINT_KEY)
UNLIMITED = Limits(max_unavailable=None, max_new=None)


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """The running remediator."""

    api: Api
    caches: Caches
    backend: PerNodeBackend
    parts: Parts
    client: TestClient[Any, Any]

    async def post(self, *alerts: Json) -> int:
        """Post alerts in one notification; returns the status."""
        async with self.client.post(WEBHOOK, data=body(*alerts)) as response:
            return response.status

    def record(self, fault: str = "hbm", device: int = 3) -> Record | None:
        """What it holds of a fault on the sample node."""
        return self.backend.record(Key(NODE, device, fault))

    def count(self, counter: str, **labels: str) -> float:
        """One of its counters now."""
        value = self.parts.metrics.registry.get_sample_value(f"neuron_remediator_{counter}_total", labels)
        assert value is not None, f"no series {counter} {labels}"
        return value


@asynccontextmanager
async def on_cluster(
    plane: ControlPlane,
    *,
    policy: Policy = DEFAULT_POLICY,
    choice: Choice = Choice.AUTO,
    former: Mapping[str, str | None] = FORMER,
    kubeconfig: Path | None = None,
    sweeps: bool = True,
    ready: bool = True,
) -> AsyncIterator[OnCluster]:
    """Run one; it knows the cluster when this begins, unless told not to wait until it is `ready`.

    `kubeconfig` is another way to the API server. Without `sweeps` nothing is written but what an alert asks for.
    """

    def changed() -> None:
        parts.leveller.poke()

    await asyncio.to_thread(install, plane)
    async with connect(kubeconfig or plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic, choice=choice, on_change=changed)
        backend = PerNodeBackend(
            rules=DeviceTaintRuleBackend(api, caches.records),
            nodes=NodeTaintBackend(api, caches.node_cache, caches.node_records, now),
        )
        parts = assemble(
            backend=backend,
            held=backend.records,
            surroundings=caches,
            fleet=caches,
            leadership=AlwaysLeads(),
            terms=Terms(policy=policy, limits=UNLIMITED),
            traces=Audit(),
            former=former,
            clock=now,
            elapsed=time.monotonic,
        )
        app = make_app(Webhook(parts.remediator, parts.metrics, None), parts.remediator, parts.metrics)
        async with TestClient(AsServed(app)) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(caches.run())]
            if sweeps:
                tasks.append(group.create_task(parts.leveller.run()))

            async def knows() -> bool:
                return caches.not_ready() is None

            if ready:
                await wait_for(knows, timeout=10, what="the first lists")
            yield OnCluster(api=api, caches=caches, backend=backend, parts=parts, client=client)
            for task in tasks:
                task.cancel()
