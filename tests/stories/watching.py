"""What the stories look at, and for how long they wait for it.

Scrape and evaluation are 1 s as shipped, so a fault is a taint after two to four seconds and a clean reading clears
after the hold of 15 s; the deadlines leave room for a busy machine where the story itself sets no limit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from alerts.faults import FAULTS, Remediation
from tests.stack.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.pipeline import Pipeline

Rule = dict[str, Any]

TAINTED_WITHIN = 30.0
CLEARED_WITHIN = 60.0
KEY = "neuron.aws.com/device-unhealthy"


def rule_of(admin: Admin, device: int, fault: str) -> Rule | None:
    """The rule that stands for one fault of one device, if there is one; more than one is an error."""
    selector = f"neuron-remediator/device={device},neuron-remediator/fault={fault}"
    found = admin.items("DeviceTaintRule", selector=selector)
    assert len(found) <= 1, f"device {device} has several rules for {fault}: {found}"
    return found[0] if found else None


def tainted(admin: Admin, device: int, fault: str, *, within: float = TAINTED_WITHIN) -> Rule:
    """Wait for the rule."""
    return wait_until(
        lambda: rule_of(admin, device, fault), timeout=within, what=f"a rule for {fault} of device {device}"
    )


def cleared(admin: Admin, device: int, fault: str, *, within: float = CLEARED_WITHIN) -> None:
    """Wait until there is no rule."""
    wait_until(
        lambda: rule_of(admin, device, fault) is None, timeout=within, what=f"{fault} of device {device} to clear"
    )


def becomes(question: Callable[[], object], what: str, *, within: float = TAINTED_WITHIN) -> None:
    """Wait until the answer is true."""
    wait_until(lambda: bool(question()), timeout=within, what=what)


def read_clean_for(pipeline: Pipeline, device: int, fault: str, seconds: int) -> None:
    """Wait until Prometheus has seen nothing but 0 for that long."""
    series = f'neuron_device_fault{{device="{device}",fault="{fault}"}}'
    clean = f"max_over_time({series}[{seconds}s]) == 0 and count_over_time({series}[{seconds}s]) >= {seconds - 1}"
    becomes(lambda: pipeline.prometheus.query(clean), f"{seconds} s of clean readings", within=seconds + TAINTED_WITHIN)


def ever(pipeline: Pipeline, alertname: str) -> bool:
    """Whether that alert was pending or firing at any evaluation so far."""
    return bool(pipeline.prometheus.query(f'present_over_time(ALERTS{{alertname="{alertname}"}}[1h])'))


def fires(pipeline: Pipeline, alertname: str, device: int) -> bool:
    """Whether that alert fires for that device now."""
    labels = f'alertname="{alertname}",alertstate="firing",device="{device}"'
    return bool(pipeline.prometheus.query(f"ALERTS{{{labels}}}"))


def records(pipeline: Pipeline, device: int, fault: str) -> list[dict[str, str]]:
    """Labels of the record series for that fault of that device on the remediator's page."""
    return [
        labels
        for name, labels, value in pipeline.remediator.metrics()
        if name == "neuron_remediator_record"
        and value == 1
        and (labels["device"], labels["fault"]) == (str(device), fault)
    ]


def record_of(pipeline: Pipeline, device: int, fault: str) -> dict[str, str]:
    """The one record of that fault of that device."""
    found = records(pipeline, device, fault)
    assert len(found) == 1, f"expected one record of {fault} on device {device}, got {found}"
    return found[0]


def moment(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def taint_added(rule: Rule) -> datetime:
    """When the rule's taint began, which is what tolerations count from; the server keeps whole seconds."""
    return moment(rule["spec"]["taint"]["timeAdded"])


def passed(at: datetime) -> None:
    """Wait until that time is over, where nothing else tells that enough of it has gone by."""
    left = (at - datetime.now(UTC)).total_seconds()
    becomes(lambda: datetime.now(UTC) > at, f"{left:.1f} s to pass", within=max(left, 0) + 1)


def evictions(control_plane: ControlPlane, pod: str) -> list[datetime]:
    """When the control plane asked for the deletion of that pod because of a device's taint, first to last.

    The audit log is of the whole run, so no other test may give a pod the same name.
    """
    return [
        moment(event["requestReceivedTimestamp"])
        for event in control_plane.audit(verbs=("delete",), resource="pods")
        if event["objectRef"]["name"] == pod and "device-taint-eviction-controller" in event.get("userAgent", "")
    ]


def eviction(control_plane: ControlPlane, pod: str, *, within: float = TAINTED_WITHIN) -> datetime:
    """Wait for the pod's eviction, and return when the first one was asked for."""
    found = wait_until(
        lambda: evictions(control_plane, pod), timeout=within, what=f'pod "{pod}" to be evicted for a taint'
    )
    return found[0]


def writes(control_plane: ControlPlane, rule: Rule) -> list[datetime]:
    """When the remediator made, changed or removed rules of that name since this one is there, first to last."""
    times = [
        moment(event["requestReceivedTimestamp"])
        for event in control_plane.audit(user="neuron-remediator", resource="devicetaintrules")
        if event["objectRef"].get("name") == rule["metadata"]["name"]
    ]
    return [time for time in times if time >= moment(rule["metadata"]["creationTimestamp"])]


def firing(node: str, device: int, fault: str, started: str) -> dict[str, Any]:
    """The alert of a fault as Alertmanager sends it, for a node without an exporter or to say again what was said."""
    labels = {"node": node, "device": str(device), "fault": fault, "remediation": str(Remediation.TAINT)}
    return {"status": "firing", "labels": {"alertname": FAULTS[fault].alert} | labels, "startsAt": started}
