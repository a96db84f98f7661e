"""What there is to say about a node or a device to somebody who was just woken up, as a document. Pure.

Everything that automation knows is in it, and nothing else: what is wrong, what was done, why, what ends it, who is
affected, and the commands to go on with. How it looks is `remediator.cli.rendering`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from alerts.faults import FAULTS, WITHHELD
from remediator.cli import standing
from remediator.cli.listing import Table, entries, table
from remediator.cli.next_steps import Command, commands, rule_name
from remediator.cli.picture import distinct
from remediator.cli.words import counted, joined, no_such_node, plain, since, where
from remediator.inventory import NEURON_NODE
from remediator.records import Record, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from alerts.faults import Effect
    from remediator.cli.address import Address
    from remediator.cli.picture import Picture
    from remediator.inventory import Target

_FEW = 20
_FEW_RECORDS = 3
"""More of them on a node are a table, and each is told of device by device."""

RUNBOOKS = "alerts/runbooks"
"""Where the runbooks are in the repository."""


class Line(NamedTuple):
    """One statement under a short word."""

    word: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part. `effect` says how bad it is, where that means something."""

    title: str
    table: Table | None = None
    lines: tuple[Line, ...] = ()
    commands: tuple[Command, ...] = ()
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The document. `found` is false when there is nothing of that name at all."""

    title: str
    found: bool
    sections: tuple[Section, ...]


def explain(
    address: Address, picture: Picture, *, kubeconfig: str | None = None, runbooks: str = RUNBOOKS
) -> Explanation:
    """Say everything about an address.

    `kubeconfig` is the file that the commands to copy must name, if any; `runbooks` is where the runbooks are.
    """
    records = [record for record in picture.rules.records if address.names(record.key)]
    listed = _is_listed(address, picture)
    # What could not be read is not called missing.
    there = bool(records) or not (listed is False or (picture.node_read and picture.node is None))
    many = address.device is None and len(records) > _FEW_RECORDS
    sections = [_table(records, picture)] if many else [_of_record(record, picture, runbooks) for record in records]
    if not records:
        sections.append(Section(title="Nothing is held", lines=_nothing(address, picture, listed=listed)))
    next_steps = tuple(commands(address, records, picture, kubeconfig=kubeconfig, one_by_one=many))
    sections += [
        Section(title="In use now", lines=tuple(_uses(address, records, picture))),
        Section(title="Node", lines=tuple(_node(address, picture))),
        Section(title="Next", commands=next_steps),
    ]
    if picture.unread:
        sections.append(Section(title="Not known", lines=tuple(Line("unread", plain(text)) for text in picture.unread)))
    return Explanation(title=_title(address, picture), found=there, sections=tuple(sections))


def _title(address: Address, picture: Picture) -> str:
    device = "" if address.device is None else f", device {address.device}"
    fault = "" if address.fault is None else f", fault {address.fault}"
    missing = picture.node_read and picture.node is None
    return f"{address.node}{device}{fault}{f': {no_such_node(address.node, picture.nodes)}' if missing else ''}"


def _table(records: list[Record], picture: Picture) -> Section:
    withheld = any(record.state is State.WITHHELD for record in records)
    listed = entries(picture.rules._replace(records=tuple(records)), None, driver=picture.driver, about=None, states=())
    drawn = table(listed, now=picture.now, wide=False, sources=False, why=withheld)
    return Section(title=f"{counted(len(records), 'record')}, one fault on one device each", table=drawn)


def _of_record(record: Record, picture: Picture, runbooks: str) -> Section:
    key, fault = record.key, FAULTS.get(record.key.fault)
    latched = ", latched" if record.latched else ""
    lines = [
        Line("wrong", standing.finding(record)),
        Line("done", standing.done(record, picture)),
        Line("why", standing.why(record, picture)),
        Line("ends", standing.ends(record, picture)),
        Line(
            "fired",
            f"first {since(record.first_fired, picture.now)}, the newest spell {since(record.last_fired, picture.now)}",
        ),
        Line("rule", rule_name(record)),
    ]
    if fault is not None:
        lines.append(Line("runbook", f"{runbooks}/{fault.alert}.md"))
    if record.state is State.WITHHELD:
        lines.append(Line("runbook", f"{runbooks}/{WITHHELD}.md"))
    return Section(
        title=f"Device {key.device}: {key.fault} ({record.state}{latched})",
        lines=tuple(lines),
        effect=record.taint.effect,
    )


def _is_listed(address: Address, picture: Picture) -> bool | None:
    """Whether the node's slices know the device; None where they cannot say."""
    inventory = picture.inventory
    if address.device is None or inventory is None or address.node not in inventory.nodes():
        return None
    return inventory.locate(address.node, address.device).placed


def _nothing(address: Address, picture: Picture, *, listed: bool | None) -> tuple[Line, ...]:
    lines = [Line("held", f"no fault of {address} is on record")]
    if listed is False:
        lines.append(Line("device", f"the slices of {address.node} list no device {address.device}"))
    held = [f"{one.key.device}/{one.key.fault}" for one in picture.rules.records if one.key.node == address.node]
    if held:
        lines.append(Line("but", f"held on this node: {joined(held[:_FEW])}"))
    device = "" if address.device is None else f',device="{address.device}"'
    lines += [
        Line("look", f'in Prometheus: neuron_device_fault{{node="{address.node}"{device}}} == 1, neuron_device_health'),
        Line(
            "look", "in Alertmanager: alerts NeuronDevice* of this node; NeuronDeviceFaultNotHeld says what is missing"
        ),
        Line("look", "at the exporter on the node, if its series are missing: without a reading there is no alert"),
    ]
    return tuple(lines)


def _targets(address: Address, records: Iterable[Record], picture: Picture) -> list[Target]:
    targets = [record.target for record in records]
    if address.device is not None and picture.inventory is not None:
        targets.append(picture.inventory.locate(address.node, address.device))
    return distinct(targets)


def _uses(address: Address, records: Iterable[Record], picture: Picture) -> Iterator[Line]:
    if picture.claims is None:
        yield Line("users", "not known: ResourceClaims could not be read")
        return
    targets = _targets(address, records, picture)
    for target in targets:
        users = picture.claims.consumers(target.place)
        for user in users[:_FEW]:
            pod = f"pod {user.namespace}/{user.pod}" if user.pod else "no pod"
            yield Line(plain(target.device), f"{pod}, by claim {user.namespace}/{user.claim}")
        if len(users) > _FEW:
            yield Line(plain(target.device), f"and {len(users) - _FEW} more")
        if not users:
            yield Line(plain(target.device), "nobody: no allocated claim holds it")
    if not targets:
        yield Line("users", "name a device (NODE/DEVICE) to see who uses it")


def _node(address: Address, picture: Picture) -> Iterator[Line]:
    node, inventory = picture.node, picture.inventory
    if node is not None:
        kind = f", {plain(node.instance_type)}" if node.instance_type else ""
        yield Line("node", f"there since {since(node.metadata.creation_timestamp, picture.now)}{kind}")
        yield Line("opted out", "yes: no taint of ours has an effect on it" if node.opted_out else "no")
    elif picture.node_read:
        yield Line("node", "there is no Node of that name")
    if inventory is not None:
        yield Line("slices", _slices(address.node, picture))
        yield from _driver_taints(address, picture)
    if address.device is not None and inventory is not None:
        target = inventory.locate(address.node, address.device)
        named = f"{plain(target.device)} of pool {plain(target.pool)} is the name it would have: no slice lists it"
        yield Line("target", where(target) if target.placed else named)
    for rule in picture.rules.others:
        selector = rule.spec.device_selector
        if selector.driver in ("", picture.driver) and selector.pool in ("", address.node):
            taint = plain(f"{rule.spec.taint.key}:{rule.spec.taint.effect}")
            yield Line(
                "other rule", f"{plain(rule.metadata.name)} ({taint}) is not a record and may taint devices here"
            )


def _slices(node: str, picture: Picture) -> str:
    inventory = picture.inventory
    if inventory is None or node not in inventory.nodes():
        return f"none of driver {picture.driver}: it does not run there, or has not come up since its last start"
    if inventory.locate(node, 0).device == NEURON_NODE:
        return "list the node as one device (UltraServer)"
    return f"list {counted(inventory.targets(), 'device')}"


def _driver_taints(address: Address, picture: Picture) -> Iterator[Line]:
    inventory = picture.inventory
    if inventory is None:
        return
    wanted = None if address.device is None else inventory.locate(address.node, address.device).place
    for place, taints in sorted(inventory.taints().items()):
        if wanted in (None, place):
            said = joined(plain(f"{taint.key}={taint.value}:{taint.effect}") for taint in taints)
            yield Line("driver", f"taints {plain(place.device)} itself: {said}")
