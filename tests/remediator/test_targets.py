"""Targets: what can be tainted, and who is kept off what by it."""

from __future__ import annotations

from itertools import product

import pytest

from remediator.targets import AnyTarget, NodeTarget, Place, Target, lies_in

D, N, P = "neuron.aws.com", "node-a", "pool-2"
DEVICE, SEVENTH, WHOLE_NODE = (Target(D, N, name) for name in ("neuron-device-3", "neuron-device-7", "neuron-node"))
ELSEWHERE, OTHERS = Target(D, P, "neuron-device-3"), Target("gpu.example.com", N, "neuron-device-3")
NODE, OTHER_NODE = NodeTarget(N, DEVICE), NodeTarget("node-b", Target(D, "node-b", "neuron-device-3"))
IN_ANOTHER_POOL = NodeTarget(N, ELSEWHERE)

EVERY: dict[str, AnyTarget] = {
    "3": DEVICE,
    "7": SEVENTH,
    "neuron-node": WHOLE_NODE,
    "elsewhere": ELSEWHERE,
    "other's": OTHERS,
    "node": NODE,
    "other-node": OTHER_NODE,
    "node-with-a-pool-elsewhere": IN_ANOTHER_POOL,
}
CONTAINED = {
    *((one, one) for one in EVERY),
    *product(("3", "7", "neuron-node", "other's", "node"), ("node", "node-with-a-pool-elsewhere")),
    ("node-with-a-pool-elsewhere", "node"),
    ("elsewhere", "node-with-a-pool-elsewhere"),
}
"""Who is kept off the Node uses none of its devices, of whatever driver, and not the one that it stands for."""


@pytest.mark.parametrize(("one", "other"), list(product(EVERY, EVERY)))
def test_a_target_lies_in_itself_and_a_device_in_its_node(one: str, other: str) -> None:
    assert lies_in(EVERY[one], EVERY[other]) == ((one, other) in CONTAINED)


@pytest.mark.parametrize(
    ("parts", "missing"), [(("", N, "x"), "driver"), ((D, "", "x"), "pool"), ((D, N, ""), "device")]
)
def test_a_selector_with_an_empty_part_cannot_be_made(parts: tuple[str, str, str], missing: str) -> None:
    """The API server takes it, and taints every device there is."""
    with pytest.raises(ValueError, match=f"`{missing}` is empty"):
        Target(*parts)


def test_a_node_is_no_device_of_a_pool_of_its_name() -> None:
    assert NODE.place == Place(N, "")
    assert {NODE.place, DEVICE.place, WHOLE_NODE.place} == {Place(N, ""), Place(N, "neuron-device-3"), WHOLE_NODE.place}


def test_which_device_a_node_stands_for_makes_no_other_target_of_it() -> None:
    """The record on the Node does not say it, so that after a restart it is another one."""
    assert NodeTarget(N, SEVENTH, placed=True) == NODE
    assert len({NODE, IN_ANOTHER_POOL, NodeTarget(N, SEVENTH, placed=True)}) == 1
