"""Slices → targets: which device of which pool a fault on device N of node X lands on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.inventory import Inventory, Slice, Target, locate
from tests.remediator.samples import DRIVER, NODE, device, resource_slice
from tests.remediator.strategies import devices, hostile_texts, node_names
from tests.stack import shapes

STANDALONE = resource_slice(*(device(f"neuron-device-{number}", number) for number in range(16)))
ULTRASERVER = resource_slice(device("neuron-node", 0))


def guess(number: int) -> Target:
    """Where a device is by the driver's naming convention alone."""
    return Target(DRIVER, NODE, f"neuron-device-{number}", placed=False)


@pytest.mark.parametrize(
    ("slices", "number", "target"),
    [
        pytest.param([STANDALONE], 3, Target(DRIVER, NODE, "neuron-device-3"), id="standalone"),
        pytest.param([STANDALONE], 0, Target(DRIVER, NODE, "neuron-device-0"), id="first"),
        pytest.param([STANDALONE], 16, guess(16), id="not-listed"),
        pytest.param([], 3, guess(3), id="no-slice"),
        pytest.param([resource_slice()], 3, guess(3), id="empty-slice"),
        pytest.param([ULTRASERVER], 0, Target(DRIVER, NODE, "neuron-node"), id="ultraserver"),
        pytest.param([ULTRASERVER], 7, Target(DRIVER, NODE, "neuron-node"), id="ultraserver-any-device"),
        pytest.param(
            [resource_slice(device("chip-a", 3), device("neuron-device-3", 4))],
            3,
            Target(DRIVER, NODE, "chip-a"),
            id="the-id-counts-and-not-the-name",
        ),
        pytest.param([resource_slice(device("neuron-device-3", None))], 3, guess(3), id="no-id"),
        pytest.param(
            [resource_slice(device("d", 3), pool="pool-of-its-own")],
            3,
            Target(DRIVER, "pool-of-its-own", "d"),
            id="pool-with-another-name",
        ),
        pytest.param(
            [resource_slice(device("old", 3)), resource_slice(device("new", 3), name="slice-2", generation=2)],
            3,
            Target(DRIVER, NODE, "new"),
            id="two-generations",
        ),
        pytest.param(
            [resource_slice(device("old", 3)), resource_slice(device("new", 4), name="slice-2", generation=2)],
            3,
            guess(3),
            id="gone-with-the-old-generation",
        ),
        pytest.param(
            [resource_slice(device("neuron-node", 0)), resource_slice(device("d", 3), name="slice-2", generation=2)],
            3,
            Target(DRIVER, NODE, "d"),
            id="no-longer-an-ultraserver",
        ),
        pytest.param(
            [
                resource_slice(device("a", 3), pool="pool-a", generation=1),
                resource_slice(device("b", 4), pool="pool-b", generation=9, name="slice-2"),
            ],
            3,
            Target(DRIVER, "pool-a", "a"),
            id="generations-of-different-pools-say-nothing-of-each-other",
        ),
        pytest.param(
            [resource_slice(device("a", 0)), resource_slice(device("b", 1), name="slice-2")],
            1,
            Target(DRIVER, NODE, "b"),
            id="pool-of-two-slices",
        ),
    ],
)
def test_where_a_device_is(slices: list[Slice], number: int, target: Target) -> None:
    """The same in whatever order the slices come."""
    for order in (slices, slices[::-1]):
        assert locate(order, driver=DRIVER, node=NODE, device=number) == target


def test_slices_are_kept_by_node() -> None:
    inventory = Inventory(DRIVER)
    inventory.put(resource_slice(device("here", 3)))
    inventory.put(resource_slice(device("there", 3), name="slice-2", node_name="other", pool="other"))

    assert inventory.locate(NODE, 3) == Target(DRIVER, NODE, "here")
    assert inventory.locate("other", 3) == Target(DRIVER, "other", "there")


def test_a_changed_slice_replaces_what_was_known() -> None:
    inventory = Inventory(DRIVER)
    inventory.put(STANDALONE)
    inventory.put(resource_slice(device("renamed", 3)))

    assert inventory.locate(NODE, 3) == Target(DRIVER, NODE, "renamed")
    assert inventory.locate(NODE, 4) == guess(4)


def test_a_removed_slice_leaves_the_convention() -> None:
    """The kubelet deletes the slices of its node at every start (dra-driver-nvidia-gpu#330)."""
    inventory = Inventory(DRIVER)
    inventory.put(STANDALONE)
    inventory.remove(STANDALONE)

    assert inventory.locate(NODE, 3) == guess(3)
    inventory.remove(STANDALONE)
    assert inventory == Inventory(DRIVER)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(resource_slice(device("gpu-3", 3), driver="gpu.nvidia.com"), id="other-driver"),
        pytest.param(resource_slice(device("shared-3", 3), node_name=""), id="of-no-node"),
    ],
)
def test_foreign_slices_are_not_taken_in(foreign: Slice) -> None:
    inventory = Inventory(DRIVER)
    inventory.put(foreign)

    assert inventory == Inventory(DRIVER)
    inventory.remove(foreign)
    assert inventory.locate(NODE, 3) == guess(3)


def decoded(object_: dict[str, Any]) -> Slice:
    object_["metadata"] |= {"name": "slice-1", "uid": "slice-uid"}
    return msgspec.json.decode(json.dumps(object_).encode(), type=Slice)


def test_slices_are_read_as_the_driver_writes_them() -> None:
    owner = {"metadata": {"name": NODE, "uid": "uid-1"}}
    standalone = decoded(shapes.resource_slice(owner, shapes.standalone_devices(16, "trn2.48xlarge")))
    ultraserver = decoded(shapes.resource_slice(owner, [shapes.ultraserver_device("block-1", "trn2u.48xlarge")]))

    assert locate([standalone], driver=DRIVER, node=NODE, device=11) == Target(DRIVER, NODE, "neuron-device-11")
    assert locate([ultraserver], driver=DRIVER, node=NODE, device=11) == Target(DRIVER, NODE, "neuron-node")


@pytest.mark.parametrize(
    "device_id",
    [{"string": "3"}, {"bool": True}, {"version": "3.0.0"}, {"ints": [3]}, {}, {"int": None}],
)
def test_an_id_that_is_no_number_places_nothing(device_id: dict[str, object]) -> None:
    owner = {"metadata": {"name": NODE, "uid": "uid-1"}}
    odd = {"name": "neuron-device-3", "attributes": {"deviceId": device_id}, "capacity": {"memory": {"value": "1"}}}

    assert locate([decoded(shapes.resource_slice(owner, [odd]))], driver=DRIVER, node=NODE, device=3) == guess(3)


slices = st.lists(
    st.builds(
        resource_slice,
        *[st.builds(device, st.sampled_from(["neuron-node", "a", "b"]), st.none() | st.integers(0, 3))] * 2,
        name=hostile_texts,
        pool=hostile_texts.filter(bool),
        generation=st.integers(0, 3),
    ),
    max_size=4,
)


@given(slices, node_names, devices)
def test_every_device_has_a_target(some: list[Slice], node: str, number: int) -> None:
    target = locate(some, driver=DRIVER, node=node, device=number)

    assert target.driver == DRIVER
    assert target.placed or target == Target(DRIVER, node, f"neuron-device-{number}", placed=False)
