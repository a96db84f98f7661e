"""Slices → targets: which device of which pool a fault on device N of node X lands on, and what there is in all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator.inventory import NEURON_NODE, Build, DeviceTaint, Inventory, Node, Slice, locate
from remediator.targets import Place, Target
from tests.remediator.samples import DRIVER, NODE, device, resource_slice
from tests.remediator.strategies import devices, hostile_texts, node_names
from tests.stack import shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


CHIPS = [resource_slice(device("neuron-device-0", 0), device("chip", 1))]


@pytest.mark.parametrize(
    ("slices", "claimed", "number", "target"),
    [
        pytest.param([], {"neuron-device-3"}, 3, Target(DRIVER, NODE, "neuron-device-3"), id="in-use"),
        pytest.param([], {"neuron-device-3"}, 4, guess(4), id="another-one-in-use"),
        pytest.param([], {"neuron-node"}, 3, Target(DRIVER, NODE, "neuron-node"), id="ultraserver-in-use"),
        pytest.param([resource_slice()], {"neuron-node"}, 3, Target(DRIVER, NODE, "neuron-node"), id="empty-slice"),
        pytest.param(CHIPS, {"neuron-device-3"}, 3, Target(DRIVER, NODE, "neuron-device-3"), id="left-its-slice"),
        pytest.param(CHIPS, {"neuron-node"}, 3, guess(3), id="no-longer-an-ultraserver"),
        pytest.param(CHIPS, {"neuron-device-1"}, 1, Target(DRIVER, NODE, "chip"), id="the-slice-comes-first"),
        pytest.param(
            [resource_slice(device("neuron-device-3", 4))],
            {"neuron-device-3"},
            3,
            guess(3),
            id="name-of-another-device",
        ),
    ],
)
def test_where_a_device_is_that_no_slice_lists_but_a_claim_holds(
    slices: list[Slice], claimed: set[str], number: int, target: Target
) -> None:
    """Slices go while the kubelet restarts; what runs on the device goes on, and a rule still reaches it."""
    inventory = filled(slices)

    assert inventory.locate(NODE, number, claimed=claimed) == target


def filled(slices: Iterable[Slice]) -> Inventory:
    inventory = Inventory(DRIVER)
    for slice_ in slices:
        inventory.put(slice_)
    return inventory


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


NO_SCHEDULE = DeviceTaint("neuron.aws.com/device-unhealthy", "link-efa-error", Effect.NO_SCHEDULE)
NO_EXECUTE = DeviceTaint("neuron.aws.com/device-unhealthy", "hbm-uncorrectable-error", Effect.NO_EXECUTE)
PREVIEW = DeviceTaint("neuron.aws.com/peer-tainted", "", Effect.NONE)


def test_what_the_driver_has_tainted_is_known_and_what_that_costs() -> None:
    inventory = filled(
        [
            resource_slice(device("a", 0, PREVIEW), device("b", 1, NO_SCHEDULE, PREVIEW), device("c", 2)),
            resource_slice(device("d", 0, NO_EXECUTE), name="slice-2", node_name="other", pool="other"),
        ]
    )

    assert inventory.targets() == 4
    assert inventory.taints() == {
        Place(NODE, "a"): (PREVIEW,),
        Place(NODE, "b"): (NO_SCHEDULE, PREVIEW),
        Place("other", "d"): (NO_EXECUTE,),
    }
    assert inventory.unavailable() == {Place(NODE, "b"), Place("other", "d")}
    assert inventory.put(resource_slice(device("a", 0), device("b", 1, PREVIEW)))
    assert inventory.targets() == 3
    assert inventory.unavailable() == {Place("other", "d")}


def test_only_what_matters_counts_as_a_change() -> None:
    inventory = Inventory(DRIVER)

    assert inventory.put(resource_slice(device("a", 0)))
    assert not inventory.put(resource_slice(device("a", 0)))
    assert not inventory.put(resource_slice(device("a", 0), generation=2))
    assert not inventory.put(resource_slice(device("old", 0), name="slice-2", generation=1))
    assert not inventory.remove(resource_slice(device("old", 0), name="slice-2", generation=1))
    assert inventory.put(resource_slice(device("a", 0, PREVIEW), generation=2))
    assert inventory.remove(resource_slice(device("a", 0, PREVIEW), generation=2))
    assert inventory == Inventory(DRIVER)


def test_what_a_place_is_called_in_metrics() -> None:
    inventory = filled(
        [
            resource_slice(device("chip-a", 3), device("nameless", None), pool="pool"),
            resource_slice(device(NEURON_NODE, 0), name="slice-2", node_name="ultra", pool="ultra"),
        ]
    )

    assert inventory.index_of(Place("pool", "chip-a")) == (NODE, "3")
    assert inventory.index_of(Place("pool", "nameless")) == (NODE, "nameless")
    assert inventory.index_of(Place("ultra", NEURON_NODE)) == ("ultra", NEURON_NODE)
    assert inventory.index_of(Place("ultra", "chip-a")) is None
    assert inventory.index_of(Place("nowhere", "chip-a")) is None


taint_lists = st.lists(st.sampled_from([NO_SCHEDULE, NO_EXECUTE, PREVIEW]), max_size=2)
few_devices = st.lists(
    st.builds(
        lambda name, number, taints, build: device(name, number, *taints)._replace(build=build),
        st.sampled_from(["neuron-node", "a", "b", "c"]),
        st.none() | st.integers(0, 3),
        taint_lists,
        st.sampled_from([Build("neuron-device", "trn2.48xlarge"), Build("neuron-device", "trn1.32xlarge")]),
    ),
    max_size=3,
)
"""Devices with the same name among them, which no driver should list."""

WHERE = {"slice-1": (NODE, NODE), "slice-2": (NODE, NODE), "slice-3": (NODE, "shared"), "slice-4": ("other", "shared")}
"""Node and pool of each slice: neither ever changes, and a pool may span nodes."""

few_slices = st.builds(
    lambda name, devices, generation: resource_slice(
        *devices, name=name, node_name=WHERE[name][0], pool=WHERE[name][1], generation=generation
    ),
    st.sampled_from(sorted(WHERE)),
    few_devices,
    st.integers(1, 2),
)


@given(st.lists(st.tuples(st.booleans(), few_slices), max_size=12))
def test_counting_at_each_change_ends_as_counting_anew(changes: list[tuple[bool, Slice]]) -> None:
    inventory, current = Inventory(DRIVER), dict[str, Slice]()
    for there, slice_ in changes:
        if there:
            inventory.put(slice_)
            current[slice_.name] = slice_
        else:
            inventory.remove(slice_)
            current.pop(slice_.name, None)

    assert inventory == filled(current.values())
    assert inventory.nodes() == {slice_.node for slice_ in current.values()}
    assert sum(inventory.builds().values()) == inventory.targets()
    assert inventory.taints().keys() >= inventory.unavailable()
    assert all(inventory.index_of(place) for place in inventory.taints())


@given(st.permutations([resource_slice(device(n, i), name=n, generation=i % 2) for i, n in enumerate("abcd")]))
def test_the_order_of_slices_does_not_matter(slices: list[Slice]) -> None:
    assert filled(slices) == filled(sorted(slices))


@pytest.mark.parametrize(
    ("labels", "opted_out", "neuron"),
    [
        pytest.param({}, False, False, id="none"),
        pytest.param({"neuron-remediator/opt-out": "true"}, True, False, id="opted-out"),
        pytest.param({"neuron-remediator/opt-out": "True"}, False, False, id="not-quite"),
        pytest.param({"neuron-remediator/opt-out": ""}, False, False, id="empty"),
        pytest.param({"node.kubernetes.io/instance-type": "trn2.48xlarge"}, False, True, id="trainium"),
        pytest.param({"node.kubernetes.io/instance-type": "inf2.xlarge"}, False, True, id="inferentia"),
        pytest.param({"node.kubernetes.io/instance-type": "p5.48xlarge"}, False, False, id="another-vendor"),
    ],
)
def test_what_is_read_of_a_node(labels: Mapping[str, str], opted_out: bool, neuron: bool) -> None:  # noqa: FBT001 - a table
    made = shapes.node(NODE, "m5.large", labels)
    made["metadata"] |= {"uid": "uid-1", "creationTimestamp": "2026-11-30T11:00:00Z", "resourceVersion": "7"}
    node = msgspec.json.decode(json.dumps(made), type=Node)

    assert (node.metadata.name, node.metadata.uid, node.metadata.resource_version) == (NODE, "uid-1", "7")
    assert (node.opted_out, node.neuron) == (opted_out, neuron)
