"""Placement: the whole table of what the operator wants, what the cluster serves and what is known of the node."""

from __future__ import annotations

from itertools import product

import pytest

from remediator.placement import Choice, by_node, settle
from remediator.targets import NodeTarget, Target
from tests.remediator.samples import DRIVER, NODE

LISTED = Target(DRIVER, NODE, "neuron-node")
GUESSED = Target(DRIVER, NODE, "neuron-device-3", placed=False)
RULES, NODES, AUTO = Choice.RULES, Choice.NODES, Choice.AUTO


def told(target: Target, choice: Choice, *, served: bool, known: bool) -> str:
    """What is tainted, in a word; a Node that is meant for the time being is "maybe"."""
    found = settle(target, NODE, choice=choice, served=served, known=known)
    if not isinstance(found, NodeTarget):
        assert found is target
        return "device"
    assert (found.node, found.device) == (NODE, target)
    return "node" if found.placed else "maybe"


# By (served, known).
TABLE = {
    RULES: {(True, True): "device", (True, False): "device", (False, True): "device", (False, False): "device"},
    NODES: {(True, True): "node", (True, False): "node", (False, True): "node", (False, False): "node"},
    AUTO: {(True, True): "device", (True, False): "maybe", (False, True): "node", (False, False): "node"},
}


@pytest.mark.parametrize("target", [LISTED, GUESSED])
@pytest.mark.parametrize(("choice", "served", "known"), list(product(Choice, [True, False], [True, False])))
def test_what_is_tainted(target: Target, choice: Choice, *, served: bool, known: bool) -> None:
    assert told(target, choice, served=served, known=known) == TABLE[choice][served, known]


@pytest.mark.parametrize(("choice", "served"), list(product(Choice, [True, False])))
def test_by_node_is_when_no_slice_could_change_it(choice: Choice, *, served: bool) -> None:
    outcomes = {told(LISTED, choice, served=served, known=known) for known in (True, False)}

    assert by_node(choice, served=served) == (outcomes == {"node"})
