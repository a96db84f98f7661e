"""What there is to say about a node or a device to somebody who was just woken up, as a document. Pure.

Everything that automation knows is in it, and nothing else: what is wrong, what was done, why, what ends it, who is
affected, and the commands to go on with. How it looks is `remediator.cli.rendering`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alerts.faults import FAULTS, WITHHELD
from remediator.cli import standing
from remediator.cli.listing import Table, entries, table
from remediator.cli.next_steps import Command, commands, rule_name
from remediator.cli.node_lines import Line, about_node
from remediator.cli.picture import distinct
from remediator.cli.words import called, counted, joined, no_such_node, plain, since
from remediator.node_records import ANNOTATION
from remediator.records import Record, State
from remediator.targets import NodeTarget, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from alerts.faults import Effect
    from remediator.cli.address import Address
    from remediator.cli.picture import Picture
    from remediator.targets import AnyTarget

_FEW = 20
_AFTER_DONE = 2
_FEW_RECORDS = 3
"""More of them on a node are a table, and each is told of device by device."""

RUNBOOKS = "alerts/runbooks"
"""Where the runbooks are in the repository."""


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
    records = [record for record in picture.held.records if address.names(record.key)]
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
        Section(title="Node", lines=tuple(about_node(address, picture))),
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
    listed = entries(picture.held._replace(records=tuple(records)), None, driver=picture.driver, about=None, states=())
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
        Line("rule", rule_name(record)) if isinstance(record.target, Target) else Line("kept", _kept(record)),
    ]
    if isinstance(record.target, NodeTarget):
        lines.insert(_AFTER_DONE, Line("no rule", standing.instead_of_rule(record, picture)))
    if fault is not None:
        lines.append(Line("runbook", f"{runbooks}/{fault.alert}.md"))
    if record.state is State.WITHHELD:
        lines.append(Line("runbook", f"{runbooks}/{WITHHELD}.md"))
    return Section(
        title=f"Device {key.device}: {key.fault} ({record.state}{latched})",
        lines=tuple(lines),
        effect=record.taint.effect,
    )


def _kept(record: Record) -> str:
    return f"in annotation {ANNOTATION} of Node {record.key.node}, with all records of the Node"


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
    held = [f"{one.key.device}/{one.key.fault}" for one in picture.held.records if one.key.node == address.node]
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


def _devices(address: Address, records: Iterable[Record], picture: Picture) -> list[AnyTarget]:
    """The devices whose users are asked for: of a Node that is tainted as a whole, the one that is faulty."""
    targets: list[AnyTarget] = [picture.device_of(record) for record in records]
    if address.device is not None and picture.inventory is not None:
        targets.append(picture.inventory.locate(address.node, address.device))
    return distinct(targets)


def _uses(address: Address, records: list[Record], picture: Picture) -> Iterator[Line]:
    if picture.claims is None:
        yield Line("users", "not known: ResourceClaims could not be read")
        return
    targets = _devices(address, records, picture)
    for target in targets:
        users = picture.claims.consumers(target.place)
        for user in users[:_FEW]:
            pod = f"pod {user.namespace}/{user.pod}" if user.pod else "no pod"
            yield Line(called(target), f"{pod}, by claim {user.namespace}/{user.claim}")
        if len(users) > _FEW:
            yield Line(called(target), f"and {len(users) - _FEW} more")
        if not users:
            yield Line(called(target), "nobody: no allocated claim holds it")
    if any(record.disrupts and isinstance(record.target, NodeTarget) for record in records):
        yield Line("the Node", "the Node's taint concerns every pod on it, with or without a claim")
    if not targets:
        yield Line("users", "name a device (NODE/DEVICE) to see who uses it")
