"""Records that are kept on a Node, and the taints of ours that go with them, and back. Pure.

Where no rule can taint the device, the Node is tainted as a whole. All records of a Node are in one annotation of it,
with the taints we have set; both are changed in one patch that names the version it is based on. A taint that is not in
that list, or differs from it, is somebody else's: it stays as it is, where it is, to the byte.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from alerts.faults import FAULTS, Effect, Severity
from remediator.inventory import NEURON_DEVICE
from remediator.names import DEVICE
from remediator.records import Bearer, Key, Record, State, Stored, Taint, from_fields, moment, time_text, to_fields
from remediator.targets import NodeTarget, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from remediator.inventory import Node

ANNOTATION = "neuron-remediator/records"

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")

NodeTaint = dict[str, Any]
"""A taint of a Node, as the API has it."""


class _Book(msgspec.Struct, frozen=True):
    """The annotation's content. `uid` is the Node's: what was copied from another one counts for nothing.

    One entry that a hand has damaged costs only itself, so each is decoded for itself.
    """

    uid: str = ""
    taints: list[msgspec.Raw] = []
    records: list[msgspec.Raw] = []


class _Mark(msgspec.Struct, frozen=True):
    """What a taint is known again by. A value that is empty is not stored."""

    key: str
    effect: str
    value: str = ""


_EMPTY = _Book()


class DamagedRecordsError(ValueError):
    """The annotation is not what it must be, so that what it said is not known."""


def read(node: Node, *, driver: str) -> dict[Key, Record]:
    """Read the Node's records; raises `DamagedRecordsError` for an annotation that is none.

    What a record says of its effect holds only while a taint of ours as strong as that is on the Node. Else it has the
    one that is, if any, and is withheld, so that the rules ask for a firing.
    """
    book, records = _book(node), dict[Key, Record]()
    strongest = dict[str, Effect]()
    for taint in _ours(node, book):
        found = (strongest.get(taint["key"], Effect.NONE), Effect.read(taint["effect"]))
        strongest[taint["key"]] = max(found, key=lambda effect: effect.rank)
    for entry in map(_decoded, book.records):
        key = _key(entry, node)
        if key is None:
            continue
        fields = {name: value for name, value in entry.items() if isinstance(value, str)}
        on_node = strongest.get(fields.get("key", ""), Effect.NONE)
        records[key] = _record(fields, key, node, driver=driver, on_node=on_node)
    return records


def _decoded(entry: msgspec.Raw) -> Any:
    """What an entry says; None where that cannot be read."""
    try:
        return msgspec.json.decode(entry)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _key(entry: Any, node: Node) -> Key | None:
    """Which record an entry is; None for one that does not say it, or not as this release does."""
    device, fault = (entry.get("device"), entry.get("fault")) if isinstance(entry, dict) else (None, None)
    if not (isinstance(device, str) and DEVICE.fullmatch(device) and isinstance(fault, str) and fault):
        return None
    return Key(node.metadata.name, int(device), fault)


def _record(fields: Mapping[str, str], key: Key, node: Node, *, driver: str, on_node: Effect) -> Record:
    said, value = Effect.read(fields.get("effect", "")), fields.get("value", "")
    # The API server refuses a taint with another value, and with it what is to be written of every other record.
    fits = _VALUE.fullmatch(value) is not None
    as_said = said.rank <= on_node.rank and fits
    metadata = node.metadata
    bearer = Bearer(
        key=key,
        node_uid=metadata.uid,
        target=node_target(driver, key.node, key.device),
        taint=Taint(fields.get("key", ""), value if fits else "", min(said, on_node, key=lambda effect: effect.rank)),
        tainted_since=moment(fields.get("since", "")),
        stored=Stored(metadata.name, metadata.uid, metadata.resource_version),
        intact=as_said or fields.get("state") not in (State.ACTIVE, State.WITHHELD),
    )
    return from_fields(fields, bearer)


def node_target(driver: str, node: str, device: int) -> NodeTarget:
    """The Node as a target for one of its devices, whose name is the driver's convention."""
    return NodeTarget(node, Target(driver, node, f"{NEURON_DEVICE}-{device}", placed=False))


def patch(node: Node, records: Iterable[Record], *, now: datetime, unread: bool = True) -> dict[str, Any]:
    """Make the merge patch (RFC 7386) after which the Node has these records and no others, and their taints.

    What the annotation says besides, in a way that this release does not read, is kept with our taints that no record
    asks for, unless `unread` is false. The patch fails with a conflict unless the Node is still the one that was read.
    """
    held = sorted(records, key=lambda record: record.key)
    before, book = node.spec.taints or [], _book(node, damaged=_EMPTY)
    ours = _ours(node, book)
    strange = [entry for entry in book.records if _key(_decoded(entry), node) is None] if unread else []
    foreign = {(taint.get("key"), taint.get("effect")) for taint in before if taint not in ours}
    wanted = [taint for taint in _taints(held, ours, now) if (taint["key"], taint["effect"]) not in foreign]
    if strange:
        wanted += [taint for taint in ours if taint["key"] not in {one["key"] for one in wanted}]
    metadata = node.metadata
    text = _text(metadata.uid, wanted, [*map(_entry, held), *strange]) if held or strange else None
    change: dict[str, Any] = {
        "metadata": {"resourceVersion": metadata.resource_version, "annotations": {ANNOTATION: text}}
    }
    after = _laid_over(before, ours, wanted)
    if after != before:
        # An empty list would be stored as none all the same.
        change["spec"] = {"taints": after or None}
    return change


def foreign_taints(node: Node) -> list[NodeTaint]:
    """The taints of the Node that are not ours."""
    ours = _ours(node, _book(node, damaged=_EMPTY))
    return [taint for taint in node.spec.taints or [] if taint not in ours]


def marked(node: Node) -> bool:
    """Whether anything of ours is on the Node."""
    return bool(node.metadata.annotations.records)


def _book(node: Node, *, damaged: _Book | None = None) -> _Book:
    text = node.metadata.annotations.records
    if not text:
        return _EMPTY
    try:
        book = msgspec.json.decode(text, type=_Book)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if damaged is not None:
            return damaged
        told = f'reading annotation "{ANNOTATION}" of Node "{node.metadata.name}": {str(error)[:128]}'
        raise DamagedRecordsError(told) from error
    return book if book.uid == node.metadata.uid else _EMPTY


def _ours(node: Node, book: _Book) -> list[NodeTaint]:
    """Those of the Node's taints that the annotation says we have set."""
    said = {_mark(_decoded(taint)) for taint in book.taints} - {None}
    return [taint for taint in node.spec.taints or [] if _mark(taint) in said]


def _mark(taint: object) -> _Mark | None:
    try:
        return msgspec.convert(taint, _Mark)
    except msgspec.ValidationError:
        return None


def _taints(records: list[Record], ours: list[NodeTaint], now: datetime) -> list[NodeTaint]:
    """One taint a key (there are two while the key is being changed): the strongest effect, for the gravest fault."""
    since = {(taint["key"], taint["effect"]): taint.get("timeAdded") for taint in ours}
    made = []
    for key in sorted({record.taint.key for record in records if record.disrupts}):
        of_key = [record for record in records if record.taint.key == key]
        rank = max(record.taint.effect.rank for record in of_key)
        gravest = min((record for record in of_key if record.taint.effect.rank == rank), key=_gravity)
        effect = str(gravest.taint.effect)
        added = since.get((key, effect)) or time_text(now.replace(microsecond=0), "seconds")
        made.append({"key": key, "value": gravest.taint.value, "effect": effect, "timeAdded": added})
    return made


_ORDER = {fault: (row.severity is not Severity.CRITICAL, place) for place, (fault, row) in enumerate(FAULTS.items())}


def _gravity(record: Record) -> tuple[bool, int, Key]:
    """The gravest first: by severity, then in the order of the table."""
    return *_ORDER.get(record.key.fault, (True, len(_ORDER))), record.key


def _laid_over(before: list[NodeTaint], ours: list[NodeTaint], wanted: list[NodeTaint]) -> list[NodeTaint]:
    """The Node's taints with ours as they are wanted, each in the place it had; others' are not touched."""
    left = {taint["key"]: taint for taint in wanted}
    kept = [left.pop(taint["key"], None) if taint in ours else taint for taint in before]
    return [taint for taint in kept if taint is not None] + list(left.values())


def _entry(record: Record) -> dict[str, str]:
    return {
        "device": str(record.key.device),
        "fault": record.key.fault,
        "key": record.taint.key,
        "value": record.taint.value,
        "effect": str(record.taint.effect),
        "since": time_text(record.tainted_since),
        **to_fields(record),
    }


def _text(uid: str, taints: list[NodeTaint], entries: list[Any]) -> str:
    said = [{name: taint[name] for name in ("key", "value", "effect") if name in taint} for taint in taints]
    return msgspec.json.encode({"uid": uid, "taints": said, "records": entries}).decode()
