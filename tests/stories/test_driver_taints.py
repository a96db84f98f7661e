"""The remediator beside a DRA driver that taints faulty devices itself, in its ResourceSlice.

Whoever sees the fault first, the end is the same, and nobody is evicted for the two of them twice. What the driver
forgets (the kubelet wipes the slices at every start) is not forgotten here; what the driver takes back because the
device is clean is not made up for by an eviction of ours.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import FAULTS, HEALTHY
from tests.stack.process import wait_until
from tests.stack.shapes import device_name
from tests.stories.conftest import NODE
from tests.stories.watching import (
    Rule,
    becomes,
    cleared,
    eviction,
    evictions,
    rule_of,
    tainted,
    writes,
)

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.pipeline import Pipeline

pytestmark = pytest.mark.stack

HBM, LINK = FAULTS["hbm"], FAULTS["link_host"]
# Which device meets what: the driver's own taint and our alert come in this order, or the driver's is the weaker one.
DRIVER_FIRST, ALERT_FIRST, DRIVER_WEAKER, UNLATCHED = 3, 4, 5, 6
FAULTY = {DRIVER_FIRST: HBM, ALERT_FIRST: HBM, DRIVER_WEAKER: HBM, UNLATCHED: LINK}
LATCHED = (DRIVER_FIRST, ALERT_FIRST, DRIVER_WEAKER)
BY_NOT_HELD = timedelta(seconds=3)
"""What takes less does not wait for a firing."""
COVERED, WITHHELD, EVICTS = ("covered", "None"), ("withheld", "None"), ("active", "NoExecute")


def standing(admin: Admin, device: int) -> tuple[str, str] | None:
    """State and effect of the one record of that device."""
    rule = rule_of(admin, device, FAULTY[device].name)
    if rule is None:
        return None
    return rule["metadata"]["annotations"]["neuron-remediator/state"], rule["spec"]["taint"]["effect"]


def comes_to(admin: Admin, device: int, expected: tuple[str, str]) -> None:
    """Wait for state and effect of the one record of that device."""
    wait_until(
        lambda: standing(admin, device) == expected, timeout=20, what=f"the record of device {device} to be {expected}"
    )


def last_write(admin: Admin, control_plane: ControlPlane, device: int) -> datetime:
    """When the remediator last wrote the record of that device."""
    return writes(control_plane, tainted(admin, device, FAULTY[device].name))[-1]


def without_device(rule: Rule | None) -> dict[str, Any]:
    """What a rule says apart from which device it is of, and when."""
    assert rule is not None
    told = {name: value for name, value in rule["metadata"]["annotations"].items() if not name.endswith("-fired")}
    told.pop("neuron-remediator/episode")
    selector, taint = rule["spec"]["deviceSelector"], rule["spec"]["taint"]
    return told | {"pool": selector["pool"], "value": taint["value"], "effect": taint["effect"]}


def worker(device: int) -> str:
    """Name of the pod that works on a device as the fault comes."""
    return f"works-on-{device}"


def successor(device: int) -> str:
    """Name of the pod that is to have the device next."""
    return f"waits-for-{device}"


def start_workers(admin: Admin) -> None:
    """Put a pod on each device that is going to be faulty."""
    for device in FAULTY:
        admin.pod(worker(device), device=device_name(device), template=True)
    assert [admin.scheduled(worker(device)) for device in FAULTY] == [device_name(device) for device in FAULTY]


def both_have_tainted(pipeline: Pipeline, admin: Admin, control_plane: ControlPlane) -> None:
    """Let driver and remediator meet the faults, each in its order; every record is as it is to be."""
    admin.driver_taint(NODE, device_name(DRIVER_FIRST), HBM.value, "NoExecute")
    admin.driver_taint(NODE, device_name(UNLATCHED), LINK.value, "NoExecute")
    admin.driver_taint(NODE, device_name(DRIVER_WEAKER), HBM.value, "NoSchedule")
    for device in (DRIVER_FIRST, UNLATCHED):
        eviction(control_plane, worker(device))
    for device, fault in FAULTY.items():
        pipeline.driver.show(device, fault.example)
    comes_to(admin, ALERT_FIRST, EVICTS)
    eviction(control_plane, worker(ALERT_FIRST))
    admin.driver_taint(NODE, device_name(ALERT_FIRST), HBM.value, "NoExecute")
    for device in (DRIVER_FIRST, ALERT_FIRST, UNLATCHED):
        comes_to(admin, device, COVERED)
    comes_to(admin, DRIVER_WEAKER, EVICTS)
    eviction(control_plane, worker(DRIVER_WEAKER))


def test_whoever_taints_first_the_end_is_the_same_and_a_wiped_slice_frees_no_latched_device(
    pipeline: Pipeline, admin: Admin, control_plane: ControlPlane
) -> None:
    """Driver first or alert first: one record, covered, and one eviction; a weaker taint of the driver covers nothing.

    Then the kubelet starts anew: the slice goes and comes back without taints. The latched records rise by themselves,
    before any pod can have a device of the new slice; the one that is not latched needs a firing, which NotHeld brings.
    """
    start_workers(admin)
    both_have_tainted(pipeline, admin, control_plane)
    assert without_device(rule_of(admin, DRIVER_FIRST, "hbm")) == without_device(rule_of(admin, ALERT_FIRST, "hbm"))
    for device in LATCHED:
        admin.pod(successor(device), device=device_name(device), template=True)
    for device in LATCHED:
        assert "cannot allocate all claims" in admin.unschedulable(successor(device))

    wiped = datetime.now(UTC)
    admin.wipe_slice(NODE)
    comes_to(admin, UNLATCHED, WITHHELD)
    for device in LATCHED:
        comes_to(admin, device, EVICTS)
    raised = max(last_write(admin, control_plane, device) for device in LATCHED) - wiped
    print(f"latched: raised {raised} after the slice was wiped")
    assert raised < BY_NOT_HELD
    # A driver takes longer than that to be back.
    admin.publish_slice(NODE)
    comes_to(admin, UNLATCHED, EVICTS)
    print(f"not latched: raised {last_write(admin, control_plane, UNLATCHED) - wiped} after the slice was wiped")

    # All that is left, so that the scheduler is known to have seen the new slice, and to leave the faulty devices out.
    healthy = sorted({device_name(device) for device in set(range(16)) - set(FAULTY)})
    admin.pod("takes-the-rest", devices=len(healthy))
    becomes(lambda: admin.allocated_devices("takes-the-rest") == healthy, f"{len(healthy)} devices for a pod")
    assert [device for device in LATCHED if "nodeName" in admin.get("Pod", successor(device))["spec"]] == []
    assert [len(evictions(control_plane, worker(device))) for device in FAULTY] == [1, 1, 1, 1]


def test_a_taint_that_the_driver_takes_back_is_not_made_up_for(
    pipeline: Pipeline, admin: Admin, control_plane: ControlPlane
) -> None:
    """The device reads clean, so the driver lifts its taint: who comes onto it then stays, and the record clears."""
    admin.driver_taint(NODE, device_name(UNLATCHED), LINK.value, "NoExecute")
    pipeline.driver.show(UNLATCHED, LINK.example)
    comes_to(admin, UNLATCHED, COVERED)
    before = tainted(admin, UNLATCHED, LINK.name)

    pipeline.driver.show(UNLATCHED, HEALTHY)
    admin.driver_taint(NODE, device_name(UNLATCHED), LINK.value, None)
    comes_to(admin, UNLATCHED, WITHHELD)
    admin.pod("comes-back", device=device_name(UNLATCHED), template=True)
    assert admin.scheduled("comes-back") == device_name(UNLATCHED)
    cleared(admin, UNLATCHED, LINK.name)

    # Made, withheld, removed: never raised in between.
    becomes(lambda: len(writes(control_plane, before)) >= 3, "the removal in the log")
    assert len(writes(control_plane, before)) == 3
    assert evictions(control_plane, "comes-back") == []
    assert "deletionTimestamp" not in admin.get("Pod", "comes-back")["metadata"]
