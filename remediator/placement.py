"""Whether a device is tainted by a rule, or its Node as a whole. Pure.

A rule singles the device out, so it is used wherever the cluster serves rules and there is something for one to select.
"""

from __future__ import annotations

from enum import StrEnum

from remediator.targets import AnyTarget, NodeTarget, Target


class Choice(StrEnum):
    """What the operator wants, by `--backend`."""

    AUTO = "auto"
    """A rule where rules are served and the node has Neuron slices, or claims show that it had; else the Node."""
    RULES = "device-taint-rule"
    """Rules only; without a slice, for the device by the driver's naming convention."""
    NODES = "node-taint"
    """Taints of Nodes only."""


def settle(target: Target, node: str, *, choice: Choice, served: bool, known: bool) -> AnyTarget:
    """Choose between the device and its Node.

    `served` is whether the cluster serves rules, `known` whether slices or claims show devices of that node.
    """
    if choice is Choice.RULES:
        return target
    if by_node(choice, served=served):
        return NodeTarget(node, target, placed=True)
    # The slice may be away for a moment only, so the Node is no place to move to.
    return target if known else NodeTarget(node, target)


def by_node(choice: Choice, *, served: bool) -> bool:
    """Whether nothing but Nodes can be tainted, whatever slices say."""
    return choice is Choice.NODES or (choice is Choice.AUTO and not served)
