"""Plain values the remediator's tests are made of: alerts and bodies as Alertmanager writes them, nodes, records.

Pure builders with one healthy default each, so that a test shows only what it is about.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from alerts.faults import FAULTS, Effect
from remediator.decide import Fired
from remediator.inventory import NEURON_DEVICE, Build, Device, DeviceTaint, Node, NodeLabels, NodeMetadata, Slice
from remediator.level import View
from remediator.notification import Alert
from remediator.policy import Policy
from remediator.records import Key, Record, State, Stored, Taint, episode_of
from remediator.targets import NodeTarget, Target

if TYPE_CHECKING:
    from remediator.budget import Limit
    from remediator.targets import AnyTarget

NODE = "ip-10-1-1-200.ec2.internal"
DRIVER = "neuron.aws.com"
TAINT_KEY = "neuron.aws.com/device-unhealthy"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
STARTED = NOW - timedelta(seconds=5)
LONG_AGO = NOW - timedelta(days=30)
"""When the sample node was made."""

Json = dict[str, Any]


def rfc3339(moment: datetime) -> str:
    """Write a time as Alertmanager does."""
    return moment.isoformat().replace("+00:00", "Z")


def labels(**changes: str | None) -> dict[str, str]:
    """Labels of an hbm alert on device 3; a change to None leaves that label out."""
    fault = FAULTS.get(changes.get("fault") or "hbm")
    standard = {
        "alertname": fault.alert if fault else "NeuronDeviceFault",
        "node": NODE,
        "device": "3",
        "fault": "hbm",
        "remediation": "taint",
        "severity": "critical",
    }
    return {label: value for label, value in (standard | changes).items() if value is not None}


def alert_json(*, status: str = "firing", started: datetime = STARTED, **changes: str | None) -> Json:
    """One alert of a webhook body."""
    ended = "0001-01-01T00:00:00Z" if status == "firing" else rfc3339(started + timedelta(seconds=3))
    return {
        "status": status,
        "labels": labels(**changes),
        "annotations": {},
        "startsAt": rfc3339(started),
        "endsAt": ended,
        "generatorURL": "http://prometheus:9090/graph",
        "fingerprint": "5cb27538d500eefd",
    }


def body_json(*alerts: Json, **fields: Any) -> Json:
    """One webhook body, version 4."""
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "neuron-remediator",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager-0:9093",
        "alerts": list(alerts),
    } | fields


def body(*alerts: Json, **fields: Any) -> bytes:
    """One webhook body as it travels."""
    return json.dumps(body_json(*alerts, **fields)).encode() + b"\n"


def alert(
    *, status: Literal["firing", "resolved"] = "firing", started: datetime = STARTED, **changes: str | None
) -> Alert:
    """One alert as the decoder hands it on."""
    return Alert(status=status, labels=labels(**changes), starts_at=started)


def node(*, uid: str = "uid-1", created: datetime = LONG_AGO, name: str = NODE, opted_out: bool = False) -> Node:
    """One Node."""
    return Node(NodeMetadata(name, uid, created, NodeLabels(opt_out="true" if opted_out else "")))


def fired(fault: str = "hbm", *, started: datetime = STARTED, latched: bool = False, device: int = 3) -> Fired:
    """What an alert of the sample device says."""
    return Fired(Key(NODE, device, fault), started, latched=latched)


def record(
    fault: str = "hbm",
    *,
    started: datetime = STARTED,
    node_uid: str = "uid-1",
    state: State = State.ACTIVE,
    latched: bool | None = None,
    target: AnyTarget | None = None,
    stored: Stored | None = None,
) -> Record:
    """The record of one firing on device 3."""
    kind = FAULTS[fault]
    return Record(
        key=Key(NODE, 3, fault),
        node_uid=node_uid,
        target=target or Target(DRIVER, NODE, "neuron-device-3"),
        taint=Taint(TAINT_KEY, kind.value, kind.effect),
        state=state,
        latched=kind.latched if latched is None else latched,
        episode=episode_of(started),
        first_fired=started,
        last_fired=started,
        reason=kind.alert,
        stored=stored,
    )


def view(
    *,
    target: AnyTarget | None = None,
    opted_out: bool = False,
    max_effect: Effect = Effect.NO_EXECUTE,
    node_no_execute: bool = False,
    taint_key: str = TAINT_KEY,
    driver: Effect = Effect.NONE,
    refusal: Limit | None = None,
    now: datetime = NOW,
) -> View:
    """What surrounds a record: the device where the sample record has it, nobody else's word, and room for all.

    The driver's own taint, and what the budget says, are the same on every target.
    """
    return View(
        target=target or Target(DRIVER, NODE, "neuron-device-3"),
        opted_out=opted_out,
        policy=Policy(taint_key=taint_key, max_effect=max_effect, node_no_execute=node_no_execute),
        driver_effect=lambda _target: driver,
        refusal=lambda _key, _target, _effect: refusal,
        now=now,
    )


def on_node(device: int = 3, *, node: str = NODE, placed: bool = False) -> NodeTarget:
    """The Node as what stands for one device of it."""
    return NodeTarget(node, Target(DRIVER, node, f"{NEURON_DEVICE}-{device}", placed=False), placed=placed)


def device(name: str, device_id: int | None, *taints: DeviceTaint) -> Device:
    """One entry of a slice."""
    return Device(name, device_id, Build(NEURON_DEVICE), taints=taints)


def resource_slice(
    *devices: Device,
    name: str = "slice-1",
    driver: str = DRIVER,
    node_name: str = NODE,
    pool: str = NODE,
    generation: int = 1,
) -> Slice:
    """One ResourceSlice."""
    return Slice(name, driver, node_name, pool, generation, devices)
