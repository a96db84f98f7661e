"""The real stack does what every other test relies on: it starts, schedules, evicts, collects, scrapes, notifies."""

import http.client
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import AlertmanagerFactory, PlaneFactory, PrometheusFactory
from tests.stack import shapes
from tests.stack.controlplane import WRITES, ControlPlane
from tests.stack.http import HTTPError
from tests.stack.kube import Admin
from tests.stack.nodes import Taint
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
    remediator.taint_node(NODE, "neuron.aws.com/device-unhealthy", "NoSchedule")

    assert not _allowed(lambda: remediator.delete("Node", NODE))
    assert not _allowed(lambda: remediator.driver_taint(NODE, "neuron-device-0", "hang", "NoSchedule"))
    assert not _allowed(lambda: remediator.wipe_slice(NODE))
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


# Other versions


def test_each_plane_is_of_its_version_and_serves_rules_as_it_should(
    admin: Admin, beta_admin: Admin, bare_admin: Admin
) -> None:
    planes = (admin, beta_admin, bare_admin)
    assert [".".join(plane.version().split(".")[:2]) for plane in planes] == ["v1.37", "v1.36", "v1.36"]
    assert [plane.served("DeviceTaintRule") for plane in planes] == ["v1", "v1beta2", None]
    assert not beta_admin.serves("resource.k8s.io/v1", "devicetaintrules")


def test_a_rule_in_v1beta2_evicts_as_one_in_v1_does(beta_admin: Admin) -> None:
    node = beta_admin.node(NODE)
    beta_admin.pod("on-3", device="neuron-device-3")
    assert beta_admin.scheduled("on-3") == "neuron-device-3"
    rule = beta_admin.create(_rule(owner=node))
    assert rule["apiVersion"] == "resource.k8s.io/v1beta2"
    beta_admin.gone("Pod", "on-3")
    beta_admin.delete_node(NODE)
    beta_admin.gone("DeviceTaintRule", rule["metadata"]["name"])


def test_where_no_rules_are_served_there_are_none_and_the_drivers_own_taints_count(bare_admin: Admin) -> None:
    assert bare_admin.rules() == []
    assert bare_admin.find("DeviceTaintRule", "any") is None
    with pytest.raises(HTTPError) as refused:
        bare_admin.create(_rule())
    assert refused.value.status == http.client.NOT_FOUND

    bare_admin.node(NODE, devices=1)
    bare_admin.pod("first")
    assert bare_admin.scheduled("first") == "neuron-device-0"
    bare_admin.driver_taint(NODE, "neuron-device-0", "dma-error", "NoExecute")
    bare_admin.gone("Pod", "first")


def test_an_upgrade_from_v1beta2_keeps_rules_and_pods(make_plane: PlaneFactory) -> None:
    plane = make_plane(kubernetes="1.36", rules="v1beta2")
    admin = Admin(plane)
    admin.node(NODE)
    admin.pod("on-3", device="neuron-device-3")
    admin.pod("on-4", device="neuron-device-4")
    admin.scheduled("on-3")
    admin.scheduled("on-4")
    admin.create(_rule())
    admin.gone("Pod", "on-3")
    (before,) = admin.rules()
    bound = admin.get("Pod", "on-4")

    plane.upgrade()

    assert (admin.version()[:5], admin.served("DeviceTaintRule")) == ("v1.37", "v1")
    (after,) = admin.rules()
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert "timeAdded" in after["spec"]["taint"]
    assert admin.get("Pod", "on-4")["metadata"]["uid"] == bound["metadata"]["uid"]
    assert admin.allocated_device("on-4") == "neuron-device-4"
    writes = plane.audit(resource="devicetaintrules", user="admin")
    assert [event["objectRef"]["apiVersion"] for event in writes] == ["v1beta2"], "the audit log goes on"
    admin.create(_rule(device="neuron-device-4"))
    admin.gone("Pod", "on-4")


def test_rules_come_and_go_with_releases_and_the_data_stays(make_plane: PlaneFactory) -> None:
    plane = make_plane(kubernetes="1.36", rules="none")
    admin = Admin(plane)
    admin.node(NODE)
    admin.pod("stays", device="neuron-device-0")
    assert admin.scheduled("stays") == "neuron-device-0"
    uid = admin.get("Pod", "stays")["metadata"]["uid"]

    plane.upgrade(rules="v1beta2")
    rule = admin.create(_rule())
    assert rule["apiVersion"] == "resource.k8s.io/v1beta2"
    admin.pod("scheduled", device="neuron-device-5")
    assert admin.scheduled("scheduled") == "neuron-device-5"

    plane.upgrade(rules="none")
    assert admin.rules() == []

    plane.upgrade()
    (found,) = admin.rules()
    assert found["metadata"]["uid"] == rule["metadata"]["uid"]
    assert admin.get("DeviceTaintRule", rule["metadata"]["name"])["apiVersion"] == "resource.k8s.io/v1"
    assert admin.get("Pod", "stays")["metadata"]["uid"] == uid
    assert admin.allocated_device("stays") == "neuron-device-0"


# What stands in for the driver, kubelet, the operator and other controllers


def test_a_slice_is_wiped_and_published_and_tainted_as_the_driver_does(admin: Admin) -> None:
    node = admin.node(NODE, devices=2)
    wiped = admin.wipe_slice(NODE)
    assert admin.slice_of(NODE) is None
    published = admin.publish_slice(NODE, devices=2)
    assert published["spec"] == wiped["spec"]
    assert published["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]

    def taints() -> list[list[tuple[str, str]]]:
        slice_ = admin.slice_of(NODE)
        assert slice_ is not None
        return [
            [(taint["value"], taint["effect"]) for taint in device.get("taints", ())]
            for device in slice_["spec"]["devices"]
        ]

    admin.driver_taint(NODE, "neuron-device-1", "hang", "NoSchedule")
    admin.driver_taint(NODE, "neuron-device-1", "dma-error", "NoSchedule")
    admin.driver_taint(NODE, "neuron-device-1", "hang", "NoExecute")
    assert taints() == [[], [("dma-error", "NoSchedule"), ("hang", "NoExecute")]]
    admin.driver_taint(NODE, "neuron-device-1", "hang", None)
    assert taints() == [[], [("dma-error", "NoSchedule")]]


def test_another_writer_of_a_nodes_taints_loses_none(admin: Admin) -> None:
    admin.node(NODE, devices=0)
    admin.taint_node(NODE, "theirs", "NoSchedule", "1")
    asked = []

    def add(taints: list[Taint]) -> list[Taint]:
        asked.append([taint["key"] for taint in taints])
        if len(asked) == 1:
            admin.taint_node(NODE, "between", "NoSchedule")
        return [*taints, {"key": "late", "effect": "NoSchedule"}]

    admin.change_node_taints(NODE, add)
    assert asked == [["theirs"], ["theirs", "between"]]
    assert [taint["key"] for taint in admin.node_taints(NODE)] == ["theirs", "between", "late"]
    for key in ("theirs", "between", "late"):
        admin.untaint_node(NODE, key)
    assert admin.node_taints(NODE) == []


def test_ultraservers_are_served_in_either_version_or_not_at_all(admin: Admin) -> None:
    assert admin.served("NeuronUltraServer") is None
    assert admin.items("NeuronUltraServer") == []
    admin.serve_ultraservers("v1beta1")
    made = admin.ultraserver("us-1", members=["node-a", "node-b"], state="Degraded")
    assert made["apiVersion"] == "neuron.aws.com/v1beta1"
    assert [member["nodeName"] for member in made["spec"]["topology"]] == ["node-a", "node-b"]
    assert made["status"]["state"] == "Degraded"

    admin.serve_ultraservers("v1")
    (kept,) = admin.items("NeuronUltraServer")
    assert (kept["apiVersion"], kept["metadata"]["uid"]) == ("neuron.aws.com/v1", made["metadata"]["uid"])
    admin.ultraserver("us-1", members=["node-a"])
    assert len(admin.get("NeuronUltraServer", "us-1")["spec"]["topology"]) == 1

    admin.stop_serving_ultraservers()
    assert admin.served("NeuronUltraServer") is None
    assert admin.items("NeuronUltraServer") == []


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
