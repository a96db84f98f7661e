"""Nodes and ResourceSlices → where device N of node X is, and what can be tainted at all. Pure.

The slice is the truth about what can be tainted: a standalone node lists one device for each Neuron
device (`deviceId` is its index), an UltraServer node lists the single device `neuron-node`. Nothing here
reads the cluster or changes a slice. Slices come in the compact form that `remediator.slices` makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from alerts.faults import Effect  # noqa: TC001 - part of a named tuple that others take apart at run time
from remediator.targets import Place, Target

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

NEURON_NODE = "neuron-node"
"""Device name under which the Neuron DRA driver lists a whole UltraServer node."""

NEURON_DEVICE = "neuron-device"
"""What the driver's names of single devices begin with."""

_NEURON_TYPES = ("trn", "inf")


class NodeLabels(msgspec.Struct, frozen=True):
    """The labels of a Node that mean something here; the others are dropped when it is read."""

    opt_out: str = msgspec.field(name="neuron-remediator/opt-out", default="")
    instance_type: str = msgspec.field(name="node.kubernetes.io/instance-type", default="")


class NodeAnnotations(msgspec.Struct, frozen=True):
    """The one annotation that means something here: see `remediator.node_records`."""

    records: str = msgspec.field(name="neuron-remediator/records", default="")


class NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of a Node's metadata."""

    name: str
    uid: str
    creation_timestamp: datetime
    labels: NodeLabels = NodeLabels()
    resource_version: str = ""
    annotations: NodeAnnotations = NodeAnnotations()


class NodeSpec(msgspec.Struct, frozen=True):
    """What is kept of a Node's spec. A taint stays as it came, as fields that we do not know are others' too."""

    taints: list[dict[str, Any]] | None = None


class Node(msgspec.Struct, frozen=True):
    """A Node, as far as it matters here."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()

    @property
    def opted_out(self) -> bool:
        """Whether the Node asks to be left alone."""
        return self.metadata.labels.opt_out == "true"

    @property
    def instance_type(self) -> str:
        """The EC2 instance type; empty where nobody said it."""
        return self.metadata.labels.instance_type

    @property
    def neuron(self) -> bool:
        """Whether machines of its type have Neuron devices, slices or not."""
        return self.instance_type.startswith(_NEURON_TYPES)


class DeviceTaint(NamedTuple):
    """A taint that the driver itself put on a device. `time_added` is None where it cannot be read."""

    key: str
    value: str
    effect: Effect
    time_added: datetime | None = None

    @property
    def disrupts(self) -> bool:
        """Whether it keeps work off the device, or evicts what runs there."""
        return self.effect.rank > 0


class Build(NamedTuple):
    """What hardware and software a device is; `kind` is `neuron-device` or `neuron-node`. Unknown texts are empty."""

    kind: str
    instance_type: str = ""
    neuron_driver_version: str = ""
    dra_driver_version: str = ""


class Device(NamedTuple):
    """One entry of a slice. `number` is the device's index; None where the slice does not say it."""

    name: str
    number: int | None
    build: Build
    capacity_block: str = ""
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def label(self) -> str:
        """What metrics call it: its index, or `neuron-node`."""
        return self.name if self.number is None or self.name == NEURON_NODE else str(self.number)


class Slice(NamedTuple):
    """A ResourceSlice; `node` is empty for pools that are not tied to a node."""

    name: str
    driver: str
    node: str
    pool: str
    generation: int
    devices: tuple[Device, ...]


@dataclass(slots=True)
class Inventory:
    """The devices in the cluster's Neuron slices; kept current by whoever watches the slices.

    What is counted is counted at each change, for the pool that changed: reading is free. Only slices of a pool's
    newest generation count. Mappings and collections that are handed out are live: read them at once, never keep one.
    """

    driver: str
    _pools: dict[str, tuple[Slice, ...]] = field(default_factory=dict)
    _pools_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _targets: int = 0
    _builds: dict[Build, int] = field(default_factory=dict)
    _taints: dict[Place, tuple[DeviceTaint, ...]] = field(default_factory=dict)
    _unavailable: set[Place] = field(default_factory=set)

    def put(self, slice_: Slice) -> bool:
        """Take in a slice that was added or changed; says whether what counts is different now.

        A slice's driver, node and pool never change (they are immutable).
        """
        if slice_.driver != self.driver or not slice_.node:
            return False
        others = (one for one in self._pools.get(slice_.pool, ()) if one.name != slice_.name)
        return self._change(slice_.pool, tuple(sorted((*others, slice_))))

    def remove(self, slice_: Slice) -> bool:
        """Forget a slice that was deleted; says whether what counts is different now."""
        held = self._pools.get(slice_.pool, ())
        return self._change(slice_.pool, tuple(one for one in held if one.name != slice_.name))

    def same(self, other: Inventory) -> bool:
        """Whether both hold the same slices."""
        return self._pools == other._pools

    def nodes(self) -> AbstractSet[str]:
        """Nodes that have a slice."""
        return self._pools_of.keys()

    def targets(self) -> int:
        """How many things can be tainted."""
        return self._targets

    def builds(self) -> Mapping[Build, int]:
        """How many devices there are of each build."""
        return self._builds

    def taints(self) -> Mapping[Place, tuple[DeviceTaint, ...]]:
        """The driver's own taints, by place; places without any are not in it."""
        return self._taints

    def unavailable(self) -> AbstractSet[Place]:
        """Places where a taint of the driver itself keeps work off."""
        return self._unavailable

    def pools(self) -> AbstractSet[str]:
        """Pools that have a slice."""
        return self._pools.keys()

    def devices_of(self, pool: str) -> Iterator[tuple[str, Device]]:
        """Each device of a pool, with its node."""
        for slice_ in _newest_generation(self._pools.get(pool, ())):
            for device in slice_.devices:
                yield slice_.node, device

    def index_of(self, place: Place) -> tuple[str, str] | None:
        """Node and device label (as metrics have it) of a place; None if no slice lists it."""
        for node, device in self.devices_of(place.pool):
            if device.name == place.device:
                return node, device.label
        return None

    def locate(self, node: str, device: int, *, claimed: Collection[str] = ()) -> Target:
        """Say where Neuron device `device` of node `node` is to be tainted; see `locate`."""
        slices = [slice_ for pool in self._pools_of.get(node, ()) for slice_ in self._pools[pool]]
        return locate(slices, driver=self.driver, node=node, device=device, claimed=claimed)

    def _change(self, pool: str, after: tuple[Slice, ...]) -> bool:
        before = self._pools.get(pool, ())
        if before == after:
            return False
        self._count(pool, before, -1)
        self._count(pool, after, +1)
        if after:
            self._pools[pool] = after
        else:
            del self._pools[pool]
        is_in, was_in = {one.node for one in after}, {one.node for one in before}
        for node in is_in ^ was_in:
            self._file(node, pool, listed=node in is_in)
        return _substance(before) != _substance(after)

    def _file(self, node: str, pool: str, *, listed: bool) -> None:
        pools = {*self._pools_of.pop(node, ())} - {pool} | ({pool} if listed else set())
        if pools:
            self._pools_of[node] = tuple(sorted(pools))

    def _count(self, pool: str, slices: tuple[Slice, ...], sign: int) -> None:
        devices = {device.name: device for slice_ in _newest_generation(slices) for device in slice_.devices}
        self._targets += sign * len(devices)
        for device in devices.values():
            count = self._builds.get(device.build, 0) + sign
            if count:
                self._builds[device.build] = count
            else:
                del self._builds[device.build]
            if device.taints:
                self._mark(Place(pool, device.name), device.taints if sign > 0 else ())

    def _mark(self, place: Place, taints: tuple[DeviceTaint, ...]) -> None:
        self._taints.pop(place, None)
        self._unavailable.discard(place)
        if taints:
            self._taints[place] = taints
        if any(taint.disrupts for taint in taints):
            self._unavailable.add(place)


def locate(slices: Iterable[Slice], *, driver: str, node: str, device: int, claimed: Collection[str] = ()) -> Target:
    """Pick the target from the slices of one node's pools.

    What no slice lists may still be in use: `claimed` are the names of our driver's devices that allocated claims hold
    in the pool named like the node. Else the driver's own convention is used: pool = node name, device =
    `neuron-device-<index>`, marked as not placed.
    """
    listed = [(one.pool, entry) for one in _newest_generation(slices) if one.node == node for entry in one.devices]
    for pool, entry in listed:
        if entry.name == NEURON_NODE:
            return Target(driver, pool, NEURON_NODE)
    for pool, entry in listed:
        if entry.number == device:
            return Target(driver, pool, entry.name)
    if not listed and NEURON_NODE in claimed:
        return Target(driver, node, NEURON_NODE)
    convention = f"{NEURON_DEVICE}-{device}"
    # A slice that gives the name to another index has the last word on what the claim holds.
    elsewhere = any(entry.name == convention for _, entry in listed)
    return Target(driver, node, convention, placed=convention in claimed and not elsewhere)


def _newest_generation(slices: Iterable[Slice]) -> list[Slice]:
    newest: dict[str, int] = {}
    listed = list(slices)
    for slice_ in listed:
        newest[slice_.pool] = max(slice_.generation, newest.get(slice_.pool, slice_.generation))
    return [slice_ for slice_ in listed if slice_.generation == newest[slice_.pool]]


def _substance(slices: tuple[Slice, ...]) -> list[tuple[str, tuple[Device, ...]]]:
    """What a decision may depend on: which devices of which node, and their taints."""
    return [(slice_.node, slice_.devices) for slice_ in _newest_generation(slices)]
