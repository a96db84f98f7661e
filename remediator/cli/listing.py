"""What is tainted, as rows: our records, our flags on peers, the driver's own taints, other people's rules. Pure.

The JSON document is public: a list of objects that all have the same fields, null where a field means nothing. Of a
record that taints its Node as a whole, the target's pool is the Node, its device is null, and so is the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from remediator.cli.words import age, plain, rfc3339, utc
from remediator.level import NO_EVIDENCE, NO_ROOM
from remediator.records import NEVER, State, moment
from remediator.rule_records import object_name
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from alerts.faults import Effect
    from remediator.cli.address import Address
    from remediator.cli.picture import Held
    from remediator.inventory import Inventory
    from remediator.records import Record
    from remediator.rules import Rule

RECORD, DRIVER, PEER, RULE = "record", "driver", "peer", "rule"
"""Where a taint comes from: a record of ours, the driver's own slice, our flag on a peer, a rule of somebody else."""

_ANY = "*"
_UNLISTED = "(no slice lists this device: the taint meets nothing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One taint. `device` is the index; None for a whole node or where nobody says it. `fault` is for records only."""

    source: str
    node: str
    device: int | None
    key: str
    value: str
    effect: str
    since: datetime
    target: tuple[str, str, str | None]
    rule: str | None = None
    record: Record | None = None

    @property
    def place(self) -> tuple[str, int, str]:
        """Where it stands in a list."""
        return self.node, -1 if self.device is None else self.device, self.target[2] or ""

    @property
    def device_name(self) -> str:
        """How the device is called: its index, or the target's name."""
        return plain(self.target[2] or _ANY) if self.device is None else str(self.device)

    @property
    def on_node(self) -> bool:
        """Whether it taints its Node as a whole."""
        return self.target[2] is None


def entries(
    held: Held, inventory: Inventory | None, *, driver: str, about: Address | None, states: Collection[State]
) -> list[Entry]:
    """What there is to be listed, sorted. Without an inventory, our records alone."""
    found = [_of_record(record) for record in held.records]
    if inventory is not None:
        found += _of_driver(inventory, driver)
        found += [_of_rule(rule, PEER) for rule in held.flags]
        found += [_of_rule(rule, RULE) for rule in held.others if rule.spec.device_selector.driver in ("", driver)]
    chosen = (entry for entry in found if _is_about(entry, about) and _in_state(entry, states))
    return sorted(chosen, key=lambda entry: (*entry.place, str(entry.record.key) if entry.record else "", entry.source))


def _is_about(entry: Entry, about: Address | None) -> bool:
    if about is None:
        return True
    if entry.record is not None:
        return about.names(entry.record.key)
    return entry.node in (about.node, _ANY) and about.fault is None and about.device in (None, entry.device)


def _in_state(entry: Entry, states: Collection[State]) -> bool:
    return not states or (entry.record is not None and entry.record.state in states)


def _of_record(record: Record) -> Entry:
    target = record.target
    of_node = isinstance(target, NodeTarget)
    device = target.device if isinstance(target, NodeTarget) else target
    return Entry(
        source=RECORD,
        node=record.key.node,
        device=record.key.device,
        key=record.taint.key,
        value=record.taint.value,
        effect=record.taint.effect,
        since=record.tainted_since,
        target=(device.driver, record.key.node, None) if of_node else (device.driver, device.pool, device.device),
        rule=None if of_node else record.stored.name if record.stored else object_name(record.key),
        record=record,
    )


def _of_driver(inventory: Inventory, driver: str) -> Iterable[Entry]:
    for place, taints in inventory.taints().items():
        node, label = inventory.index_of(place) or (place.pool, place.device)
        for taint in taints:
            yield Entry(
                source=DRIVER,
                node=node,
                device=int(label) if label.isdecimal() else None,
                key=taint.key,
                value=taint.value,
                effect=taint.effect,
                since=taint.time_added or NEVER,
                target=(driver, place.pool, place.device),
            )


def _of_rule(rule: Rule, source: str) -> Entry:
    selector, taint = rule.spec.device_selector, rule.spec.taint
    return Entry(
        source=source,
        node=selector.pool or _ANY,
        device=None,
        key=taint.key,
        value=taint.value,
        effect=taint.effect,
        since=moment(taint.time_added),
        target=(selector.driver or _ANY, selector.pool or _ANY, selector.device or _ANY),
        rule=rule.metadata.name,
    )


def document(entry: Entry) -> dict[str, Any]:
    """One entry for programs."""
    record = entry.record
    driver, pool, device = entry.target
    return {
        "source": entry.source,
        "node": entry.node,
        "device": entry.device,
        "fault": record.key.fault if record else None,
        "key": entry.key,
        "value": entry.value,
        "effect": str(entry.effect),
        "state": str(record.state) if record else None,
        "latched": record.latched if record else None,
        "tainted_since": rfc3339(entry.since),
        "first_fired": rfc3339(record.first_fired if record else None),
        "last_fired": rfc3339(record.last_fired if record else None),
        "episode": record.episode if record else None,
        "reason": record.reason if record else None,
        "released_until": rfc3339(record.released_until if record else None),
        "released_by": (record.released_by or None) if record else None,
        "target": {
            "driver": driver,
            "pool": pool,
            "device": device,
            "placed": record.target.placed if record else None,
        },
        "node_uid": record.node_uid if record else None,
        "rule": entry.rule,
    }


class Table(NamedTuple):
    """Headings and rows; all rows of one node stand together. The first column is the node."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(listed: Collection[Entry], *, now: datetime, wide: bool, sources: bool, why: bool = False) -> Table:
    """The entries for people; `sources` says where each comes from, `why` in a word why it is withheld.

    Where any of them taints a Node as a whole, each says what it is on.
    """
    on = any(entry.on_node for entry in listed)
    headings: tuple[str, ...] = ("NODE", "DEVICE", "FAULT", "EFFECT", "STATE", "LATCHED", "AGE")
    headings += ("ON",) if on else ()
    headings += ("SOURCE",) if sources else ()
    headings += ("WHY",) if why else ()
    headings += ("SINCE", "TARGET", "UNTIL", "BY", "REASON") if wide else ()
    return Table(headings, tuple(_row(entry, now, wide=wide, on=on, sources=sources, why=why) for entry in listed))


def _row(entry: Entry, now: datetime, *, wide: bool, on: bool, sources: bool, why: bool) -> tuple[str, ...]:
    record = entry.record
    row: tuple[str, ...] = (
        plain(entry.node),
        entry.device_name,
        record.key.fault if record else _instead_of_fault(entry, wide=wide),
        _effect(entry.effect),
        str(record.state) if record else "-",
        ("yes" if record.latched else "no") if record else "-",
        age(entry.since, now),
    )
    row += ("Node" if entry.on_node else "device",) if on else ()
    row += (entry.source,) if sources else ()
    row += (_why(record),) if why else ()
    if wide:
        released = record is not None and record.released_until != NEVER
        row += (
            utc(entry.since),
            _target(entry),
            utc(record.released_until) if record and released else "-",
            plain(record.released_by) if record and record.released_by else "-",
            plain(record.reason) if record and record.reason else plain(f"{entry.key}={entry.value}"),
        )
    return row


def _instead_of_fault(entry: Entry, *, wide: bool) -> str:
    """What is known of the fault behind a taint that is no record: the value, of a peer's flag the faulty node."""
    if entry.source != PEER:
        return plain(entry.value)
    return plain(f"peer of {entry.value}") if wide and entry.value else "-"


def _why(record: Record | None) -> str:
    if record is None or record.state is not State.WITHHELD:
        return "-"
    if record.reason.startswith(NO_ROOM):
        return f"budget: {plain(record.reason.removeprefix(NO_ROOM))}"
    return "not fired since" if record.reason == NO_EVIDENCE else "changed by hand"


def _target(entry: Entry) -> str:
    if entry.on_node:
        return f"Node {plain(entry.node)}"
    unlisted = entry.record is not None and not entry.record.target.placed
    return plain(f"{entry.target[1]}/{entry.target[2]}{f' {_UNLISTED}' if unlisted else ''}")


def _effect(effect: Effect | str) -> str:
    return plain(str(effect))
