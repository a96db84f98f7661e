"""How much of the fleet may be taken out of service at once, and how fast. Pure: no clock, no I/O.

A ledger over places (one device of one pool): what our records disrupt, what writes under way will disrupt, and what
was newly disrupted of late. It gates raising only; lowering and clearing never ask. It forgets nothing that a restart
would need: who was disrupted since when is on the records themselves, by the server's own times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from remediator.records import NEVER
from remediator.targets import Place, lies_in

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from alerts.faults import Effect
    from remediator.records import Key, Record

WINDOW = timedelta(minutes=10)
"""The time over which newly disrupted targets are counted."""

LANDED_BY = timedelta(seconds=60)
"""When a write whose answer was lost has reached the cluster or never will: the API server ends requests by then."""


class Limit(StrEnum):
    """What a raise may run into; the values of the label `budget`."""

    UNAVAILABLE = "unavailable"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all targets in percent, rounded down, but never less than one target."""

    percent: int

    def of(self, targets: int) -> int:
        """The number of targets it is."""
        return max(1, targets * self.percent // 100)

    def __str__(self) -> str:
        return f"{self.percent}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most targets that may be unavailable, and newly disrupted within `WINDOW`; None: no limit."""

    max_unavailable: Share | int | None = Share(20)
    max_new: int | None = 10


DEFAULT = Limits()


class Fleet(Protocol):
    """What there is to be disrupted."""

    def targets(self) -> int:
        """How many targets there are: devices in Neuron slices, and Neuron nodes without slices."""

    def unavailable(self) -> Collection[Place]:
        """The places that the driver's own taints keep work off."""


@dataclass(frozen=True, slots=True)
class _Reservation:
    """A raise that is being written, and what was known of its place before.

    `in_doubt`: an earlier write of the same record, whose answer was lost, may land still.
    """

    place: Place
    rank: int
    made: datetime
    raised_before: datetime | None
    in_doubt: bool


class Budget:
    """The ledger. Kept current by whoever holds the records; decisions ask it, writes reserve in it beforehand."""

    def __init__(self, limits: Limits, fleet: Fleet) -> None:
        self._limits = limits
        self._fleet = fleet
        self._place_of: dict[Key, Place] = {}
        self._records: dict[Place, dict[Key, int]] = {}
        # Oldest first.
        self._reserved: dict[Key, _Reservation] = {}
        self._reserved_on: dict[Place, set[Key]] = {}
        self._raised: dict[Place, datetime] = {}

    def changed(self, before: Record | None, after: Record | None) -> None:
        """Note that a record came, changed or went."""
        if before is not None:
            self._forget(before.key)
        if after is not None and after.disrupts:
            place = after.target.place
            self._place_of[after.key] = place
            self._records.setdefault(place, {})[after.key] = after.taint.effect.rank
            # The server sets the time anew with each change of the effect, so lowering must not look like a raise.
            lowered = before is not None and before.taint.effect.rank > after.taint.effect.rank
            if (
                not lowered
                and not (before and _narrowed(before, after))
                and after.tainted_since > self._raised.get(place, NEVER)
            ):
                self._note_raise(place, after.tainted_since)

    def refusal(self, key: Key, place: Place, effect: Effect, now: datetime) -> Limit | None:
        """Which limit keeps record `key` from having that effect on that place; None when there is room.

        A place that is as strongly disrupted already is disturbed no further, whichever record does it.
        """
        self._expire(now)
        strongest = self._strongest(place)
        if effect.rank <= strongest:
            return None
        limit = self.limit(Limit.UNAVAILABLE)
        if limit is not None and not strongest and place not in self._fleet.unavailable():
            after = self.used(Limit.UNAVAILABLE, now) - self._left_by(key) + 1
            if after > limit:
                return Limit.UNAVAILABLE
        limit = self.limit(Limit.NEW)
        if limit is not None and self.used(Limit.NEW, now) + (place not in self._raised) > limit:
            return Limit.NEW
        return None

    def reserve(self, key: Key, place: Place, effect: Effect, now: datetime) -> None:
        """Count a raise from now on, before it is written."""
        self._expire(now)
        raises = effect.rank > max(self._strongest(place), self._held_on_node(key, place))
        lost = self._take_back(key)
        rank = max(effect.rank, lost.rank) if lost else effect.rank
        self._reserved[key] = _Reservation(place, rank, now, self._raised.get(place), in_doubt=lost is not None)
        self._reserved_on.setdefault(place, set()).add(key)
        if raises:
            self._note_raise(place, now)

    def written(self, key: Key) -> None:
        """The write was acknowledged: the record itself counts from now on, or no longer."""
        self._take_back(key)

    def refused(self, key: Key) -> None:
        """The write was certainly not carried out: what was reserved for it is free again.

        A write whose answer was lost is neither: it counts until it is repeated, or can have landed no more.
        """
        reservation = self._reserved.get(key)
        if reservation is not None and not reservation.in_doubt:
            self._take_back(key)
            self._not_raised(reservation)

    def limit(self, which: Limit) -> int | None:
        """The number of targets allowed now; None when there is no limit."""
        if which is Limit.NEW:
            return self._limits.max_new
        limit = self._limits.max_unavailable
        return limit.of(self._fleet.targets()) if isinstance(limit, Share) else limit

    def used(self, which: Limit, now: datetime) -> int:
        """The number of targets that count now."""
        self._expire(now)
        if which is Limit.NEW:
            return len(self._raised)
        under_way = {one.place for one in self._reserved.values() if one.rank} - self._records.keys()
        ours, driver = len(self._records) + len(under_way), self._fleet.unavailable()
        both = sum(place in driver for places in (self._records, under_way) for place in places) if driver else 0
        return ours + len(driver) - both

    def _note_raise(self, place: Place, when: datetime) -> None:
        if self._limits.max_new is not None:
            self._raised[place] = when

    def _strongest(self, place: Place) -> int:
        ranks = [*self._records.get(place, {}).values()]
        ranks += [self._reserved[key].rank for key in self._reserved_on.get(place, ())]
        return max(ranks, default=0)

    def _held_on_node(self, key: Key, place: Place) -> int:
        """What the record has on the Node that it may be moving from: whoever that kept off stays so."""
        held = self._place_of.get(key)
        return self._records[held][key] if held is not None and held == Place(place.pool, "") else 0

    def _left_by(self, key: Key) -> int:
        """How many places become free when that record moves elsewhere: 1 if it alone disrupts the one it is on."""
        place = self._place_of.get(key)
        if place is None or len(self._records[place]) > 1 or place in self._fleet.unavailable():
            return 0
        return int(not any(self._reserved[other].rank for other in self._reserved_on.get(place, set()) - {key}))

    def _take_back(self, key: Key) -> _Reservation | None:
        reservation = self._reserved.pop(key, None)
        if reservation is not None:
            self._reserved_on[reservation.place].remove(key)
            if not self._reserved_on[reservation.place]:
                del self._reserved_on[reservation.place]
        return reservation

    def _not_raised(self, gone: _Reservation) -> None:
        """Undo the note of a raise that has not been, unless another record does the same there, or is about to."""
        if self._raised.get(gone.place) != gone.made or self._strongest(gone.place):
            return
        if gone.raised_before is None:
            del self._raised[gone.place]
        else:
            self._raised[gone.place] = gone.raised_before

    def _forget(self, key: Key) -> None:
        place = self._place_of.pop(key, None)
        if place is not None:
            del self._records[place][key]
            if not self._records[place]:
                del self._records[place]

    def _expire(self, now: datetime) -> None:
        while self._reserved:
            key, oldest = next(iter(self._reserved.items()))
            if now - oldest.made < LANDED_BY:
                break
            self._take_back(key)
            self._not_raised(oldest)
        for place, raised in list(self._raised.items()):
            if raised > now:
                # By a clock that is ahead of ours: it counts from when it was seen.
                self._raised[place] = now
            elif now - raised >= WINDOW:
                del self._raised[place]


def _narrowed(before: Record, after: Record) -> bool:
    """Whether the effect has but moved from a Node to one of its devices: that disturbs nobody anew."""
    moved = before.target.place != after.target.place and lies_in(after.target, before.target)
    return moved and before.taint.effect.rank >= after.taint.effect.rank
