"""ResourceSlices as the API server sends them → the compact form that is kept of them. Pure.

A fleet has few kinds of devices, and a node's list of them is most often the same as its neighbour's: equal values
become one object, so that 160,000 devices cost little more than their 10,000 slices. Whatever of a device cannot be
read is left out of that device; it costs neither the others nor the list.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from alerts.faults import Effect
from remediator.inventory import NEURON_DEVICE, NEURON_NODE, Build, Device, DeviceTaint, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_Time = Annotated[datetime, msgspec.Meta(tz=True)]

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_REMEMBERED = 10_000
"""Values to share at most; taints that come and go must not fill the memory."""


class SliceMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of a ResourceSlice's metadata."""

    name: str
    resource_version: str = ""


class Pool(msgspec.Struct, frozen=True):
    """The pool a slice belongs to."""

    name: str
    generation: int = 0


class SliceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A slice's content; each device is read by itself."""

    driver: str
    pool: Pool
    node_name: str = ""
    devices: list[msgspec.Raw] | None = None


class SliceObject(msgspec.Struct, frozen=True):
    """A ResourceSlice (resource.k8s.io/v1)."""

    metadata: SliceMetadata
    spec: SliceSpec


class _Value(msgspec.Struct, frozen=True):
    number: int | None = msgspec.field(name="int", default=None)
    string: str | None = None
    version: str | None = None


_NONE = _Value()


class _Attributes(msgspec.Struct, frozen=True, rename="camel"):
    device_id: _Value = _NONE
    instance_type: _Value = _NONE
    neuron_driver_version: _Value = _NONE
    dra_driver_version: _Value = _NONE
    capacity_block_id: _Value = _NONE


class _Taint(msgspec.Struct, frozen=True, rename="camel"):
    key: str
    effect: str
    value: str = ""
    time_added: str = ""


class _Entry(msgspec.Struct, frozen=True):
    name: str
    attributes: _Attributes = _Attributes()
    taints: list[_Taint] = []


class _Damaged(msgspec.Struct, frozen=True):
    """An entry of which something is not as it should be."""

    name: str
    attributes: Any = None
    taints: Any = None


class Compactor:
    """Makes slices compact; equal devices, and equal lists of them, are the same object in all of them."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, wide: SliceObject) -> Slice:
        """The compact form of one slice."""
        spec = wide.spec
        devices = tuple(self._shared(_device(entry)) for entry in _entries(spec.devices or []))
        node, pool = spec.node_name, spec.pool.name
        return Slice(
            name=wide.metadata.name,
            driver=self._shared(spec.driver),
            node=node,
            pool=node if pool == node else pool,  # one text less for each node
            generation=spec.pool.generation,
            devices=self._shared(devices),
        )

    def _shared(self, value: T) -> T:
        known: T | None = self._known.get(value)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[value] = value
        return known


def _entries(raws: list[msgspec.Raw]) -> Iterator[_Entry]:
    for raw in raws:
        try:
            yield msgspec.json.decode(raw, type=_Entry)
        except _UNREADABLE:
            if (damaged := _damaged(raw)) is not None:
                yield _repaired(damaged)


def _damaged(raw: msgspec.Raw) -> _Damaged | None:
    try:
        return msgspec.json.decode(raw, type=_Damaged)
    except _UNREADABLE:
        return None


def _repaired(damaged: _Damaged) -> _Entry:
    """What can be read of an entry, attribute by attribute and taint by taint."""
    attributes = damaged.attributes if isinstance(damaged.attributes, dict) else {}
    taints = damaged.taints if isinstance(damaged.taints, list) else []
    readable = {name: value for name, value in attributes.items() if _fitting(value, _Value) is not None}
    return _Entry(
        damaged.name,
        msgspec.convert(readable, _Attributes),
        [taint for taint in (_fitting(one, _Taint) for one in taints) if taint is not None],
    )


def _fitting(value: Any, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _device(entry: _Entry) -> Device:
    attributes = entry.attributes
    return Device(
        name=entry.name,
        number=attributes.device_id.number,
        build=Build(
            NEURON_NODE if entry.name == NEURON_NODE else NEURON_DEVICE,
            _text(attributes.instance_type),
            _text(attributes.neuron_driver_version),
            _text(attributes.dra_driver_version),
        ),
        capacity_block=_text(attributes.capacity_block_id),
        taints=tuple(_taint(one) for one in entry.taints),
    )


def _text(value: _Value) -> str:
    return value.string or value.version or ""


def _taint(taint: _Taint) -> DeviceTaint:
    return DeviceTaint(taint.key, taint.value, Effect.read(taint.effect), _fitting(taint.time_added, _Time))
