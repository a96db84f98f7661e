"""What a newer release, or another `--taint.key`, makes of the records of the one before.

Records are found by their mark, whatever key or fault they name. Nothing is free on the way, and nobody is evicted for
a second time: what is latched moves at once, anything else with its next firing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from alerts.faults import FAULTS, Effect
from remediator import node_records
from remediator.inventory import Node
from remediator.records import Key, Record, Taint, episode_of
from remediator.rule_records import object_name, to_object
from remediator.targets import Target
from tests.remediator.on_cluster import OnCluster, on_cluster
from tests.remediator.samples import DRIVER, NODE, record
from tests.stack.pipeline import LIFTED
from tests.stories.watching import evictions
from tests.storms.on_nodes import (
    ANNOTATION,
    KEY,
    becomes,
    held,
    node_writes,
    ours,
    records,
    restarted_with,
    settled_node,
    shown_state,
    tell,
)
from tests.storms.storm import Fault, Written, seen
from tests.storms.versions import Versions, watching

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.shapes import Object

pytestmark = pytest.mark.stack

OTHER = "ip-10-1-1-201.ec2.internal"
NEW_KEY = "example.com/neuron-unhealthy"
GRACE = 600


def fault(kind: str, device: int, node: str = NODE) -> Fault:
    return Fault(Key(node, device, kind), datetime.now(UTC))


def taint_keys(admin: Admin) -> dict[str, tuple[str, str]]:
    """Key and effect of the taint of each rule, by name."""
    return {
        rule["metadata"]["name"]: (rule["spec"]["taint"]["key"], rule["spec"]["taint"]["effect"])
        for rule in admin.rules()
    }


# Another key


async def test_rules_move_to_another_key(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> None:
    """A latched rule has the new key at once and any other keeps the old one until its firing; each is the same rule.

    So no device has two taints of ours, or none, at any version, and who is evicted is not evicted again.
    """
    await asyncio.to_thread(settled_node, admin, NODE, 16)
    latched, evicting, mild = of = [fault("hbm", 3), fault("link_host", 5), fault("link_efa", 6)]
    pods = {device: f"migrated-{device}" for device in (3, 4, 5)}
    for device, pod in pods.items():
        await asyncio.to_thread(admin.pod, pod, device=f"neuron-device-{device}", grace=GRACE)
        await asyncio.to_thread(admin.scheduled, pod)
    with restarted_with(control_plane, tmp_path, *LIFTED) as service:
        await asyncio.to_thread(tell, service, *(one.firing() for one in of))
        await asyncio.to_thread(admin.evicted, pods[3])
        await asyncio.to_thread(admin.evicted, pods[5])
    before = {rule["metadata"]["name"]: rule for rule in admin.rules()}
    async with watching(control_plane, DeviceTaintRule=admin.path("DeviceTaintRule")) as versions:
        with restarted_with(control_plane, tmp_path, *LIFTED, f"--taint.key={NEW_KEY}") as service:
            halfway = {
                latched.name: (NEW_KEY, "NoExecute"),
                evicting.name: (KEY, "NoExecute"),
                mild.name: (KEY, "NoSchedule"),
            }
            await asyncio.to_thread(becomes, lambda: taint_keys(admin), halfway, "the latched rule to have the new key")
            states = [("NoExecute", "active"), ("NoExecute", "withheld"), ("NoSchedule", "withheld")]
            await asyncio.to_thread(
                becomes, lambda: [shown_state(service, one) for one in of], states, "the others to ask for a firing"
            )
            assert taint_keys(admin) == halfway
            await asyncio.to_thread(tell, service, *(one.firing() for one in of))
        await versions.until({**admin.get("DeviceTaintRule", mild.name), "kind": "DeviceTaintRule"})
    assert {key for key, _ in taint_keys(admin).values()} == {NEW_KEY}
    assert seen(admin) == {one.name: one.standing() for one in of}
    assert {one.change for one in versions.seen} <= {"ADDED", "MODIFIED"}
    assert {one.object["spec"]["taint"]["effect"] for one in versions.seen} == {"NoExecute", "NoSchedule"}
    for rule in admin.rules():
        old = before[rule["metadata"]["name"]]
        assert rule["metadata"]["uid"] == old["metadata"]["uid"]
        assert rule["spec"]["taint"]["timeAdded"] == old["spec"]["taint"]["timeAdded"]
    assert {device: len(evictions(control_plane, pod)) for device, pod in pods.items()} == {3: 1, 4: 0, 5: 1}


def keys_at(versions: Versions, node: str = NODE) -> list[set[str]]:
    """The keys of our taints on a Node at each version, without repetitions in a row."""
    found: list[set[str]] = []
    for one in (one for one in versions.in_order() if one.object["metadata"]["name"] == node):
        keys = {taint["key"] for taint in one.object["spec"].get("taints", ())} & {KEY, NEW_KEY}
        if found[-1:] != [keys]:
            found.append(keys)
    return found


async def test_the_taint_of_a_node_moves_to_another_key(
    bare_plane: ControlPlane, bare_admin: Admin, tmp_path: Path
) -> None:
    """A Node has both taints only while a record that is not latched waits for its firing, and none at no version."""
    await asyncio.to_thread(settled_node, bare_admin, NODE)
    await asyncio.to_thread(settled_node, bare_admin, OTHER)
    mild = fault("link_efa", 6)
    of = [fault("hbm", 3), mild, fault("sram", 1, OTHER)]
    with restarted_with(bare_plane, tmp_path, *LIFTED) as service:
        await asyncio.to_thread(tell, service, *(one.firing() for one in of))
    before = {one: held(bare_admin, one) for one in of}
    nodes = f"/api/v1/nodes?fieldSelector=metadata.name={NODE}"
    async with watching(bare_plane, Node=nodes) as versions:
        with restarted_with(bare_plane, tmp_path, *LIFTED, f"--taint.key={NEW_KEY}") as service:
            both = ([(FAULTS["link_efa"].value, "NoSchedule")], [(FAULTS["hbm"].value, "NoSchedule")])
            await asyncio.to_thread(
                becomes,
                lambda: (ours(bare_admin, NODE), ours(bare_admin, NODE, NEW_KEY)),
                both,
                "the latched one to move",
            )
            await asyncio.to_thread(
                becomes, lambda: ours(bare_admin, OTHER), [], "the other Node to have the new key alone"
            )
            assert ours(bare_admin, OTHER, NEW_KEY) == [(FAULTS["sram"].value, "NoSchedule")]
            await asyncio.to_thread(
                becomes,
                lambda: shown_state(service, mild),
                ("NoSchedule", "withheld"),
                "the other one to ask for a firing",
            )
            assert held(bare_admin, mild).key == KEY
            written = Written(bare_plane)
            await asyncio.to_thread(tell, service, *(one.firing() for one in of), *(one.firing() for one in of))
            await versions.until({**bare_admin.get("Node", NODE), "kind": "Node"})
            await asyncio.to_thread(written.up_to_now, bare_admin)
    assert node_writes(written) == ["patch"], "the one that waited, once"
    assert keys_at(versions) == [{KEY}, {KEY, NEW_KEY}, {NEW_KEY}]
    for one in of:
        assert held(bare_admin, one) == before[one]._replace(key=NEW_KEY)


# Another table


FORMER = {"memory_fault": "hbm", "cable_fault": "link_efa", "gone_fault": None}
"""What the release before called its faults, and what they are called now."""


def of_before(kind: str, device: int, *, uid: str, latched: bool, effect: Effect) -> Record:
    """A record as the release before has left it."""
    began = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    return replace(
        record("link_efa", started=began, node_uid=uid, latched=latched),
        key=Key(NODE, device, kind),
        target=Target(DRIVER, NODE, f"neuron-device-{device}"),
        taint=Taint(KEY, FAULTS[FORMER.get(kind) or "link_switch"].value, effect),
        reason="NeuronDeviceOfBefore",
    )


def left_behind(uid: str, memory: Effect) -> list[Record]:
    """One record of each name: latched, not latched, and of a fault that is no more."""
    return [
        of_before("memory_fault", 3, uid=uid, latched=True, effect=memory),
        of_before("cable_fault", 6, uid=uid, latched=False, effect=Effect.NO_SCHEDULE),
        of_before("gone_fault", 7, uid=uid, latched=False, effect=Effect.NO_SCHEDULE),
        of_before("newer_fault", 8, uid=uid, latched=True, effect=Effect.NO_SCHEDULE),
    ]


def notes(rule: Object) -> dict[str, str]:
    marks = rule["metadata"]["annotations"]
    return {name: marks[f"neuron-remediator/{name}"] for name in ("episode", "first-fired", "latched")}


async def test_rules_of_renamed_and_removed_faults(control_plane: ControlPlane, admin: Admin) -> None:
    """A renamed fault's rule is succeeded by one of today's name before it goes, a removed one's goes.

    A name that is in neither table may be of a newer release: it stays. The pod on the latched device was evicted by
    the release before, and is not evicted again.
    """
    node = await asyncio.to_thread(settled_node, admin, NODE, 16)
    await asyncio.to_thread(admin.pod, "of-before", device="neuron-device-3", grace=GRACE)
    await asyncio.to_thread(admin.scheduled, "of-before")
    old = left_behind(node["metadata"]["uid"], Effect.NO_EXECUTE)
    for one in old:
        await asyncio.to_thread(admin.create, to_object(one, "resource.k8s.io/v1"))
    await asyncio.to_thread(admin.evicted, "of-before")
    wanted = {object_name(Key(NODE, *key)) for key in ((3, "hbm"), (6, "link_efa"), (8, "newer_fault"))}
    async with (
        watching(control_plane, DeviceTaintRule=admin.path("DeviceTaintRule")) as versions,
        on_cluster(control_plane, former=FORMER) as remediator,
    ):
        await asyncio.to_thread(
            becomes, lambda: {rule["metadata"]["name"] for rule in admin.rules()}, wanted, "the rules of today's names"
        )
        await told_as_removed(versions, 3)
        for one, (device, kind) in zip(old, ((3, "hbm"), (6, "link_efa")), strict=False):
            rule = await asyncio.to_thread(admin.get, "DeviceTaintRule", object_name(Key(NODE, device, kind)))
            assert notes(rule) == {
                "episode": one.episode,
                "first-fired": "2026-01-02T03:04:05.000678Z",
                "latched": str(one.latched).lower(),
            }
            assert rule["spec"]["taint"]["effect"] == str(one.taint.effect)
            assert rule["spec"]["taint"]["value"] == FAULTS[kind].value
        assert free_devices(versions, {3, 6, 8}, at_first=len(old)) == []
        await ends_as_today(remediator, old[1])
    assert len(evictions(control_plane, "of-before")) == 1


async def told_as_removed(versions: Versions, count: int) -> None:
    """Wait until the watch has told of that many removals."""
    await asyncio.to_thread(
        becomes, lambda: sum(one.change == "DELETED" for one in versions.seen), count, "the old rules to be gone"
    )


async def ends_as_today(remediator: OnCluster, old: Record) -> None:
    """The clear of the spell that the release before has recorded ends the record of today's name."""
    cleared: dict[str, Any] = {"fault": "link_efa", "device": "6", "remediation": "clear", "episode": old.episode}
    fired = Fault(Key(NODE, 6, "link_efa"), old.last_fired)
    assert episode_of(fired.started) == old.episode
    assert remediator.record("link_efa", 6) is not None
    assert await remediator.post(alert_of(**cleared)) == 200
    assert remediator.record("link_efa", 6) is None


def alert_of(**labels: str) -> dict[str, Any]:
    """An alert that fires now."""
    node = {"node": NODE, "alertname": "NeuronDeviceFaultCleared", "severity": "none"}
    return {"status": "firing", "labels": {**node, **labels}, "startsAt": datetime.now(UTC).isoformat()}


def free_devices(versions: Versions, devices: set[int], at_first: int) -> list[tuple[int, int]]:
    """Version and device wherever one of these devices had no rule with an effect, after those there `at_first`."""
    effective: dict[str, int] = {}
    found = []
    for place, (number, change, rule) in enumerate(versions.in_order(), 1):
        name, device = rule["metadata"]["name"], int(rule["metadata"]["labels"]["neuron-remediator/device"])
        effective.pop(name, None)
        if change != "DELETED" and rule["spec"]["taint"]["effect"] != "None":
            effective[name] = device
        if place >= at_first:
            found += [(number, one) for one in devices - set(effective.values())]
    return found


async def test_records_of_renamed_and_removed_faults_on_a_node(bare_plane: ControlPlane, bare_admin: Admin) -> None:
    """The same where records are on Nodes: the Node's taint is there at every version, and fits what is left.

    A second Node has one renamed fault alone, so that no other keeps its taint there.
    """
    old = await left_on(bare_admin, NODE, 4)
    await left_on(bare_admin, OTHER, 1)
    wanted = {(3, "hbm"), (6, "link_efa"), (8, "newer_fault")}
    async with (
        watching(bare_plane, Node="/api/v1/nodes") as versions,
        on_cluster(bare_plane, former=FORMER) as remediator,
    ):
        await asyncio.to_thread(
            becomes,
            lambda: set(records(bare_admin.get("Node", OTHER))),
            {(3, "hbm")},
            "the one record of the other Node",
        )
        await versions.until({**bare_admin.get("Node", OTHER), "kind": "Node"})
        assert keys_at(versions, OTHER) == [{KEY}]
        await asyncio.to_thread(
            becomes, lambda: set(records(bare_admin.get("Node", NODE))), wanted, "the records of today's names"
        )
        last = await asyncio.to_thread(bare_admin.get, "Node", NODE)
        await versions.until({**last, "kind": "Node"})
        assert keys_at(versions) == [{KEY}]
        found = records(last)
        for one, key in zip(old, ((3, "hbm"), (6, "link_efa")), strict=False):
            kept = found[key]
            assert (kept.episode, kept.latched, kept.value) == (
                one.episode,
                str(one.latched).lower(),
                FAULTS[key[1]].value,
            )
            assert kept.first_fired == "2026-01-02T03:04:05.000678Z"
        assert ours(bare_admin, NODE) == [(FAULTS["hbm"].value, "NoSchedule")]
        await ends_as_today(remediator, old[1])
    assert ANNOTATION in last["metadata"]["annotations"]


async def left_on(admin: Admin, name: str, count: int) -> list[Record]:
    """Make a node that bears so many records of the release before."""
    made = await asyncio.to_thread(settled_node, admin, name)
    left = left_behind(made["metadata"]["uid"], Effect.NO_SCHEDULE)[:count]
    old = [replace(one, key=replace(one.key, node=name)) for one in left]
    change = node_records.patch(msgspec.convert(made, Node), old, now=datetime.now(UTC))
    await asyncio.to_thread(admin.patch, "Node", name, change)
    return old
