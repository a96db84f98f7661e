"""The real stack does what every other test relies on: it starts, schedules, evicts, collects, scrapes, notifies."""

import http.client
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import AlertmanagerFactory, PrometheusFactory
from tests.stack import shapes
from tests.stack.controlplane import WRITES, ControlPlane
from tests.stack.http import HTTPError
from tests.stack.kube import Admin
from tests.stack.process import wait_until

REPOSITORY = Path(__file__).parent.parent
NODE = "ip-10-1-1-200.us-west-2.compute.internal"


# The control plane


def test_serves_the_version_and_the_api_the_product_is_for(admin: Admin) -> None:
    assert admin.version().startswith("v1.37.")
    assert admin.serves("resource.k8s.io/v1", "devicetaintrules")


def test_a_rule_evicts_the_pod_on_its_device_and_goes_with_its_node(admin: Admin, control_plane: ControlPlane) -> None:
    node = admin.node(NODE)
    admin.pod("on-3", device="neuron-device-3")
    admin.pod("on-4", device="neuron-device-4", template=True)
    assert (admin.scheduled("on-3"), admin.scheduled("on-4")) == ("neuron-device-3", "neuron-device-4")

    rule = _rule(owner=node)
    admin.create(rule)

    admin.gone("Pod", "on-3")
    assert admin.allocated_device("on-4") == "neuron-device-4"
    assert [item["metadata"]["name"] for item in admin.rules()] == [rule["metadata"]["name"]]
    writes = wait_until(
        lambda: [
            event
            for event in control_plane.audit(user="admin", resource="devicetaintrules")
            if event["objectRef"].get("name") == rule["metadata"]["name"]
        ],
        timeout=5,
        what="the audit log's line about the rule",
    )
    assert [(event["verb"], event["responseStatus"]["code"]) for event in writes] == [("create", 201)]
    (eviction,) = (
        event
        for event in control_plane.audit(user="kube-controller-manager", verbs=["delete"], resource="pods")
        if event["objectRef"].get("name") == "on-3"
    )
    assert "device-taint-eviction-controller" in eviction["userAgent"]

    admin.delete_node(NODE)
    admin.gone("DeviceTaintRule", rule["metadata"]["name"])


def test_a_tainted_device_gets_no_new_pod_until_the_rule_is_gone(admin: Admin) -> None:
    admin.node(NODE, devices=1)
    rule = admin.create(_rule(device="neuron-device-0", effect="NoSchedule"))
    admin.pod("late")
    assert "allocate" in admin.unschedulable("late")
    admin.delete("DeviceTaintRule", rule["metadata"]["name"], uid=rule["metadata"]["uid"])
    assert admin.scheduled("late") == "neuron-device-0"


def test_an_eviction_with_a_grace_period_waits_for_a_kubelet(admin: Admin) -> None:
    admin.node(NODE, ultraserver="cr-0123456789abcdef0")
    admin.pod("slow", grace=30)
    assert admin.scheduled("slow") == "neuron-node"
    admin.create(_rule(device="neuron-node"))
    admin.evicted("slow")
    assert admin.get("Pod", "slow")["metadata"]["deletionGracePeriodSeconds"] == 30
    admin.finish_deletion("slow")
    assert admin.find("Pod", "slow") is None


def test_the_remediator_may_do_what_the_shipped_rbac_says_and_no_more(
    admin: Admin, control_plane: ControlPlane
) -> None:
    for manifest in yaml.safe_load_all((REPOSITORY / "deploy" / "rbac.yaml").read_text(encoding="utf-8")):
        admin.apply(manifest)
    node = admin.node(NODE, devices=1)
    remediator = Admin(control_plane, "neuron-remediator")
    wait_until(lambda: _allowed(remediator.rules), timeout=5, what="the role to count")

    name = remediator.create(_rule(owner=node))["metadata"]["name"]
    assert remediator.items("ResourceSlice")
    assert remediator.get("Node", NODE)["metadata"]["uid"] == node["metadata"]["uid"]
    remediator.patch("DeviceTaintRule", name, {"metadata": {"labels": {"a": "b"}}})
    remediator.delete("DeviceTaintRule", name)

    assert not _allowed(lambda: remediator.patch("Node", NODE, {"metadata": {"labels": {"a": "b"}}}))
    assert not _allowed(lambda: remediator.items("Pod"))
    in_own_name = control_plane.audit(user="neuron-remediator", verbs=[*WRITES, "get", "list"])
    # Discovery is of no resource.
    touched = {event["objectRef"]["resource"] for event in in_own_name if "objectRef" in event}
    assert touched >= {"devicetaintrules", "nodes"}


def test_data_survives_an_outage_of_the_api_server(admin: Admin, control_plane: ControlPlane) -> None:
    uid = admin.node(NODE, devices=1)["metadata"]["uid"]
    control_plane.stop_apiserver()
    try:
        with pytest.raises(OSError, match="refused"):
            admin.get("Node", NODE)
    finally:
        control_plane.start_apiserver()
    assert admin.get("Node", NODE)["metadata"]["uid"] == uid
    admin.pod("after")
    assert admin.scheduled("after") == "neuron-device-0"
    admin.create(_rule(device="neuron-device-0"))
    admin.evicted("after")


# Monitoring


def test_an_alert_gets_from_prometheus_to_alertmanager(
    prometheus: PrometheusFactory, alertmanager: AlertmanagerFactory, tmp_path: Path
) -> None:
    receiver = alertmanager({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]})
    rules = tmp_path / "up.rules.yaml"
    rule = {"alert": "Scraped", "expr": 'up{job="self"} == 1', "labels": {"severity": "none"}}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "up", "rules": [rule]}]}), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [receiver.address]}]}]},
        "scrape_configs": [{"job_name": "self", "static_configs": [{"targets": ["localhost:1"]}]}],
    }
    server = prometheus(config, [rules])
    assert server.query("vector(1)") == [({}, 1.0)]
    assert server.query('up{job="self"} == 1') == []

    config["scrape_configs"][0]["static_configs"][0]["targets"] = [server.address]  # type: ignore[index]
    server.reload(config)

    wait_until(lambda: server.query('up{job="self"} == 1'), timeout=20, what="Prometheus to scrape itself")
    (alert,) = wait_until(receiver.alerts, timeout=20, what="the alert in Alertmanager")
    assert alert["labels"]["alertname"] == "Scraped"
    assert [firing["state"] for firing in server.alerts()] == ["firing"]

    silence = receiver.silence({"alertname": "Scraped"})
    wait_until(
        lambda: receiver.alerts()[0]["status"]["silencedBy"] == [silence], timeout=10, what="the silence to count"
    )
    with pytest.raises(HTTPError, match="reload"):
        server.reload({"scrape_configs": "nonsense"})


def _rule(
    *, device: str = "neuron-device-3", effect: str = "NoExecute", owner: shapes.Object | None = None
) -> shapes.Object:
    name = f"by-hand.{time.monotonic_ns()}"
    return shapes.taint_rule(
        name, pool=NODE, device=device, value="hbm-uncorrectable-error", effect=effect, owner=owner
    )


def _allowed(action: Callable[[], object]) -> bool:
    try:
        action()
    except HTTPError as error:
        if error.status != http.client.FORBIDDEN:
            raise
        return False
    return True
