"""What a release will do to each record, and what it will not do. Pure: deciding itself is `remediator.decide`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remediator.cli.picture import distinct
from remediator.cli.words import called, joined, kept_off_by_others, plain, until
from remediator.decide import release
from remediator.level import NO_ROOM
from remediator.records import Record, State
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from datetime import datetime

    from remediator.cli.picture import Picture
    from remediator.decide import Update
    from remediator.inventory import Node
    from remediator.records import Key

_FEW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An operator's word. `until` is None to end releases; `why` may then be empty: what was said before stays."""

    now: datetime
    until: datetime | None
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What becomes of one record: an update, or (with None) why nothing.

    `needless` says that nothing is done because the record is as the operator wants it already.
    """

    record: Record
    update: Update | None
    says: str
    needless: bool = False

    @property
    def refused(self) -> bool:
        """Whether nothing is done."""
        return self.update is None


def step(record: Record, intent: Intent, node: Node | None) -> Step:
    """Decide on one record; `node` is the Node of its name as the API server has it now."""
    if node is None or node.metadata.uid != record.node_uid:
        return Step(
            record=record,
            update=None,
            says="is void: its machine is gone; the garbage collector removes it, and it says nothing of a new machine",
        )
    if intent.until is None:
        return _end(record, intent)
    return Step(
        record=record,
        update=release(record, until=intent.until, by=intent.by, why=intent.why),
        says=f"{_before(record, intent)}; will have no effect and no latch",
    )


def _end(record: Record, intent: Intent) -> Step:
    if record.state is not State.RELEASED:
        says = f"is not released (it is {record.state}): nothing to end"
        return Step(record=record, update=None, says=says, needless=True)
    if not _runs(record, intent):
        says = f"was released by {_whose(record, intent)}, which the remediator has yet to notice: nothing to end"
        return Step(record=record, update=None, says=says, needless=True)
    return Step(
        record=record,
        update=release(record, until=intent.now, by=intent.by, why=intent.why or record.reason),
        says=f"the release by {_whose(record, intent)} ends now; the fault taints again with its next firing",
    )


def _before(record: Record, intent: Intent) -> str:
    if record.state is not State.RELEASED:
        return f"is {record.state} with effect {record.taint.effect}{', latched' if record.latched else ''}"
    if not _runs(record, intent):
        return f"was released by {_whose(record, intent)}"
    return f"is released by {_whose(record, intent)} already, which this replaces"


def _runs(record: Record, intent: Intent) -> bool:
    return intent.now < record.released_until


def _whose(record: Record, intent: Intent) -> str:
    return f"{plain(record.released_by) or 'somebody'} until {until(record.released_until, intent.now)}"


def remarks(steps: list[Step], picture: Picture) -> list[str]:
    """What an operator may not expect: targets that stay tainted all the same, and others that get tainted for it."""
    said: list[str] = []
    room = False
    released = [one.record for one in steps if not one.refused]
    for target in distinct(record.target for record in released):
        stays = len(said)
        if others := picture.others_on(target, but=released):
            said.append(f"{called(target)} stays tainted by {joined(other.key for other in others)}")
        taints = picture.inventory.taints().get(target.place, ()) if picture.inventory else ()
        if any(taint.disrupts for taint in taints):
            said.append(f"{called(target)} stays tainted by the driver itself, which no release lifts")
        if isinstance(target, NodeTarget) and picture.node is not None:
            said += [f"the Node stays tainted by others: {taint}" for taint in kept_off_by_others(picture.node)]
        freed = any(one.disrupts and one.target.place == target.place for one in released)
        room = room or (freed and len(said) == stays)
    waiting = _waiting(picture, released) if room else []
    if waiting:
        more = f" and {len(waiting) - _FEW} more" if len(waiting) > _FEW else ""
        said.append(
            "room in the budget goes to withheld records, latched ones at once, and effect NoExecute evicts: "
            f"{joined(waiting[:_FEW])}{more}"
        )
    return said


def _waiting(picture: Picture, released: list[Record]) -> list[Key]:
    """Latched records that the budget withholds: these need no new firing to get what room there is."""
    left_out = {record.key for record in released}
    return [
        record.key
        for record in picture.held.records
        if record.state is State.WITHHELD
        and record.latched
        and record.reason.startswith(NO_ROOM)
        and record.key not in left_out
    ]
