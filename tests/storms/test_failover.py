"""Another replica takes over while connections are warm: soon, and the one before does nothing any more."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.stack.controlplane import NAMESPACE
from tests.stack.http import request
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_for
from tests.stack.replicas import LEASE, Replicas
from tests.stack.sender import WEBHOOK, Sender
from tests.stack.service_ip import ServiceIp
from tests.storms.storm import Written, expected, faults, seen, shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.http import Response
    from tests.stack.kube import Admin
    from tests.storms.storm import Fault

LEASE_SECONDS = 2
WITHIN_SECONDS = 5
"""How soon after the Lease may be taken a fault has its rule."""

PATIENCE_SECONDS = 20


class Scene:
    """Two replicas behind a Service, one of which leads, and a sender with a warm connection to that one."""

    def __init__(self, admin: Admin, replicas: Replicas, leader: int, sender: Sender) -> None:
        self.admin, self.replicas, self.leader, self.sender = admin, replicas, leader, sender
        self.other = 1 - leader

    def renewed(self) -> datetime:
        """When the Lease was last renewed; all clocks here are one."""
        lease = self.admin.get("Lease", LEASE, namespace=NAMESPACE)
        return datetime.fromisoformat(lease["spec"]["renewTime"])

    async def is_rule(self, fault: Fault) -> datetime:
        """Wait until the fault has its rule; returns when it was seen."""

        async def there() -> bool:
            return await asyncio.to_thread(self.admin.find, "DeviceTaintRule", fault.name) is not None

        await wait_for(there, timeout=PATIENCE_SECONDS, what=f'rule "{fault.name}"')
        return datetime.now(UTC)

    def refused(self) -> None:
        """The one that led sends away who comes to it, has carried out nothing since, and has no label."""
        answer = _post(self.replicas.url(self.leader))
        assert (answer.status, answer.headers.get("connection")) == (503, "close")
        assert "not the leader" in answer.text
        assert self.replicas.leader() == self.other

    def done(self) -> float:
        """How many writes of records the one that led has made or tried, by its own count."""
        page = self.replicas.service(self.leader).metrics()
        return sum(value for name, _, value in page if name == "neuron_remediator_actions_total")


def _post(url: str) -> Response:
    return request("POST", url + WEBHOOK, body=b"{}", headers={"Authorization": f"Bearer {TOKEN}"}, check=False)


@asynccontextmanager
async def _kept(url: str) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that was used once and waits for more; reading it ends when the server closes it."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
        yield reader
    finally:
        writer.close()


@pytest.fixture
async def scene(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        replicas = stack.enter_context(
            Replicas(tmp_path, control_plane, lease_seconds=LEASE_SECONDS, proxied=True, flags=LIFTED)
        )
        service = stack.enter_context(ServiceIp(control_plane, replicas.addresses()))
        leader = await asyncio.to_thread(replicas.wait_for_leader)
        sender = await stack.enter_async_context(Sender(service.url, token=TOKEN, connections=1))
        yield Scene(admin, replicas, leader, sender)


async def test_the_leader_is_killed(
    scene: Scene, control_plane: ControlPlane, fleet: Callable[[int], list[str]]
) -> None:
    of, written = faults(2, fleet(1)), Written(control_plane)
    await scene.sender.send(of[0].firing())
    scene.replicas.kill(scene.leader)
    takeable = scene.renewed() + timedelta(seconds=LEASE_SECONDS)
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.sender.send(of[1].firing()))
        told = await scene.is_rule(of[1])
    _in_time("killed", told, takeable)
    # It comes back as a standby.
    scene.replicas.start(scene.leader)
    scene.refused()
    _all_there(scene, of, written)


async def test_the_leader_is_cut_off_silently(
    scene: Scene, control_plane: ControlPlane, fleet: Callable[[int], list[str]]
) -> None:
    of, written = faults(2, fleet(1)), Written(control_plane)
    await scene.sender.send(of[0].firing())
    async with _kept(scene.replicas.url(scene.leader)) as kept:
        scene.replicas.proxy(scene.leader).partition()
        takeable = scene.renewed() + timedelta(seconds=LEASE_SECONDS)
        async with asyncio.TaskGroup() as group:
            group.create_task(scene.sender.send(of[1].firing()))
            told = await scene.is_rule(of[1])
        _in_time("cut off", told, takeable)
        assert await asyncio.wait_for(kept.read(), PATIENCE_SECONDS) == b""
    scene.refused()
    tried = scene.done()
    scene.replicas.proxy(scene.leader).calm()
    await _is_back(scene)
    scene.refused()
    assert scene.done() == tried
    _all_there(scene, of, written)


async def test_the_leader_stands_still_and_goes_on(
    scene: Scene, control_plane: ControlPlane, fleet: Callable[[int], list[str]]
) -> None:
    of, written = faults(3, fleet(1)), Written(control_plane)
    await scene.sender.send(of[0].firing())
    tried = scene.done()
    async with _kept(scene.replicas.url(scene.leader)) as kept:
        scene.replicas.pause(scene.leader)
        takeable = scene.renewed() + timedelta(seconds=LEASE_SECONDS)
        async with asyncio.TaskGroup() as group:
            # This one is stuck on the warm connection until the process goes on, or the sender gives up.
            group.create_task(scene.sender.send(of[1].firing()))
            await asyncio.to_thread(scene.replicas.wait_for_leader, other_than=scene.leader)
            scene.replicas.resume(scene.leader)
            told = await scene.is_rule(of[1])
        _in_time("paused", told, takeable)
        assert await asyncio.wait_for(kept.read(), PATIENCE_SECONDS) == b""
    scene.refused()
    await scene.sender.send(of[2].firing())
    assert scene.done() == tried
    _all_there(scene, of, written)


async def test_the_leader_is_stopped_gracefully(
    scene: Scene, control_plane: ControlPlane, fleet: Callable[[int], list[str]]
) -> None:
    of, written = faults(2, fleet(1)), Written(control_plane)
    await scene.sender.send(of[0].firing())
    began = time.monotonic()
    await asyncio.to_thread(scene.replicas.end, scene.leader)
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.sender.send(of[1].firing()))
        await scene.is_rule(of[1])
        took = time.monotonic() - began
    leads = await asyncio.to_thread(scene.replicas.wait_for_leader, other_than=scene.leader)
    shown("stopped gracefully", rule_after=took)
    assert leads == scene.other
    assert scene.replicas.service(scene.leader).process.returncode == 0
    assert took < LEASE_SECONDS
    _all_there(scene, of, written)


async def _is_back(scene: Scene) -> None:
    """Wait until the one that led sees again who leads now."""
    holder = scene.replicas.pod(scene.other)

    async def sees() -> bool:
        answer = await asyncio.to_thread(_post, scene.replicas.url(scene.leader))
        return f'held by "{holder}' in answer.text

    await wait_for(sees, timeout=PATIENCE_SECONDS, what="the one that led to see who leads")


def _in_time(what: str, told: datetime, takeable: datetime) -> None:
    took = (told - takeable).total_seconds()
    shown(f"leader {what}", rule_after_the_lease_passed=took)
    # Not before it: else two would have led at once.
    assert 0 < took <= WITHIN_SECONDS


def _all_there(scene: Scene, of: list[Fault], written: Written) -> None:
    assert all(delivery.accepted for delivery in scene.sender.deliveries)
    assert seen(scene.admin) == expected(of)
    assert written.up_to_now(scene.admin) == {("create", fault.name): 1 for fault in of}
