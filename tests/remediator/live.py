"""The remediator on the real API server, with the permissions that ship, and the administrator's view of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from remediator.app import WEBHOOK
from remediator.records import Key
from remediator.rule_records import object_name
from tests.remediator.fakes import eventually
from tests.remediator.samples import NODE, Json, alert_json, body
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.test_utils import TestClient

    from remediator.backends.per_node import PerNodeBackend
    from remediator.caches import Caches
    from remediator.metrics import Metrics
    from remediator.records import Record
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

USER = "neuron-remediator"


@dataclass(frozen=True)
class Live:
    """The running remediator, and the administrator's view of what it does."""

    client: TestClient[Any, Any]
    backend: PerNodeBackend
    metrics: Metrics
    admin: Admin
    plane: ControlPlane

    async def post(self, *alerts: Json) -> int:
        """Post alerts in one notification; returns the status."""
        async with self.client.post(WEBHOOK, data=body(*alerts)) as response:
            return response.status

    def record(self, fault: str = "hbm", device: int = 3) -> Record | None:
        """What the remediator holds."""
        return self.backend.record(Key(NODE, device, fault))

    async def rule(self, fault: str = "hbm", device: int = 3) -> Json | None:
        """What the API server holds."""
        return await asyncio.to_thread(self.admin.find, "DeviceTaintRule", object_name(Key(NODE, device, fault)))

    async def edit(self, change: Json, fault: str = "hbm") -> None:
        """Change a rule as a hand with kubectl would, and wait until the remediator has seen it."""
        name = object_name(Key(NODE, 3, fault))
        edited = await asyncio.to_thread(self.admin.patch, "DeviceTaintRule", name, change)
        version = int(edited["metadata"]["resourceVersion"])

        def seen() -> bool:
            held = self.record(fault)
            return held is None or (held.stored is not None and int(held.stored.resource_version) >= version)

        await eventually(seen, what="the edited rule in the cache")

    async def writes(self, expected: int) -> list[str]:
        """The verbs of our writes so far, once there are that many; a line comes just after its answer."""

        async def found() -> list[str]:
            events = await asyncio.to_thread(self.plane.audit, user=USER, resource="devicetaintrules")
            return [event["verb"] for event in events if event["responseStatus"]["code"] < 300]

        async def enough() -> bool:
            return len(await found()) >= expected

        await wait_for(enough, timeout=10, what=f"{expected} writes in the audit log")
        return await found()


def now() -> datetime:
    return datetime.now(UTC)


def firing(**changes: str | None) -> Json:
    """An alert that begins now, after the node was made."""
    return alert_json(status="firing", started=now(), **changes)


@asynccontextmanager
async def running(caches: Caches) -> AsyncIterator[None]:
    """Keep the caches current; they are filled when this begins."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(caches.run())
        await eventually(lambda: caches.not_ready() is None, what="the first lists")
        yield
        task.cancel()
