"""Records on Nodes on the real API server, with the permissions that ship: many at once, conflicts, Nodes that go.

What every backend promises is in test_backends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import FAULTS, Effect
from remediator.app import WEBHOOK, Webhook, make_app
from remediator.assembly import Parts, Terms, assemble
from remediator.audit import Audit
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.node_taint import NodeRecords, NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.budget import Limits
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.election import AlwaysLeads
from remediator.errors import ConflictError
from remediator.node_cache import NodeCache
from remediator.node_records import ANNOTATION
from remediator.policy import Policy
from remediator.records import Key, State
from tests.remediator.conftest import AsServed
from tests.remediator.fakes import eventually
from tests.remediator.live import USER, firing, now, running
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, Json, body, on_node, record
from tests.stack.apiproxy import ApiProxy
from tests.stack.pipeline import install
from tests.stack.process import wait_until
from tests.stack.trouble import WATCH, Strike, Trouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp.test_utils import TestClient
    from pytest_aiohttp import AiohttpClient

    from remediator.records import Record
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

DEVICES = range(16)
FOREIGN = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, {"key": "other", "effect": "PreferNoSchedule"}]


@dataclass
class Conflicts:
    """So many writes of Nodes meet a conflict, the rest passes; None: all of them do."""

    left: list[None] | None
    met: list[None]
    blocks: bool = False

    def strike(self, method: str, path: str, /) -> Strike | None:
        """Strike writes of Nodes alone."""
        if method != "PATCH" or not path.startswith("/api/v1/nodes/") or self.left == []:
            return None
        if self.left is not None:
            self.left.pop()
        self.met.append(None)
        return Strike(Trouble.CONFLICT)


@dataclass(frozen=True)
class OnNodes:
    """A running remediator with a Node without Neuron slices around it, and the administrator's view of that."""

    client: TestClient[Any, Any]
    parts: Parts
    caches: Caches
    admin: Admin
    plane: ControlPlane
    proxy: ApiProxy

    async def post(self, *alerts: Json) -> int:
        """Post alerts in one notification; returns the status."""
        async with self.client.post(WEBHOOK, data=body(*alerts)) as response:
            return response.status

    async def node(self) -> Json:
        """The Node as the API server holds it."""
        return await asyncio.to_thread(self.admin.get, "Node", NODE)

    async def book(self) -> Json:
        """What the annotation says."""
        text = (await self.node())["metadata"].get("annotations", {}).get(ANNOTATION)
        book: Json = json.loads(text) if text else {}
        return book

    async def ours(self) -> list[tuple[str, str]]:
        """Value and effect of each taint with our key."""
        taints = (await self.node())["spec"].get("taints", [])
        return [(taint.get("value", ""), taint["effect"]) for taint in taints if taint["key"] == TAINT_KEY]

    def held(self) -> dict[Key, Record]:
        """The records that the remediator knows of."""
        return {one.key: one for one in self.caches.node_records.all()}

    def conflicts(self, times: int | None) -> Conflicts:
        """Let writes of Nodes meet conflicts from now on."""
        plan = Conflicts(None if times is None else [None] * times, [])
        self.proxy._on_loop(lambda: self.proxy._follow(plan))
        return plan


@pytest.fixture
async def on_nodes(
    control_plane: ControlPlane, admin: Admin, aiohttp_client: AiohttpClient, tmp_path: Path
) -> AsyncIterator[OnNodes]:
    """Give it, with the budget lifted, and with a way to make trouble."""
    install(control_plane)
    admin.node(NODE, devices=0)
    admin.patch("Node", NODE, {"spec": {"taints": FOREIGN}})
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(ApiProxy(control_plane, tmp_path))
        api = await stack.enter_async_context(connect(proxy.kubeconfig(USER)))
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
        backend = PerNodeBackend(
            rules=DeviceTaintRuleBackend(api, caches.records),
            nodes=NodeTaintBackend(api, caches.node_cache, caches.node_records, now),
        )
        parts = assemble(
            backend=backend,
            held=backend.records,
            surroundings=caches,
            leadership=AlwaysLeads(),
            terms=Terms(policy=Policy(taint_key=TAINT_KEY), limits=Limits(max_unavailable=None, max_new=None)),
            traces=Audit(),
            clock=now,
            elapsed=time.monotonic,
        )
        app = make_app(Webhook(parts.remediator, parts.metrics, None), parts.remediator, parts.metrics)
        client: TestClient[Any, Any] = await aiohttp_client(AsServed(app))
        await stack.enter_async_context(running(caches))
        yield OnNodes(client, parts, caches, admin, control_plane, proxy)


def fault_of(device: int) -> str:
    return sorted(FAULTS)[device % len(FAULTS)]


async def test_sixteen_devices_at_once_are_one_taint_and_sixteen_records(on_nodes: OnNodes) -> None:
    """All told at the same time, in notifications of their own; and then all cleared in one."""
    alerts = [firing(device=str(device), fault=fault_of(device)) for device in DEVICES]
    assert set(await asyncio.gather(*(on_nodes.post(alert) for alert in alerts))) == {200}

    entries = (await on_nodes.book())["records"]
    assert {(entry["device"], entry["fault"]) for entry in entries} == {
        (str(device), fault_of(device)) for device in DEVICES
    }
    assert await on_nodes.ours() == [(FAULTS["hbm"].value, "NoSchedule")]
    assert len(on_nodes.held()) == 16
    unlatched = {key: one for key, one in on_nodes.held().items() if not one.latched}
    clears = [
        firing(device=str(key.device), fault=key.fault, remediation="clear", episode=one.episode)
        for key, one in unlatched.items()
    ]
    assert await on_nodes.post(*clears) == 200

    assert on_nodes.held().keys() == {
        Key(NODE, device, fault_of(device)) for device in DEVICES if FAULTS[fault_of(device)].latched
    }
    assert len((await on_nodes.book())["records"]) == len(on_nodes.held()) == 3


async def test_nothing_of_ours_is_left_when_all_is_clear_and_nothing_of_others_was_touched(on_nodes: OnNodes) -> None:
    before = await on_nodes.node()
    alerts = [firing(device=str(device), fault="link_host") for device in DEVICES]
    assert await on_nodes.post(*alerts) == 200
    assert (await on_nodes.node())["spec"]["taints"][:2] == FOREIGN
    clears = [
        firing(device=str(key.device), fault=key.fault, remediation="clear", episode=one.episode)
        for key, one in on_nodes.held().items()
    ]
    assert set(await asyncio.gather(*(on_nodes.post(clear) for clear in clears))) == {200}

    after = await on_nodes.node()
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations", {}).keys() <= {*before["metadata"].get("annotations", {}), _TTL}
    assert on_nodes.held() == {}


_TTL = "node.alpha.kubernetes.io/ttl"  # by the controller manager, some time after a Node came


async def test_a_write_is_seen_before_its_event_and_repeats_are_no_writes(on_nodes: OnNodes) -> None:
    alert = firing(fault="link_efa")
    assert await on_nodes.post(alert) == 200
    version = (await on_nodes.node())["metadata"]["resourceVersion"]
    for _ in range(20):
        assert await on_nodes.post(alert) == 200
    assert (await on_nodes.book())["records"][0]["fault"] == "link_efa"
    held = on_nodes.held()[Key(NODE, 3, "link_efa")]
    assert held.stored is not None
    assert int(held.stored.resource_version) <= int(version)

    clear = firing(fault="link_efa", remediation="clear", episode=held.episode)
    assert [await on_nodes.post(clear), await on_nodes.ours()] == [200, []]
    assert ANNOTATION not in (await on_nodes.node())["metadata"].get("annotations", {})


async def test_five_conflicts_are_answered_by_a_new_look_each(on_nodes: OnNodes) -> None:
    """Busy nodes meet them all the time (rancher/dashboard#679)."""
    plan = on_nodes.conflicts(5)
    assert await on_nodes.post(firing()) == 200

    assert len(plan.met) == 5
    assert await on_nodes.ours() == [(FAULTS["hbm"].value, "NoSchedule")]
    assert on_nodes.parts.metrics.registry.get_sample_value(
        "neuron_remediator_actions_total", {"action": "create", "backend": "node-taint", "result": "conflict"}
    ) == len(plan.met)


async def test_conflicts_without_end_are_the_sender_s_to_try_again(on_nodes: OnNodes) -> None:
    """And they are told: Alertmanager counts them, and so do we."""
    plan = on_nodes.conflicts(None)
    assert await on_nodes.post(firing()) == 503
    assert len(plan.met) == 6
    assert on_nodes.held() == {}
    assert await on_nodes.ours() == []
    value = on_nodes.parts.metrics.registry.get_sample_value
    assert value("neuron_remediator_alerts_total", {"outcome": "failed"}) == 1
    on_nodes.conflicts(0)

    assert await on_nodes.post(firing()) == 200
    assert await on_nodes.ours() == [(FAULTS["hbm"].value, "NoSchedule")]


async def test_a_hand_that_takes_the_taint_off_meets_the_next_firing(on_nodes: OnNodes) -> None:
    """The records say it is there: what the Node says counts."""
    alert = firing(fault="link_efa")
    assert await on_nodes.post(alert) == 200
    await asyncio.to_thread(on_nodes.admin.patch, "Node", NODE, {"spec": {"taints": FOREIGN}})
    key = Key(NODE, 3, "link_efa")
    await eventually(lambda: on_nodes.held()[key].state is State.WITHHELD, what="the hand in the cache")
    assert on_nodes.held()[key].taint.effect is Effect.NONE

    assert await on_nodes.post(alert) == 200
    assert await on_nodes.ours() == [(FAULTS["link_efa"].value, "NoSchedule")]
    assert on_nodes.held()[key].state is State.ACTIVE


async def test_a_hand_that_breaks_the_annotation_loses_nothing_but_that(on_nodes: OnNodes) -> None:
    """What is on the Node then is somebody else's taint; it keeps work off as ours did."""
    alert = firing(fault="link_efa")
    assert await on_nodes.post(alert) == 200
    broken = {"metadata": {"annotations": {ANNOTATION: "{"}}}
    await asyncio.to_thread(on_nodes.admin.patch, "Node", NODE, broken)
    await eventually(lambda: on_nodes.held() == {}, what="the hand in the cache")

    assert await on_nodes.post(alert) == 200
    assert await on_nodes.ours() == [(FAULTS["link_efa"].value, "NoSchedule")]
    assert on_nodes.held()[Key(NODE, 3, "link_efa")].state is State.COVERED


async def test_what_is_on_a_node_is_found_again_after_a_restart(on_nodes: OnNodes, control_plane: ControlPlane) -> None:
    """And stands as it was, to the last field."""
    alerts = [firing(device=str(device), fault=fault_of(device)) for device in DEVICES]
    assert await on_nodes.post(*alerts) == 200
    async with connect(control_plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
        async with running(caches):
            found = {one.key: one for one in caches.node_records.all()}

    # In the version in which each was seen first.
    known = {key: replace(one, stored=None) for key, one in on_nodes.held().items()}
    assert {key: replace(one, stored=None) for key, one in found.items()} == known


# The backend alone, with no watch to tell it of anything


@dataclass(frozen=True)
class Alone:
    """The backend, what it works on, and the administrator."""

    backend: NodeTaintBackend
    nodes: NodeCache
    records: NodeRecords
    admin: Admin
    node_uid: str

    def record(self, fault: str = "link_efa", device: int = 3) -> Record:
        """A record to write."""
        one = record(fault, node_uid=self.node_uid, target=on_node(device))
        return replace(one, key=Key(NODE, device, fault))

    async def do(self, *steps: str) -> None:
        """What the administrator does meanwhile."""
        for step in steps:
            if step == "delete":
                await asyncio.to_thread(self.admin.delete, "Node", NODE)
                await asyncio.to_thread(
                    wait_until, lambda: self.admin.find("Node", NODE) is None, timeout=10, what="the Node to go"
                )
            elif step == "make":
                await asyncio.to_thread(self.admin.node, NODE, 0)


@pytest.fixture
async def alone(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Alone]:
    """Give it, with a Node in the cluster of which it knows nothing yet."""
    install(control_plane)
    made = admin.node(NODE, devices=0)
    async with connect(control_plane.kubeconfig(USER)) as api:
        records = NodeRecords(DRIVER)
        nodes = NodeCache(api, elapsed=time.monotonic, on_change=lambda: None)
        nodes.on_node = records.take
        yield Alone(NodeTaintBackend(api, nodes, records, now), nodes, records, admin, made["metadata"]["uid"])


async def test_a_node_whose_event_has_not_come_is_read_and_written(alone: Alone) -> None:
    """And the events that come then, of the time before, take nothing back."""
    before = await alone.nodes.find(NODE)
    assert before is not None
    assert alone.nodes.get(NODE) is None
    await alone.backend.create(alone.record())
    written = alone.backend.record(alone.record().key)
    assert written is not None

    alone.nodes.put(before)
    assert alone.backend.record(written.key) == written
    alone.nodes.replace([before], before.metadata.resource_version)
    assert alone.backend.record(written.key) == written


@pytest.mark.parametrize("known", [True, False], ids=["known", "not-known"])
async def test_a_node_that_is_gone_is_a_conflict(alone: Alone, *, known: bool) -> None:
    """Whoever meets it looks again, and finds out that it is gone."""
    held = None
    if known:
        await alone.backend.create(alone.record("hbm"))
        held = alone.backend.record(alone.record("hbm").key)
    await alone.do("delete")

    with pytest.raises(ConflictError, match="gone"):
        await alone.backend.create(alone.record())
    with pytest.raises(ConflictError, match="gone"):
        await alone.backend.delete(held or alone.record("hbm"))


async def test_a_node_that_came_back_does_not_get_the_records_of_the_one_before(alone: Alone) -> None:
    """The cache still has the machine that is gone; the guard is the version, which no two machines share."""
    await alone.backend.create(alone.record("hbm"))
    await alone.do("delete", "make")

    with pytest.raises(ConflictError):
        await alone.backend.create(alone.record())
    await alone.backend.refresh(alone.record().key)
    assert list(alone.backend.records()) == []
    new = await asyncio.to_thread(alone.admin.get, "Node", NODE)
    await alone.backend.create(replace(alone.record(), node_uid=new["metadata"]["uid"]))
    (held,) = alone.backend.records()
    assert held.node_uid == new["metadata"]["uid"] != alone.node_uid


async def test_another_record_of_the_same_node_is_no_conflict(alone: Alone) -> None:
    """Each is guarded by itself; the Node's version only tells that nobody else wrote."""
    first = alone.record()
    await alone.backend.create(first)
    held = alone.backend.record(first.key)
    assert held is not None
    await alone.backend.create(alone.record("hbm"))
    await alone.backend.update(replace(held, latched=True))
    with pytest.raises(ConflictError):
        await alone.backend.update(replace(held, latched=False))

    latched = alone.backend.record(first.key)
    assert latched is not None
    assert latched.latched
    await alone.backend.delete(latched)
    assert {one.key.fault for one in alone.backend.records()} == {"hbm"}


async def test_an_update_that_changes_no_effect_keeps_the_time(alone: Alone) -> None:
    """The taint's and the record's: what counts tolerations, and what counts the budget."""
    times = iter([NOW, NOW.replace(hour=13), NOW.replace(hour=14)])
    alone.backend._clock = lambda: current[0]
    current = [next(times)]
    await alone.backend.create(alone.record())
    held = alone.backend.record(alone.record().key)
    assert held is not None
    current[0] = next(times)
    await alone.backend.update(replace(held, reason="another"))
    same = alone.backend.record(held.key)
    assert same is not None
    assert same.tainted_since == NOW
    current[0] = next(times)
    await alone.backend.update(replace(same, taint=replace(same.taint, effect=Effect.NO_EXECUTE)))
    stronger = alone.backend.record(held.key)
    assert stronger is not None

    assert stronger.tainted_since == NOW.replace(hour=14)
    (taint,) = (await asyncio.to_thread(alone.admin.get, "Node", NODE))["spec"]["taints"]
    assert (taint["effect"], taint["timeAdded"]) == ("NoExecute", "2026-11-30T14:00:00Z")


async def test_each_record_is_told_of_once(alone: Alone) -> None:
    """And what it was, and is, is what is read at that moment."""
    told: Counter[str] = Counter()
    known: dict[Key, Record] = {}

    def on_change(before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        key = (before or after or alone.record()).key
        assert before == known.pop(key, None)
        assert after == alone.backend.record(key)
        if after is not None:
            known[key] = after
        told["made" if before is None else "gone" if after is None else "changed"] += 1

    alone.backend.on_change = on_change
    await asyncio.gather(*(alone.backend.create(alone.record(device=device)) for device in DEVICES))
    assert told == {"made": 16}
    await asyncio.gather(*(alone.backend.update(replace(one, latched=True)) for one in tuple(known.values())))
    assert told == {"made": 16, "changed": 16}
    await asyncio.gather(*(alone.backend.delete(one) for one in tuple(known.values())))
    assert told == {"made": 16, "changed": 16, "gone": 16}
    assert known == {}


def test_watches_are_not_struck() -> None:
    """The plan is about writes."""
    assert Conflicts(None, []).strike(WATCH, "/api/v1/nodes/a") is None
