"""The benchmarks must report what the product reads, and compare it with the same objects."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from alerts.faults import FAULTS
from remediator.inventory import Node
from remediator.notification import parse
from remediator.records import MANAGED_BY
from remediator.rule_records import to_object
from remediator.slices import Compactor, SliceObject
from tests.bench import fleet
from tests.bench.faults import DEVICES, alert, bare, node_names, notification, record, spread
from tests.stack import shapes

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)


def test_a_thousand_faults_are_on_a_thousand_devices_and_of_every_kind() -> None:
    keys = spread(1000)

    assert len({(key.node, key.device) for key in keys}) == len(keys) == 1000
    assert {key.fault for key in keys} == set(FAULTS)
    assert len({key.node for key in keys}) == 63


def test_names_of_ten_thousand_nodes_differ() -> None:
    assert len(set(node_names(10_000))) == 10_000


def test_a_notification_is_read_as_what_it_reports() -> None:
    keys = spread(20)
    read = parse(notification([alert(key, NOW) for key in keys]))

    assert [(one.labels["node"], int(one.labels["device"]), one.labels["fault"]) for one in read.alerts] == [
        (key.node, key.device, key.fault) for key in keys
    ]
    assert {one.starts_at for one in read.alerts} == {NOW}


def test_the_floor_is_the_same_object_without_our_mark() -> None:
    ours = record(spread(1)[0], "some-uid", NOW)
    floor, product = bare(ours, "floor"), to_object(ours, "resource.k8s.io/v1")

    assert MANAGED_BY not in floor["metadata"]["labels"]
    assert floor["metadata"]["name"] == f"floor.{product['metadata']['name']}"
    assert floor["spec"] == product["spec"]
    assert floor["metadata"]["annotations"] == product["metadata"]["annotations"]
    assert floor["metadata"]["ownerReferences"] == product["metadata"]["ownerReferences"]


def test_a_node_is_as_big_as_a_real_one_and_can_be_read() -> None:
    made = fleet.node("ip-10-0-0-1", "2026-01-02T03:04:05Z")
    made["metadata"] |= {"uid": "some-uid", "creationTimestamp": "2026-01-02T03:04:05Z", "resourceVersion": "1"}
    body = msgspec.json.encode(made)

    assert 10_000 < len(body) < 15_000
    assert body.count(b"sha256:") == 50
    assert msgspec.json.decode(body, type=Node).neuron
    assert len(msgspec.json.encode(fleet.heartbeat("2026-01-02T03:04:05Z"))) < 1000


def test_a_slice_is_read_as_sixteen_devices() -> None:
    owner = {"metadata": {"name": "some-node", "uid": "some-uid"}}
    made = shapes.resource_slice(owner, shapes.standalone_devices(DEVICES, fleet.INSTANCE_TYPE))
    made["metadata"]["name"] = "as-the-server-names-it"
    kept = Compactor()(msgspec.json.decode(msgspec.json.encode(made), type=SliceObject))

    assert [device.number for device in kept.devices] == list(range(16))
    assert {device.build.instance_type for device in kept.devices} == {fleet.INSTANCE_TYPE}
