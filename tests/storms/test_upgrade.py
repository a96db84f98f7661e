"""A cluster that is upgraded under a running remediator: what it knows goes over to how the new release keeps it.

The control planes share one etcd; the API server is away for some seconds, and the controllers with it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS
from remediator.records import Key
from tests.stack.http import HTTPError
from tests.stack.kube import Admin
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_for
from tests.stack.sender import Sender
from tests.stories.watching import evictions
from tests.storms.on_nodes import (
    ANNOTATION,
    NeverFree,
    becomes,
    held,
    node_writes,
    ours,
    restarted_with,
    settled_node,
    tell,
)
from tests.storms.storm import Fault, Written, seen, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import PlaneFactory
    from tests.stack.controlplane import ControlPlane
    from tests.stack.pipeline import Service
    from tests.stack.shapes import Object

pytestmark = pytest.mark.stack

WITH_SLICES, WITHOUT = "ip-10-9-0-1.ec2.internal", "ip-10-9-0-2.ec2.internal"
GRACE = 600
"""In seconds. A pod that is asked to end is there to the end of the test, so that it may be asked twice."""

HOUR = {
    "key": "neuron.aws.com/device-unhealthy",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": 3600,
}


def fault(kind: str, device: int, node: str = WITH_SLICES) -> Fault:
    return Fault(Key(node, device, kind), datetime.now(UTC))


def uses(admin: Admin, device: int, **more: object) -> str:
    """Make a pod that uses that device of the node with slices; returns its name."""
    name = f"upgraded-{device}"
    admin.pod(name, device=f"neuron-device-{device}", node=WITH_SLICES, grace=GRACE, **more)  # type: ignore[arg-type]
    assert admin.scheduled(name) == f"neuron-device-{device}"
    return name


def ending(admin: Admin, pod: str) -> bool:
    return "deletionTimestamp" in admin.get("Pod", pod)["metadata"]


def notes(rule: Object, *names: str) -> tuple[str, ...]:
    """What a rule says of its record."""
    return tuple(rule["metadata"]["annotations"][f"neuron-remediator/{name}"] for name in names)


async def upgraded(plane: ControlPlane, service: Service, meanwhile: Fault) -> None:
    """Upgrade to 1.37; a fault that comes while the API server is away is taken when it is back."""

    async def away() -> bool:
        return not await asyncio.to_thread(_serves, plane)

    async with Sender(service.url, token=TOKEN, deadline=90) as sender, asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(plane.upgrade))
        await wait_for(away, timeout=20, what="the API server to be away")
        delivery = await sender.send(meanwhile.firing())
        assert delivery.statuses[200] == 1
        shown("sent while the API server was away", statuses=dict(delivery.statuses))
    assert Admin(plane).version().startswith("v1.37.")


def _serves(plane: ControlPlane) -> bool:
    try:
        return bool(Admin(plane).version())
    except (OSError, HTTPError):
        return False


async def test_records_on_nodes_become_rules(make_plane: PlaneFactory, tmp_path: Path) -> None:
    """1.36 as its defaults are → 1.37: each record moves as it is, its device is never free, nobody is evicted twice.

    Only who uses a device with a fault that evicts is evicted, and only now that the device can be told apart; for what
    is not latched it takes a firing.
    """
    plane = await asyncio.to_thread(make_plane, kubernetes="1.36", rules="none")
    admin = Admin(plane)
    await asyncio.to_thread(settled_node, admin, WITH_SLICES, 16)
    await asyncio.to_thread(settled_node, admin, WITHOUT)
    pods = {device: await asyncio.to_thread(uses, admin, device) for device in (3, 4, 5, 6)}
    latched, evicting, mild, stays = (
        fault("hbm", 3),
        fault("link_host", 5),
        fault("link_efa", 6),
        fault("sram", 2, WITHOUT),
    )
    moving = (latched, evicting, mild)
    with ExitStack() as stack:
        service = await asyncio.to_thread(stack.enter_context, restarted_with(plane, tmp_path, *LIFTED))
        await asyncio.to_thread(tell, service, *(one.firing() for one in (*moving, stays)))
        before = {one: held(admin, one) for one in (*moving, stays)}
        assert {one.brief for one in before.values()} == {("NoSchedule", "active")}
        looking = [stack.enter_context(NeverFree(Admin(plane), one)) for one in moving]

        late = fault("sram", 7)
        await upgraded(plane, service, late)
        await asyncio.to_thread(becomes, lambda: ours(admin, WITH_SLICES), [], "the Node's taint to go")
        waits = evicting.standing()._replace(effect="NoSchedule", state="withheld")
        rules = {one.name: one.standing() for one in (latched, mild, late)} | {evicting.name: waits}
        await asyncio.to_thread(becomes, lambda: seen(admin), rules, "the records to be rules")
        await asyncio.to_thread(
            becomes, lambda: ending(admin, pods[3]), True, "the pod on the latched device to be evicted"
        )
        assert not any(ending(admin, pods[device]) for device in (4, 5, 6))
        await asyncio.to_thread(tell, service, *(one.firing() for one in (*moving, stays, late)))
        await asyncio.to_thread(becomes, lambda: ending(admin, pods[5]), True, "the other pod to be evicted")
        await asyncio.to_thread(tell, service, *(one.firing() for one in (*moving, stays, late)))

    assert seen(admin) == {one.name: one.standing() for one in (*moving, late)}
    for one in moving:
        rule = admin.get("DeviceTaintRule", one.name)
        latch = str(FAULTS[one.key.fault].latched).lower()
        assert notes(rule, "first-fired", "episode", "latched") == (before[one].first_fired, before[one].episode, latch)
    assert ANNOTATION not in admin.get("Node", WITH_SLICES)["metadata"]["annotations"]
    assert held(admin, stays) == before[stays]
    assert [one.free for one in looking] == [[]] * 3
    assert {device: len(evictions(plane, pod)) for device, pod in pods.items()} == {3: 1, 4: 0, 5: 1, 6: 0}
    shown("upgrade from none", looks=[one.looks for one in looking], blind=[one.blind for one in looking])
    assert all(one.blind and one.looks for one in looking)


async def test_rules_in_v1beta2_are_the_same_rules_in_v1(make_plane: PlaneFactory, tmp_path: Path) -> None:
    """1.36 with v1beta2 → 1.37: we write nothing, so that no clock starts again and nobody is evicted twice."""
    plane = await asyncio.to_thread(make_plane, kubernetes="1.36", rules="v1beta2")
    admin = Admin(plane)
    await asyncio.to_thread(settled_node, admin, WITH_SLICES, 16)
    evicted, other = [await asyncio.to_thread(uses, admin, device) for device in (3, 4)]
    patient = await asyncio.to_thread(lambda: uses(admin, 5, tolerations=[HOUR]))
    of = [fault("hbm", 3), fault("link_host", 5), fault("link_efa", 6)]
    with restarted_with(plane, tmp_path, *LIFTED) as service:
        await asyncio.to_thread(tell, service, *(one.firing() for one in of))
        assert admin.served("DeviceTaintRule") == "v1beta2"
        await asyncio.to_thread(
            becomes, lambda: ending(admin, evicted), True, "the pod on the faulty device to be evicted"
        )
        before = {rule["metadata"]["name"]: rule for rule in admin.rules()}
        assert seen(admin) == {one.name: one.standing() for one in of}
        written = Written(plane)

        late = fault("sram", 7)
        await upgraded(plane, service, late)
        assert admin.served("DeviceTaintRule") == "v1"
        await asyncio.to_thread(tell, service, *(one.firing() for one in (*of, late)))
        # Clearing and raising go on, in the version that is served now.
        await asyncio.to_thread(tell, service, of[2].over())
        assert seen(admin) == {one.name: one.standing() for one in (of[0], of[1], late)}
        rules = await asyncio.to_thread(written.up_to_now, admin)
    assert rules == {("create", late.name): 1, ("delete", of[2].name): 1}
    assert node_writes(written, besides="devicetaintrules") == []
    for one in of[:2]:
        rule = admin.get("DeviceTaintRule", one.name)
        assert rule["metadata"]["uid"] == before[one.name]["metadata"]["uid"]
        assert rule["spec"] == before[one.name]["spec"]
    assert "timeAdded" in before[of[0].name]["spec"]["taint"]
    assert [len(evictions(plane, pod)) for pod in (evicted, other, patient)] == [1, 0, 0]
