"""What every backend promises: reads see its own writes, and no write goes over what somebody else has changed.

One class of tests for all; a backend joins with a fixture. The memory backend is trusted in other tests because it
keeps these promises as the real API server does.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import pytest

from alerts.faults import FAULTS, Effect
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend, RecordCache
from remediator.backends.memory import MemoryBackend
from remediator.backends.node_taint import NodeRecords, NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.cluster import connect
from remediator.discovery import rule_version
from remediator.errors import ConflictError
from remediator.node_cache import NodeCache
from remediator.node_records import ANNOTATION
from remediator.records import NEVER, State, episode_of
from remediator.rule_records import object_name
from remediator.targets import Target
from tests.remediator.live import now
from tests.remediator.samples import DRIVER, NODE, STARTED, on_node, record
from tests.stack.pipeline import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from remediator.backends import Backend
    from remediator.records import Key, Record, Stored
    from remediator.targets import AnyTarget
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin


DEVICE = Target(DRIVER, NODE, "neuron-device-3")


class Harness(Protocol):
    """A backend, and the hands of somebody else who works on the same records."""

    backend: Backend
    node_uid: str
    target: AnyTarget

    def name_of(self, key: Key) -> str:
        """The object that bears the record."""

    async def change(self, key: Key) -> None:
        """Change the record behind the backend's back."""

    async def remove(self, key: Key) -> None:
        """Delete the record behind the backend's back."""


class MemoryHarness:
    """A backend without a cluster; somebody else is its other user."""

    def __init__(self, backend: Backend, target: AnyTarget = DEVICE) -> None:
        self.backend = backend
        self.node_uid = "uid-1"
        self.target = target

    def name_of(self, key: Key) -> str:
        """As a rule would be called."""
        return object_name(key)

    async def change(self, key: Key) -> None:
        """Write the same again."""
        held = self.backend.record(key)
        assert held is not None
        await self.backend.update(held)

    async def remove(self, key: Key) -> None:
        """Delete it."""
        held = self.backend.record(key)
        assert held is not None
        await self.backend.delete(held)


class ClusterHarness:
    """Rules on the real API server; somebody else is the administrator. No watch runs: the cache hears nothing."""

    def __init__(self, backend: DeviceTaintRuleBackend, admin: Admin, node_uid: str) -> None:
        self.backend: Backend = backend
        self.node_uid = node_uid
        self.target: AnyTarget = DEVICE
        self._admin = admin

    def name_of(self, key: Key) -> str:
        """The rule."""
        return object_name(key)

    async def change(self, key: Key) -> None:
        """Annotate it, as kubectl would."""
        change = {"metadata": {"annotations": {"somebody": "was-here"}}}
        await asyncio.to_thread(self._admin.patch, "DeviceTaintRule", object_name(key), change)

    async def remove(self, key: Key) -> None:
        """Delete it, as kubectl would."""
        await asyncio.to_thread(self._admin.delete, "DeviceTaintRule", object_name(key))


class NodeHarness:
    """Records on a real Node; somebody else is the administrator. No watch runs: the cache hears nothing."""

    def __init__(self, backend: NodeTaintBackend, admin: Admin, node_uid: str) -> None:
        self.backend: Backend = backend
        self.node_uid = node_uid
        self.target: AnyTarget = on_node()
        self._admin = admin

    def name_of(self, key: Key) -> str:
        """The Node."""
        return key.node

    async def change(self, key: Key) -> None:
        """Label the Node, as kubectl would."""
        change = {"metadata": {"labels": {"somebody": "was-here"}}}
        await asyncio.to_thread(self._admin.patch, "Node", key.node, change)

    async def remove(self, key: Key) -> None:
        """Take the annotation and the taint away, as kubectl would."""
        change = {"metadata": {"annotations": {ANNOTATION: None}}, "spec": {"taints": None}}
        await asyncio.to_thread(self._admin.patch, "Node", key.node, change)


def stored(found: Record | None) -> Stored:
    """Where the cluster holds a record that must be there."""
    assert found is not None
    assert found.stored is not None
    return found.stored


def content(found: Record | None) -> Record:
    """A record that must be there, without what the cluster adds to it."""
    assert found is not None
    return replace(found, stored=None, tainted_since=NEVER)


def sample(harness: Harness, fault: str = "link_efa") -> Record:
    return record(fault, node_uid=harness.node_uid, target=harness.target)


async def created(harness: Harness, fault: str = "link_efa") -> Record:
    written = sample(harness, fault)
    await harness.backend.create(written)
    found = harness.backend.record(written.key)
    assert found is not None
    return found


async def write(harness: Harness, key: Key, step: Callable[[Record], Awaitable[None]], attempts: int = 5) -> None:
    """Write over what is there, anew after a conflict, as the remediator does.

    The eviction controller writes its status into every new rule: a change by somebody else like any other.
    """
    for _ in range(attempts):
        with suppress(ConflictError):
            held = harness.backend.record(key)
            assert held is not None
            return await step(held)
        await harness.backend.refresh(key)
    raise AssertionError(f"{key}: still in conflict")


class BackendContract:
    """The promises."""

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_what_is_created_is_read_at_once(self, harness: Harness, fault: str) -> None:
        """And it is all there."""
        written = sample(harness, fault)
        assert harness.backend.record(written.key) is None
        await harness.backend.create(written)

        found = harness.backend.record(written.key)
        assert content(found) == written
        assert stored(found).name == harness.name_of(written.key)
        assert list(harness.backend.records()) == [found]

    async def test_what_is_there_already_is_not_created_again(self, harness: Harness) -> None:
        """Whoever made it."""
        found = await created(harness)

        with pytest.raises(ConflictError):
            await harness.backend.create(replace(sample(harness), latched=True))
        await harness.backend.refresh(found.key)
        now = harness.backend.record(found.key)
        assert content(now) == content(found)
        assert stored(now).uid == stored(found).uid

    async def test_an_update_is_read_at_once_and_keeps_the_object(self, harness: Harness) -> None:
        """A new object would be a new taint, with a time of its own."""
        found = await created(harness)
        later = STARTED + timedelta(seconds=9)
        changed = replace(
            content(found),
            taint=replace(found.taint, effect=Effect.NO_EXECUTE),
            state=State.WITHHELD,
            latched=True,
            last_fired=later,
            episode=episode_of(later),
        )
        await write(harness, found.key, lambda held: harness.backend.update(replace(changed, stored=held.stored)))

        now = harness.backend.record(found.key)
        assert content(now) == changed
        assert stored(now).uid == stored(found).uid
        assert stored(now).resource_version != stored(found).resource_version

    async def test_an_update_over_what_somebody_has_changed_is_a_conflict(self, harness: Harness) -> None:
        """And a second look ends it."""
        found = await created(harness)
        await harness.change(found.key)

        with pytest.raises(ConflictError):
            await harness.backend.update(replace(found, latched=True))
        await harness.backend.refresh(found.key)
        assert not content(harness.backend.record(found.key)).latched
        await write(harness, found.key, lambda held: harness.backend.update(replace(held, latched=True)))
        now = harness.backend.record(found.key)
        assert content(now).latched
        assert stored(now).uid == stored(found).uid

    async def test_an_update_of_what_is_gone_is_a_conflict_and_makes_nothing(self, harness: Harness) -> None:
        """Server-side apply would make what is not there, but for its guard."""
        found = await created(harness)
        await harness.remove(found.key)

        with pytest.raises(ConflictError):
            await harness.backend.update(replace(found, latched=True))
        await harness.backend.refresh(found.key)
        assert harness.backend.record(found.key) is None
        await harness.backend.create(sample(harness))

    async def test_what_is_deleted_is_gone_at_once(self, harness: Harness) -> None:
        """And stays so after another look."""
        found = await created(harness)
        await write(harness, found.key, harness.backend.delete)

        assert harness.backend.record(found.key) is None
        assert list(harness.backend.records()) == []
        await harness.backend.refresh(found.key)
        assert harness.backend.record(found.key) is None

    async def test_deleting_what_is_gone_is_no_error(self, harness: Harness) -> None:
        """Somebody has already done what was wanted."""
        found = await created(harness)
        await harness.remove(found.key)
        await harness.backend.delete(found)

        assert harness.backend.record(found.key) is None
        await harness.backend.delete(found)

    async def test_deleting_what_somebody_has_changed_is_a_conflict(self, harness: Harness) -> None:
        """The change may be the very reason why it must stay."""
        found = await created(harness)
        await harness.change(found.key)

        with pytest.raises(ConflictError):
            await harness.backend.delete(found)
        await harness.backend.refresh(found.key)
        assert content(harness.backend.record(found.key)) == content(found)
        await write(harness, found.key, harness.backend.delete)
        assert harness.backend.record(found.key) is None

    async def test_a_successor_of_the_same_name_is_not_touched_in_its_place(self, harness: Harness) -> None:
        """The name is the same for the same fault, for ever; only the UID tells them apart."""
        found = await created(harness)
        await harness.remove(found.key)
        await harness.backend.refresh(found.key)
        successor = await created(harness)
        assert stored(successor).uid != stored(found).uid

        with pytest.raises(ConflictError):
            await harness.backend.delete(found)
        with pytest.raises(ConflictError):
            await harness.backend.update(replace(found, latched=True))
        await harness.backend.refresh(found.key)
        now = harness.backend.record(found.key)
        assert content(now) == content(successor)
        assert stored(now).uid == stored(successor).uid

    async def test_records_of_different_faults_do_not_touch_each_other(self, harness: Harness) -> None:
        """All written at once."""
        await asyncio.gather(*(created(harness, fault) for fault in FAULTS))
        await write(harness, sample(harness, "hbm").key, harness.backend.delete)

        assert {one.key.fault for one in harness.backend.records()} == set(FAULTS) - {"hbm"}


class TestMemory(BackendContract):
    """Without a cluster."""

    @pytest.fixture
    def harness(self) -> Harness:
        """Nothing to set up."""
        return MemoryHarness(MemoryBackend())


class TestPerNode(BackendContract):
    """Two as one, of which each record is in one."""

    @pytest.fixture(params=[DEVICE, on_node()], ids=["device", "node"])
    def harness(self, request: pytest.FixtureRequest) -> Harness:
        """Nothing to set up."""
        return MemoryHarness(PerNodeBackend(MemoryBackend(), MemoryBackend()), request.param)


class TestDeviceTaintRule(BackendContract):
    """On the real API server, with the permissions that ship."""

    @pytest.fixture
    async def harness(self, control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Harness]:
        """Make the node that owns the records, and act as the remediator."""
        install(control_plane)
        node = admin.node(NODE)
        async with connect(control_plane.kubeconfig("neuron-remediator")) as api:
            cache = RecordCache()
            cache.version = await rule_version(api)
            backend = DeviceTaintRuleBackend(api, cache)
            yield ClusterHarness(backend, admin, node["metadata"]["uid"])


class TestNodeTaint(BackendContract):
    """On the real API server, with the permissions that ship.

    A record has no object of its own there, so two promises are kept in other words.
    """

    @pytest.fixture
    async def harness(self, control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Harness]:
        """Make the node that bears the records, and act as the remediator."""
        install(control_plane)
        node = admin.node(NODE, devices=0)
        async with connect(control_plane.kubeconfig("neuron-remediator")) as api:
            records = NodeRecords(DRIVER)
            nodes = NodeCache(api, elapsed=time.monotonic, on_change=lambda: None)
            nodes.on_node = records.take
            backend = NodeTaintBackend(api, nodes, records, now)
            yield NodeHarness(backend, admin, node["metadata"]["uid"])

    async def test_deleting_what_is_gone_is_no_error(self, harness: Harness) -> None:
        """Once it is known: until then, whatever has changed the Node might have changed the record."""
        found = await created(harness)
        await harness.remove(found.key)
        with pytest.raises(ConflictError):
            await harness.backend.delete(found)
        await harness.backend.refresh(found.key)
        assert harness.backend.record(found.key) is None

        await harness.backend.delete(found)

    async def test_a_successor_of_the_same_name_is_not_touched_in_its_place(self, harness: Harness) -> None:
        """It is told by the version in which it was written."""
        found = await created(harness)
        await harness.remove(found.key)
        await harness.backend.refresh(found.key)
        successor = await created(harness)
        assert stored(successor) != stored(found)

        with pytest.raises(ConflictError):
            await harness.backend.delete(found)
        with pytest.raises(ConflictError):
            await harness.backend.update(replace(found, latched=True))
        await harness.backend.refresh(found.key)
        assert harness.backend.record(found.key) == successor
