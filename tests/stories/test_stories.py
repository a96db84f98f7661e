"""From a driver file to the evicted pod and back, on real parts: nothing between the two is a stand-in."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from alerts.faults import CLEARED, FAULTS, HEALTHY, Fault
from tests.stack.pipeline import TOKEN
from tests.stack.process import wait_until
from tests.stories.conftest import NODE
from tests.stories.watching import (
    Rule,
    becomes,
    cleared,
    ever,
    read_clean_for,
    record_of,
    rule_of,
    tainted,
)

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.pipeline import Pipeline

KEY = "neuron.aws.com/device-unhealthy"


def uid(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def ours(rule: Rule | None) -> dict[str, Any] | None:
    """What we write of a rule, and its identity: the status is the eviction controller's."""
    if rule is None:
        return None
    metadata = {name: rule["metadata"].get(name) for name in ("uid", "generation", "labels", "annotations")}
    return metadata | {"spec": rule["spec"]}


def spec_without_time(rule: Rule) -> dict[str, Any]:
    taint = {name: value for name, value in rule["spec"]["taint"].items() if name != "timeAdded"}
    return {**rule["spec"], "taint": taint}


def expected_spec(device: int, fault: Fault) -> dict[str, Any]:
    return {
        "deviceSelector": {"driver": "neuron.aws.com", "pool": NODE, "device": f"neuron-device-{device}"},
        "taint": {"key": KEY, "value": fault.value, "effect": str(fault.effect)},
    }


def firing(device: int, fault: str, remediation: str, started: str, **labels: str) -> dict[str, Any]:
    own = {"alertname": "Forged", "node": NODE, "device": str(device), "fault": fault, "remediation": remediation}
    return {"status": "firing", "labels": own | labels, "startsAt": started}


def now() -> str:
    return datetime.now(UTC).isoformat()


def test_s1_hbm_evicts_exactly_the_pod_on_the_faulty_device(pipeline: Pipeline, admin: Admin) -> None:
    """An uncorrectable memory error takes the pod off its device, leaves the neighbour alone, and keeps others off."""
    admin.pod("on-three", device="neuron-device-3")
    admin.pod("on-four", device="neuron-device-4")
    assert (admin.scheduled("on-three"), admin.scheduled("on-four")) == ("neuron-device-3", "neuron-device-4")
    neighbour = admin.get("Pod", "on-four")

    pipeline.driver.set_components(3, "hbm\n")
    rule = tainted(admin, 3, "hbm")

    assert spec_without_time(rule) == expected_spec(3, FAULTS["hbm"])
    assert [uid(rule)] == [uid(one) for one in admin.rules()]
    admin.gone("Pod", "on-three")
    still = admin.get("Pod", "on-four")
    assert (uid(still), still["metadata"].get("deletionTimestamp")) == (uid(neighbour), None)
    # Every free and healthy device at once: the only one that is free and left out is the faulty one.
    admin.pod("next", devices=14)
    wait_until(lambda: len(admin.allocated_devices("next")) == 14, timeout=30, what="14 devices for the next pod")
    assert set(admin.allocated_devices("next")) == {f"neuron-device-{n}" for n in range(16)} - {
        "neuron-device-3",
        "neuron-device-4",
    }


def test_s2_a_link_fault_cordons_clears_on_clean_readings_and_comes_back(pipeline: Pipeline, admin: Admin) -> None:
    """A link fault keeps new work off, leaves running work, ends after the hold, and is taken anew at once."""
    admin.pod("running", device="neuron-device-5")
    assert admin.scheduled("running") == "neuron-device-5"

    pipeline.driver.set_components(5, "link_efa\n")
    rule = tainted(admin, 5, "link_efa")
    assert spec_without_time(rule) == expected_spec(5, FAULTS["link_efa"])
    running = admin.get("Pod", "running")
    assert "deletionTimestamp" not in running["metadata"]
    admin.delete("Pod", "running", grace=0)
    admin.gone("Pod", "running")
    admin.pod("waiting", device="neuron-device-5")
    assert "cannot allocate all claims" in admin.unschedulable("waiting")

    pipeline.driver.show(5, HEALTHY)
    cleared(admin, 5, "link_efa")
    assert admin.scheduled("waiting") == "neuron-device-5"

    pipeline.driver.set_components(5, "link_efa\n")
    again = tainted(admin, 5, "link_efa", within=3)
    assert uid(again) != uid(rule)


def test_s3_a_latched_fault_outlives_clean_readings_and_ends_with_its_node(pipeline: Pipeline, admin: Admin) -> None:
    """Memory errors stay through clean readings and forged clears; recycling the node ends them for good."""
    fault_seen = now()
    pipeline.driver.set_components(3, "hbm\n")
    rule = tainted(admin, 3, "hbm")
    pipeline.driver.show(3, HEALTHY)
    # Longer than the hold and the age limit together, so that a clear would have fired.
    read_clean_for(pipeline, 3, "hbm", 30)
    assert not ever(pipeline, CLEARED)

    episode = record_of(pipeline, 3, "hbm")["episode"]
    answer = pipeline.notify(firing(3, "hbm", "clear", now(), episode=episode))
    assert (answer.status, pipeline.outcome("ignored_latched")) == (200, 1)
    assert ours(rule_of(admin, 3, "hbm")) == ours(rule)

    admin.delete_node(NODE)
    cleared(admin, 3, "hbm")
    admin.node(NODE)
    answer = pipeline.notify(firing(3, "hbm", "taint", fault_seen))
    assert (answer.status, pipeline.outcome("ignored_before_node")) == (200, 1)
    read_clean_for(pipeline, 3, "hbm", 5)
    assert admin.rules() == []
    admin.pod("newcomer", device="neuron-device-3")
    assert admin.scheduled("newcomer") == "neuron-device-3"


def test_s4_silence_changes_nothing(pipeline: Pipeline, admin: Admin) -> None:
    """With the exporter dead Alertmanager says resolved; the taint stays, and is the same one when it comes back."""
    pipeline.driver.set_components(3, "hbm\n")
    rule = tainted(admin, 3, "hbm")

    pipeline.exporter.process.kill()
    becomes(lambda: pipeline.outcome("ignored_resolved") >= 1, "Alertmanager to send resolved")
    assert ours(rule_of(admin, 3, "hbm")) == ours(rule)

    taken_in = pipeline.outcome("applied") + pipeline.outcome("unchanged")
    pipeline.exporter.start()
    firing_again = 'ALERTS{alertname="NeuronDeviceHBMUncorrectableError",alertstate="firing"}'
    becomes(lambda: pipeline.prometheus.query(firing_again), "the alert to fire again")
    becomes(lambda: pipeline.outcome("applied") + pipeline.outcome("unchanged") > taken_in, "the firing to be taken in")
    same = rule_of(admin, 3, "hbm")
    assert same is not None
    assert (uid(same), same["spec"]) == (uid(rule), rule["spec"])


def test_s5_a_remediator_that_was_away_catches_up(pipeline: Pipeline, admin: Admin) -> None:
    """A fault that began while nobody listened is tainted soon after; a rule removed by hand comes back by itself."""
    pipeline.remediator.process.stop()
    pipeline.driver.set_components(3, "hbm\n")
    fires = 'ALERTS{alertname="NeuronDeviceHBMUncorrectableError",alertstate="firing"}'
    becomes(lambda: pipeline.prometheus.query(f"count_over_time({fires}[1m]) >= 20"), "20 s of firing", within=60)
    assert admin.rules() == []

    pipeline.remediator.start()
    rule = tainted(admin, 3, "hbm", within=10)

    admin.delete("DeviceTaintRule", rule["metadata"]["name"])
    # 3 s of not being held, and a scrape, an evaluation and a delivery around them.
    again = tainted(admin, 3, "hbm", within=10)
    assert uid(again) != uid(rule)
    assert spec_without_time(again) == spec_without_time(rule)


def test_a_node_that_is_registered_anew_keeps_its_fault(pipeline: Pipeline, admin: Admin) -> None:
    """Deleting the Node of a machine that goes on reading a fault costs the taint, and its return brings it back.

    Both alerts began before the new Node was made; what they say is of no machine for sure, until one begins anew.
    """
    pipeline.driver.set_components(5, "link_host\n")
    before = tainted(admin, 5, "link_host")
    admin.delete_node(NODE)
    cleared(admin, 5, "link_host")
    absent = f'absent(neuron_remediator_node{{node="{NODE}"}})'
    becomes(lambda: pipeline.prometheus.query(absent), "Prometheus to see that the Node is gone")
    not_held = 'ALERTS{alertname="NeuronDeviceFaultNotHeld",device="5"}'
    becomes(lambda: not pipeline.prometheus.query(not_held), "nobody to be told while there is no Node")

    admin.node(NODE)
    again = tainted(admin, 5, "link_host", within=15)
    assert uid(again) != uid(before)
    assert spec_without_time(again) == spec_without_time(before)


def test_s6_every_fault_ends_as_exactly_its_taint(pipeline: Pipeline, admin: Admin) -> None:
    """The chain: each row's example reading, through every real part, is the taint of its row, and no other.

    Clean readings then end exactly those that the table does not call latched.
    """
    seen: dict[str, float] = {}
    for device, fault in enumerate(FAULTS.values()):
        began = time.monotonic()
        pipeline.driver.show(device, fault.example)
        rule = tainted(admin, device, fault.name)
        seen[fault.name] = time.monotonic() - began
        assert spec_without_time(rule) == expected_spec(device, fault)
        assert len(admin.rules()) == device + 1
    print("seconds from driver file to taint:", {name: round(value, 1) for name, value in seen.items()})

    for device in range(len(FAULTS)):
        pipeline.driver.show(device, HEALTHY)
    for device, fault in enumerate(FAULTS.values()):
        if not fault.latched:
            cleared(admin, device, fault.name)
    values = [rule["spec"]["taint"]["value"] for rule in admin.rules()]
    assert sorted(values) == sorted(fault.value for fault in FAULTS.values() if fault.latched)


def test_the_api_server_down_is_503_and_the_taint_is_there_once_it_is_back(
    pipeline: Pipeline, admin: Admin, control_plane: ControlPlane
) -> None:
    """An API server that is away loses nothing: Alertmanager asks again until it is told 200."""
    control_plane.stop_apiserver()
    try:
        answer = pipeline.notify(firing(7, "sram", "taint", now()))
        assert answer.status == 503
        assert answer.headers["connection"] == "close"
        pipeline.driver.set_components(3, "hbm\n")
        refused = "neuron_remediator_notifications_total"
        becomes(lambda: (pipeline.remediator.value(refused, result="failed") or 0) >= 2, "Alertmanager to be told 503")
    finally:
        control_plane.start_apiserver()
    rule = tainted(admin, 3, "hbm")
    assert spec_without_time(rule) == expected_spec(3, FAULTS["hbm"])


BAD_BODIES: list[tuple[bytes, str, int, str]] = [
    (b'{"text":"hbm on n1"}', TOKEN, 400, "missing required field `version`"),
    (b'{"version":"4","alerts":[null]}', TOKEN, 400, "`alerts[0]`"),
    (b'{"version":"3","alerts":[]}', TOKEN, 400, "`version`"),
    (b'{"version":"4","alerts":[]}', "wrong", 401, "bearer token"),
    (b" " * (16 * 1024 * 1024 + 1), TOKEN, 413, "too large"),
]


def test_bad_input_is_one_sentence_and_no_write(pipeline: Pipeline, admin: Admin, control_plane: ControlPlane) -> None:
    """The running service answers what it cannot use in one sentence, writes nothing, and goes on."""
    written_before = len(control_plane.audit(user="neuron-remediator", resource="devicetaintrules"))
    for body, token, status, sentence in BAD_BODIES:
        answer = pipeline.post(body, token=token)
        assert (answer.status, answer.text.count("\n")) == (status, 1)
        assert sentence in answer.text
    useless = [
        firing(3, "hbm", "taint", now()) | {"status": "resolved"},
        firing(3, "hbm", "", now()),
        firing(3, "warp_core", "taint", now()),
        firing(3, "hbm", "taint", now(), node="10.0.0.5:9400"),
        firing(3, "hbm", "taint", now(), node="no-such-node"),
    ]
    assert pipeline.notify(*useless).status == 200
    counted = ("resolved", "unknown_alert", "unknown_fault", "no_identity", "unknown_node")
    assert [pipeline.outcome(f"ignored_{reason}") for reason in counted] == [1] * 5
    assert "Traceback" not in pipeline.remediator.process.log_path.read_text()

    # The one write in the audit log is that of a good notification sent after all the bad ones.
    good = {"version": "1", "alerts": [firing(4, "hbm", "taint", now())]}
    assert pipeline.post(json.dumps(good).encode()).status == 200
    assert rule_of(admin, 4, "hbm") is not None
    writes = wait_until(
        lambda: control_plane.audit(user="neuron-remediator", resource="devicetaintrules")[written_before:],
        timeout=10,
        what="the write in the log",
    )
    assert [(event["verb"], event["objectRef"]["resource"]) for event in writes] == [("create", "devicetaintrules")]
