"""ResourceSlices as they travel → as they are kept: read as the driver writes them, shared, and never lost whole."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator import slices
from remediator.inventory import Build, DeviceTaint, Slice
from remediator.slices import Compactor, SliceObject
from tests.remediator.samples import DRIVER, NODE, Json
from tests.stack import shapes


def made(*devices: Json, node: str = NODE) -> bytes:
    """A slice as the API server writes it."""
    owner = {"metadata": {"name": node, "uid": "uid-1"}}
    object_ = shapes.resource_slice(owner, devices)
    object_["metadata"] |= {"name": f"slice-of-{node}", "uid": "slice-uid", "resourceVersion": "5"}
    return json.dumps(object_).encode()


def read(*devices: Json, node: str = NODE, compactor: Compactor | None = None) -> Slice:
    """The same as it is kept."""
    return (compactor or Compactor())(msgspec.json.decode(made(*devices, node=node), type=SliceObject))


def entry(**changes: Any) -> Json:
    """One device, changed."""
    return shapes.standalone_devices(4, "trn2.48xlarge")[3] | changes


def test_slices_are_read_as_the_driver_writes_them() -> None:
    standalone = read(*shapes.standalone_devices(16, "trn2.48xlarge"))
    ultraserver = read(shapes.ultraserver_device("block-1", "trn2u.48xlarge"))

    assert (standalone.name, standalone.driver, standalone.node, standalone.pool) == (
        f"slice-of-{NODE}",
        DRIVER,
        NODE,
        NODE,
    )
    assert standalone.generation == 1
    assert [(device.name, device.number) for device in standalone.devices] == [
        (f"neuron-device-{number}", number) for number in range(16)
    ]
    assert {device.build for device in standalone.devices} == {
        Build("neuron-device", "trn2.48xlarge", "2.31.7.0", "1.3.0")
    }
    (device,) = ultraserver.devices
    assert (device.name, device.capacity_block) == ("neuron-node", "block-1")
    assert device.build == Build("neuron-node", "trn2u.48xlarge", "2.31.7.0", "1.3.0")


def test_the_taints_of_the_driver_are_read() -> None:
    fault = {"key": "neuron.aws.com/device-unhealthy", "value": "sram-uncorrectable-error", "effect": "NoExecute"}
    peer = {"key": "neuron.aws.com/peer-tainted", "effect": "None", "timeAdded": "2026-10-15T14:32:01Z"}
    (device,) = read(entry(taints=[fault, peer])).devices

    assert device.taints == (
        DeviceTaint("neuron.aws.com/device-unhealthy", "sram-uncorrectable-error", Effect.NO_EXECUTE),
        DeviceTaint("neuron.aws.com/peer-tainted", "", Effect.NONE, datetime(2026, 10, 15, 14, 32, 1, tzinfo=UTC)),
    )


@pytest.mark.parametrize(
    "device_id",
    [{"string": "3"}, {"bool": True}, {"version": "3.0.0"}, {"ints": [3]}, {}, {"int": None}, {"int": "3"}, 3, None],
)
def test_an_id_that_is_no_number_is_no_id(device_id: object) -> None:
    whole = entry(capacity={"memory": {"value": "1"}})
    damaged = whole | {"attributes": whole["attributes"] | {"deviceId": device_id}}
    (device,) = read(damaged).devices

    assert device.number is None
    assert device.build == Build("neuron-device", "trn2.48xlarge", "2.31.7.0", "1.3.0")


GOOD = {"key": "k", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "left"),
    [
        pytest.param([GOOD | {"effect": "NoFun"}], (DeviceTaint("k", "", Effect.NONE),), id="unknown-effect"),
        pytest.param([GOOD | {"effect": 1}, GOOD], (DeviceTaint("k", "", Effect.NO_SCHEDULE),), id="effect-no-text"),
        pytest.param([{"effect": "NoSchedule"}], (), id="no-key"),
        pytest.param(
            [GOOD | {"timeAdded": "yesterday"}], (DeviceTaint("k", "", Effect.NO_SCHEDULE),), id="time-unreadable"
        ),
        pytest.param(
            [GOOD | {"timeAdded": "2026-10-15T14:32:01"}],
            (DeviceTaint("k", "", Effect.NO_SCHEDULE),),
            id="time-of-nowhere",
        ),
        pytest.param("none", (), id="no-list"),
        pytest.param(None, (), id="null"),
    ],
)
def test_a_taint_that_cannot_be_read_costs_nothing_else(taints: object, left: tuple[DeviceTaint, ...]) -> None:
    first, second = read(entry(taints=taints), shapes.standalone_devices(1, "trn2.48xlarge")[0]).devices

    assert (first.name, first.number, first.taints) == ("neuron-device-3", 3, left)
    assert second.number == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
attribute = st.sampled_from(["deviceId", "instanceType", "neuronDriverVersion", "draDriverVersion", "capacityBlockId"])
damaged_attributes = st.dictionaries(
    attribute, json_values | st.dictionaries(st.sampled_from(["int", "string", "version"]), json_values, max_size=2)
)


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"attributes": damaged_attributes | json_values, "taints": json_values})
    )
)
def test_nothing_in_a_device_costs_the_slice(changes: list[Json]) -> None:
    kept = read(*(entry(**change) for change in changes), shapes.ultraserver_device("block", "trn2u.48xlarge"))

    assert [device.name for device in kept.devices] == ["neuron-device-3"] * len(changes) + ["neuron-node"]
    assert all(isinstance(device.number, int | None) for device in kept.devices)
    hash(kept)


def test_what_has_no_name_is_no_device() -> None:
    assert [device.name for device in read({"name": 3}, {}, entry()).devices] == ["neuron-device-3"]


def test_bytes_that_are_no_text_cost_one_device() -> None:
    body = made(entry(), entry(name="other")).replace(b'"trn2.48xlarge"', b'"trn\xff"', 1)
    wide = msgspec.json.decode(body, type=SliceObject)

    assert [device.name for device in Compactor()(wide).devices] == ["other"]


def test_equal_devices_are_one_object_in_all_slices() -> None:
    compactor = Compactor()
    one, other, tainted = (
        read(*shapes.standalone_devices(16, "trn2.48xlarge"), node="a", compactor=compactor),
        read(*shapes.standalone_devices(16, "trn2.48xlarge"), node="b", compactor=compactor),
        read(*shapes.standalone_devices(3, "trn2.48xlarge"), entry(taints=[GOOD]), node="c", compactor=compactor),
    )

    assert one.devices is other.devices
    assert tainted.devices[2] is one.devices[2]
    assert tainted.devices[3] is not one.devices[3]


def test_taints_that_come_and_go_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_REMEMBERED", 50)
    compactor = Compactor()
    for number in range(200):
        kept = read(entry(taints=[GOOD | {"value": f"v{number}"}]), compactor=compactor)
        assert kept.devices[0].taints[0].value == f"v{number}"

    assert len(compactor._known) <= 50
