"""The faults that benchmarks report: as alerts, as records, and as the bare objects that are the floor. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from alerts.faults import FAULTS
from remediator.records import MANAGED_BY, Key, Record, Taint, episode_of
from remediator.rule_records import to_object
from remediator.targets import Target
from tests.stack import shapes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

RULES = "/apis/resource.k8s.io/v1/devicetaintrules"
DEVICES = 16
"""Devices of a node, as a trn2.48xlarge has them."""

_TAINT_KEY = "neuron.aws.com/device-unhealthy"
_KINDS = tuple(FAULTS)


def node_names(count: int) -> list[str]:
    """Names of nodes as long as those of a cloud."""
    return [f"ip-10-{number >> 8}-{number & 255}.us-west-2.compute.internal" for number in range(count)]


def spread(count: int) -> list[Key]:
    """Choose `count` faults: one a device, node after node, the kinds in turn."""
    nodes = node_names(-(-count // DEVICES))
    return [Key(nodes[at // DEVICES], at % DEVICES, _KINDS[at % len(_KINDS)]) for at in range(count)]


def record(key: Key, node_uid: str, started: datetime) -> Record:
    """The record that a firing of that fault leads to, budget lifted."""
    fault = FAULTS[key.fault]
    return Record(
        key=key,
        node_uid=node_uid,
        target=Target(shapes.DRIVER, key.node, shapes.device_name(key.device)),
        taint=Taint(_TAINT_KEY, fault.value, fault.effect),
        latched=fault.latched,
        episode=episode_of(started),
        first_fired=started,
        last_fired=started,
        reason=fault.alert,
    )


def bare(of: Record, prefix: str) -> dict[str, Any]:
    """The same object under a name of its own, and without our mark: nobody but the API server looks at it."""
    body = to_object(of, "resource.k8s.io/v1")
    body["metadata"]["name"] = f"{prefix}.{body['metadata']['name']}"
    del body["metadata"]["labels"][MANAGED_BY]
    return body


def alert(key: Key, started: datetime) -> dict[str, Any]:
    """A firing alert as Alertmanager sends it."""
    fault = FAULTS[key.fault]
    labels = {
        "alertname": fault.alert,
        "node": key.node,
        "device": str(key.device),
        "fault": key.fault,
        "remediation": "taint",
        "severity": "critical",
    }
    return {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": fault.summary},
        "startsAt": started.isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "0" * 16,
    }


def notification(alerts: Sequence[dict[str, Any]]) -> bytes:
    """One webhook body."""
    return json.dumps({"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "alerts": alerts}).encode()
