"""Nodes and ResourceSlices → where device N of node X is. Pure.

The slice is the truth about what can be tainted: a standalone node lists one device for each Neuron
device (`deviceId` is its index), an UltraServer node lists the single device `neuron-node`. Nothing here
reads the cluster or changes a slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

NEURON_NODE = "neuron-node"
"""Device name under which the Neuron DRA driver lists a whole UltraServer node."""


class NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of a Node's metadata."""

    name: str
    uid: str
    creation_timestamp: datetime


class Node(msgspec.Struct, frozen=True):
    """A Node; only its metadata matters here."""

    metadata: NodeMetadata


class AttributeValue(msgspec.Struct, frozen=True):
    """One device attribute; attributes of other types than whole numbers decode to None."""

    number: int | None = msgspec.field(name="int", default=None)


class Device(msgspec.Struct, frozen=True):
    """One entry of a slice."""

    name: str
    attributes: dict[str, AttributeValue] = {}


class Pool(msgspec.Struct, frozen=True):
    """The pool a slice belongs to; only slices of its newest generation count."""

    name: str
    generation: int = 0


class SliceMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of a ResourceSlice's metadata."""

    name: str


class SliceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A slice's content; `node_name` is empty for pools that are not tied to a node."""

    driver: str
    pool: Pool
    node_name: str = ""
    devices: list[Device] = []


class Slice(msgspec.Struct, frozen=True):
    """A ResourceSlice (resource.k8s.io/v1)."""

    metadata: SliceMetadata
    spec: SliceSpec


@dataclass(frozen=True, slots=True)
class Target:
    """What a taint lands on: one device of one pool of one driver.

    All three are non-empty, always: the API server accepts a selector without them, and such a rule
    taints every device in the cluster. `placed` is false where no slice confirmed the device.
    """

    driver: str
    pool: str
    device: str
    placed: bool = True

    def __post_init__(self) -> None:
        for name in ("driver", "pool", "device"):
            if not getattr(self, name):
                raise ValueError(f"building a taint target: `{name}` is empty; expected driver, pool and device")


@dataclass(slots=True)
class Inventory:
    """The ResourceSlices of the cluster by node; kept current by whoever watches them."""

    driver: str
    _by_node: dict[str, dict[str, Slice]] = field(default_factory=dict)

    def put(self, slice_: Slice) -> None:
        """Take in a slice that was added or changed. A slice's node never changes (it is immutable)."""
        if slice_.spec.driver == self.driver and slice_.spec.node_name:
            self._by_node.setdefault(slice_.spec.node_name, {})[slice_.metadata.name] = slice_

    def remove(self, slice_: Slice) -> None:
        """Forget a slice that was deleted."""
        slices = self._by_node.get(slice_.spec.node_name, {})
        slices.pop(slice_.metadata.name, None)
        if not slices:
            self._by_node.pop(slice_.spec.node_name, None)

    def nodes(self) -> Iterable[str]:
        """Nodes that have a slice."""
        return self._by_node.keys()

    def locate(self, node: str, device: int) -> Target:
        """Say where Neuron device `device` of node `node` is to be tainted."""
        return locate(self._by_node.get(node, {}).values(), driver=self.driver, node=node, device=device)


def locate(slices: Iterable[Slice], *, driver: str, node: str, device: int) -> Target:
    """Pick the target from the slices of one node.

    Without a slice that names the device the driver's own convention is used: pool = node name,
    device = `neuron-device-<index>`, marked as not placed.
    """
    current = _newest_generation(slices)
    for slice_ in current:
        for entry in slice_.spec.devices:
            if entry.name == NEURON_NODE:
                return Target(driver, slice_.spec.pool.name, NEURON_NODE)
    for slice_ in current:
        for entry in slice_.spec.devices:
            identity = entry.attributes.get("deviceId")
            if identity is not None and identity.number == device:
                return Target(driver, slice_.spec.pool.name, entry.name)
    return Target(driver, node, f"neuron-device-{device}", placed=False)


def _newest_generation(slices: Iterable[Slice]) -> list[Slice]:
    newest: dict[str, int] = {}
    listed = list(slices)
    for slice_ in listed:
        pool = slice_.spec.pool
        newest[pool.name] = max(pool.generation, newest.get(pool.name, pool.generation))
    return [slice_ for slice_ in listed if slice_.spec.pool.generation == newest[slice_.spec.pool.name]]
