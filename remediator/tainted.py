"""Which taints are on which of our devices, by whom, and who uses those devices. Pure.

It goes through the taints that there are, never through all devices: a fleet has few of the first and many of the
second. Nothing is kept from one look to the next, so that it cannot differ from what the cluster holds.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from alerts.faults import Effect
from remediator.inventory import NEURON_NODE, DeviceTaint
from remediator.peer_object import PEER
from remediator.records import Taint
from remediator.targets import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from remediator.claims import Claims
    from remediator.foreign_rules import ForeignRule
    from remediator.inventory import Inventory
    from remediator.records import Record
    from remediator.rules import Rule


class Source(StrEnum):
    """Where a taint is written."""

    DRIVER = "driver"
    """In a ResourceSlice, by the DRA driver."""
    RECORD = "record"
    """In a DeviceTaintRule of ours, or on a Node for one of its devices."""
    PEER = "peer"
    """In a DeviceTaintRule of ours that flags the peer of a tainted node."""
    RULE = "rule"
    """In a DeviceTaintRule of somebody else."""


class Label(NamedTuple):
    """A device as metrics name it: by its index where a slice says it, else as the record or the rule names it."""

    node: str
    device: str


class TaintOn(NamedTuple):
    """One taint on one device."""

    label: Label
    key: str
    value: str
    effect: str
    source: Source


class ConsumerOf(NamedTuple):
    """One user of one tainted device; `pod` is empty where a claim holds the device and no pod uses it."""

    label: Label
    namespace: str
    claim: str
    pod: str


class Tainted(NamedTuple):
    """What there is, each thing once."""

    taints: tuple[TaintOn, ...]
    consumers: tuple[ConsumerOf, ...]


def tainted(
    *,
    inventory: Inventory,
    records: Iterable[Record],
    peers: Iterable[Rule],
    foreign: Iterable[ForeignRule],
    claims: Claims,
) -> Tainted:
    """Put together what slices, records, our peer rules, other people's rules and claims say.

    A rule that names no pool meets a device in every pool, or all of them: that is one line of taint, without a node,
    and its consumers, possibly everybody, are left out.
    """
    # As keys, because what is said twice counts once, in the order in which it was said.
    taints: dict[TaintOn, None] = {}
    places: dict[tuple[Label, Place], None] = {}
    found = chain(
        _by_driver(inventory),
        _by_records(inventory, records),
        _by_peers(inventory, peers),
        _by_rules(inventory, foreign, claims),
    )
    for place, label, taint, source in found:
        taints[TaintOn(label, taint.key, taint.value, str(taint.effect), source)] = None
        places[label, place] = None
    users = (ConsumerOf(label, *consumer) for label, place in places for consumer in claims.consumers(place))
    return Tainted(tuple(taints), tuple(dict.fromkeys(users)))


_Found = tuple[Place, Label, DeviceTaint | Taint, Source]


def _by_driver(inventory: Inventory) -> Iterator[_Found]:
    for place, taints in inventory.taints().items():
        label = _label(inventory, place, Label(*place))
        for taint in taints:
            yield place, label, taint, Source.DRIVER


def _by_records(inventory: Inventory, records: Iterable[Record]) -> Iterator[_Found]:
    for record in records:
        key, place = record.key, record.target.place
        said = Label(key.node, NEURON_NODE if place.device == NEURON_NODE else str(key.device))
        yield place, _label(inventory, place, said), record.taint, Source.RECORD


def _by_peers(inventory: Inventory, rules: Iterable[Rule]) -> Iterator[_Found]:
    for rule in rules:
        selector, taint = rule.spec.device_selector, rule.spec.taint
        place = Place(selector.pool, selector.device)
        said = Label(rule.metadata.annotations.get(PEER, selector.pool), selector.device)
        shown = DeviceTaint(taint.key, taint.value, Effect.read(taint.effect))
        yield place, _label(inventory, place, said), shown, Source.PEER


def _by_rules(inventory: Inventory, rules: Iterable[ForeignRule], claims: Claims) -> Iterator[_Found]:
    for rule in rules:
        place = Place(rule.pool, rule.device)
        for one in _in_pool(inventory, claims, rule.pool) if rule.pool and not rule.device else (place,):
            # A pool that no slice lists is taken to be named like its node, as the driver does it.
            yield one, _label(inventory, one, Label(*one)), rule.taint, Source.RULE


def _in_pool(inventory: Inventory, claims: Claims, pool: str) -> Iterable[Place]:
    """Every device of a pool, those that only claims know (its slice may be gone for a while) included."""
    listed = {device.name for _, device in inventory.devices_of(pool)}
    names = sorted(listed | claims.devices_of(pool))
    return [Place(pool, name) for name in names] or [Place(pool, "")]


def _label(inventory: Inventory, place: Place, otherwise: Label) -> Label:
    found = inventory.index_of(place)
    return otherwise if found is None else Label(*found)
