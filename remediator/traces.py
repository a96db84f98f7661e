"""What is told of a change of a record: one Event for people, one audit line for machines. Pure.

It puts a change into words and fields; it neither decides about a fault nor sends anything. Reasons of Events and
names of audit fields are public: see CHANGELOG before touching one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from alerts.faults import FAULTS, Effect
from remediator.level import NO_ROOM
from remediator.node_records import ANNOTATION
from remediator.records import State
from remediator.rule_records import object_name
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from datetime import datetime

    from remediator.records import Record
    from remediator.targets import AnyTarget

MESSAGE_LIMIT = 1024
"""Longest message of an Event that the API server takes, in bytes."""

# In bytes, of what a hand may have written: in a sentence, and in a field of the audit line.
_WORDS_LIMIT, _NAME_LIMIT, _AUDIT_LIMIT = 200, 63, 1024

CREATE, UPDATE, DELETE = "create", "update", "delete"
"""What we do to a record; a delete is a clear, on evidence."""

VOID = "void"
"""A delete of a record of a machine that is gone; the record of the new one follows."""

RETIRE = "retire"
"""A delete of a record whose fault this release does not have any more."""

RENAME = "rename"
"""A delete of a record whose fault has another name now, under which there is a record."""

REMOVED = "removed"
"""Somebody else has deleted the rule."""

_WRITTEN, _GONE = frozenset({CREATE, UPDATE}), frozenset({DELETE, VOID, RETIRE, RENAME, REMOVED})


@dataclass(frozen=True, slots=True)
class Change:
    """One change that has happened. `before` is the record as it was, `after` as it is; None where there is none.

    Raises ValueError for an unknown action, and where the record that the action is about is missing.
    """

    action: str
    before: Record | None
    after: Record | None

    def __post_init__(self) -> None:
        if self.action not in _WRITTEN | _GONE:
            expected = ", ".join(sorted(_WRITTEN | _GONE))
            raise ValueError(f'telling of a change: unknown action "{self.action}"; expected one of {expected}')
        if (self.after is None) is not (self.action in _GONE) or (self.before or self.after) is None:
            raise ValueError(f'telling of a change: "{self.action}" does not go with these records')

    @property
    def record(self) -> Record:
        """The record as it is, or was last."""
        record = self.after or self.before
        assert record is not None  # noqa: S101 - __post_init__ has seen to it
        return record

    @property
    def previous(self) -> Record | None:
        """The record as it was, if it is of the same machine: what another one had is no effect of this one."""
        return self.before if self.before and self.before.node_uid == self.record.node_uid else None


class Traces(Protocol):
    """Who is told of changes."""

    def changed(self, change: Change) -> None:
        """Take note of a change that has happened; never blocks, never raises."""


class Reason(StrEnum):
    """Reasons of Events, a closed set."""

    TAINTED = "NeuronDeviceTainted"
    LOWERED = "NeuronDeviceTaintLowered"
    MOVED = "NeuronDeviceTaintMoved"
    LATCHED = "NeuronDeviceTaintLatched"
    WITHHELD = "NeuronDeviceTaintWithheld"
    COVERED = "NeuronDeviceTaintCovered"
    RELEASED = "NeuronDeviceTaintReleased"
    OPTED_OUT = "NeuronDeviceTaintOptedOut"
    RECORDED = "NeuronDeviceFaultRecorded"
    CLEARED = "NeuronDeviceTaintCleared"
    RETIRED = "NeuronDeviceTaintRetired"
    REMOVED = "NeuronDeviceTaintRemoved"


class Level(StrEnum):
    """Types of Events: a warning is about a fault that is there or a taint that is not."""

    NORMAL = "Normal"
    WARNING = "Warning"


_WARNINGS = frozenset({Reason.TAINTED, Reason.MOVED, Reason.LATCHED, Reason.WITHHELD, Reason.REMOVED})

_REASON_GONE = {DELETE: Reason.CLEARED, RETIRE: Reason.RETIRED, REMOVED: Reason.REMOVED}

_SET_ASIDE = {
    State.WITHHELD: Reason.WITHHELD,
    State.COVERED: Reason.COVERED,
    State.RELEASED: Reason.RELEASED,
    State.OPTED_OUT: Reason.OPTED_OUT,
}


@dataclass(frozen=True, slots=True)
class Told:
    """What an Event says."""

    reason: Reason
    level: Level
    message: str


def event_of(change: Change) -> Told | None:
    """Put a change into one sentence; None where nothing changed that people care for, as with a new episode."""
    reason = _reason(change)
    if reason is None:
        return None
    headline = _headline(reason, change)
    key = change.record.key
    message = f"Neuron device {key.device}, fault {key.fault}: {headline}{_because(reason, change.record)}"
    level = Level.WARNING if reason in _WARNINGS else Level.NORMAL
    return Told(reason, level, _cut(message, MESSAGE_LIMIT))


def _reason(change: Change) -> Reason | None:
    if change.after is None:
        return _REASON_GONE.get(change.action)
    before, after = change.previous, change.after
    raised = after.taint.effect.rank - _effect(before).rank
    if raised > 0:
        return Reason.TAINTED
    if before is None or before.state is not after.state:
        return _SET_ASIDE.get(after.state) or _as_decided(raised, after)
    if raised < 0:
        return Reason.LOWERED
    if after.state is State.RELEASED and _word(before) != _word(after):
        return Reason.RELEASED
    if after.disrupts and _moved(before, after):
        return Reason.MOVED
    return Reason.LATCHED if after.latched and not before.latched else None


def _as_decided(raised: int, after: Record) -> Reason:
    """Why a record that was set aside, or is new, is told of now that its effect is the one decided."""
    if raised < 0:
        return Reason.LOWERED
    return Reason.TAINTED if after.disrupts else Reason.RECORDED


def _effect(record: Record | None) -> Effect:
    return record.taint.effect if record else Effect.NONE


def _word(record: Record) -> tuple[datetime, str, str]:
    return record.released_until, record.released_by, record.reason


def _moved(before: Record, after: Record) -> bool:
    return _place(before.target) != _place(after.target)


def _place(target: AnyTarget) -> str:
    if isinstance(target, NodeTarget):
        return f"the whole Node {target.node}"
    return f"{target.driver}/{target.pool}/{target.device}"


def _headline(reason: Reason, change: Change) -> str:
    """What is so now, and what was."""
    record, before = change.record, change.previous
    place, was = _place(record.target), _effect(before)
    if change.after is None:
        what = "record" if reason is Reason.REMOVED and _on_node(record) else "taint"
        return f"its {what} on {place} is gone, was {was}"
    now = record.taint.effect
    if before and _moved(before, record):
        return f"its taint is {now} on {place} now, was {was} on {_place(before.target)}"
    if reason is Reason.LATCHED:
        return f"its taint on {place}, {now} as before, is latched now"
    if now is was:
        return f"its taint on {place} is {now}{' as before' if before else ''}"
    return f"its taint on {place} is {now}{f' now, was {was}' if before else ''}"


def _because(reason: Reason, record: Record) -> str:
    """Why it is so, and what ends it."""
    alert = f"by alert {_words(record.reason)}"
    ends = "it ends with a new node or an operator's release only" if record.latched else "it ends with clean readings"
    if reason is Reason.CLEARED:
        return ": clean readings ended it"
    if reason is Reason.RETIRED:
        return ": this release knows no such fault any more"
    if reason is Reason.REMOVED:
        what = f"annotation {ANNOTATION}" if _on_node(record) else f"rule {object_name(record.key)}"
        gone = f"somebody else deleted {what}, by hand or with its Node"
        stays = "; a taint that is still there is not known to be ours, and stays" if _on_node(record) else ""
        return f": {gone}{stays}; a firing brings it back while the fault is there"
    match record.state:
        case State.WITHHELD:
            return f", {_words(record.reason)}; {_withheld(record)}; {ends}"
        case State.COVERED:
            whose = "a taint of somebody else" if _on_node(record) else "the driver's own taint"
            then = "it rises at once" if record.latched else "a firing raises it"
            return f": {whose} there is at least as strong; when that one is gone, {then}"
        case State.RELEASED:
            who, until = _words(record.released_by, _NAME_LIMIT), _time(record.released_until)
            return f': released by "{who}" until {until}, "{_words(record.reason)}"; clean readings end it before'
        case State.OPTED_OUT:
            then = "it is tainted again at once" if record.latched else "a firing taints it again"
            return f": its Node is labelled neuron-remediator/opt-out=true; once the label is gone, {then}"
        case State.ACTIVE:
            return f", {alert}{_cap(record)}; {ends}"


def _cap(record: Record) -> str:
    """What keeps the effect below that of the table, if anything does."""
    row = FAULTS.get(record.key.fault)
    if row is None or record.taint.effect.rank >= row.effect.rank:
        return ""
    on_node = _on_node(record) and record.taint.effect is Effect.NO_SCHEDULE
    flags = "--node-taint.allow-no-execute or --max-effect" if on_node else "--max-effect"
    return f", as {flags} allows no more"


def _on_node(record: Record) -> bool:
    return isinstance(record.target, NodeTarget)


def _withheld(record: Record) -> str:
    if record.latched:
        return "it is latched, so it rises by itself when there is room"
    return "a firing raises it when there is room" if record.reason.startswith(NO_ROOM) else "a firing raises it"


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _words(text: str, limit: int = _WORDS_LIMIT) -> str:
    """Somebody's words, on one line and not too many: they come to a terminal by `kubectl describe`."""
    return _cut(" ".join("".join(sign if sign.isprintable() else " " for sign in text).split()), limit)


def _cut(text: str, limit: int) -> str:
    """Shorten to `limit` bytes."""
    whole = text.encode(errors="replace")
    return text if len(whole) <= limit else f"{whole[: limit - 3].decode(errors='ignore')}…"


def audit_of(change: Change) -> dict[str, str | int | bool | None]:
    """The fields of the audit line; `effect` and `state` are None where there is no record."""
    before, after, record = change.before, change.after, change.record
    released = record.state is State.RELEASED
    stored = (after and after.stored) or (before and before.stored)
    return {
        "action": change.action,
        "node": record.key.node,
        "node_uid": record.node_uid,
        "device": record.key.device,
        "fault": record.key.fault,
        "target": _place(record.target),
        "target_before": _place(before.target) if before else None,
        "taint": f"{record.taint.key}={record.taint.value}",
        "effect": str(after.taint.effect) if after else None,
        "effect_before": str(before.taint.effect) if before else None,
        "state": str(after.state) if after else None,
        "state_before": str(before.state) if before else None,
        "latched": record.latched,
        "episode": record.episode,
        "reason": _cut(record.reason, _AUDIT_LIMIT),
        "released_until": _time(record.released_until) if released else None,
        "released_by": _cut(record.released_by, _AUDIT_LIMIT) if released else None,
        "rule": None if _on_node(record) else stored.name if stored else object_name(record.key),
        "rule_uid": stored.uid if stored and not _on_node(record) else None,
    }
