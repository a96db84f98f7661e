"""Looks at a cluster as the commands have them, for tests of what is said about them. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.cli.picture import Held, Picture
from remediator.inventory import Inventory
from remediator.records import State
from remediator.targets import Target
from tests.remediator.samples import DRIVER, NODE, NOW, device, node, record, resource_slice

if TYPE_CHECKING:
    from remediator.inventory import Device
    from remediator.records import Record

SINCE = NOW - timedelta(hours=3)
UNTIL = NOW + timedelta(hours=4)


def held(fault: str = "hbm", state: State = State.ACTIVE, *, number: int = 3, **changes: Any) -> Record:
    """A record that the cluster has had for three hours; in any state but active, without an effect."""
    made = record(fault, state=state)
    if state is not State.ACTIVE:
        made = replace(made, taint=replace(made.taint, effect=Effect.NONE))
    key = replace(made.key, device=number)
    target = Target(DRIVER, NODE, f"neuron-device-{number}")
    standard: dict[str, Any] = {"key": key, "target": target, "tainted_since": SINCE}
    return replace(made, **(standard | changes))


def released(until: datetime = UNTIL, **changes: Any) -> Record:
    """A record that alice has released."""
    return held(
        state=State.RELEASED, latched=False, released_until=until, released_by="alice", reason="burn-in", **changes
    )


def inventory(*devices: Device) -> Inventory:
    """The devices of the sample node; sixteen of them unless told otherwise."""
    made = Inventory(DRIVER)
    made.put(resource_slice(*(devices or [device(f"neuron-device-{number}", number) for number in range(16)])))
    return made


def picture(*records: Record, **changes: Any) -> Picture:
    """The sample node with these records, everything read."""
    standard: dict[str, Any] = {
        "driver": DRIVER,
        "now": NOW,
        "held": Held(tuple(sorted(records, key=lambda one: one.key))),
        "node": node(),
        "node_read": True,
        "inventory": inventory(),
    }
    return Picture(**(standard | changes))
