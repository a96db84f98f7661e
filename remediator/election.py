"""Who leads, by what is seen of a Lease: what a replica may do next, and for how long it is the leader.

Pure: times are seconds of this replica's own monotonic clock, handed in. No time that is written in the Lease is ever
compared with a clock here, as clocks of machines differ. That two replicas never lead at once rests on three rules:

- A leader counts its time from *before* it sent the request that renewed the Lease, and ends it at two thirds of
  the duration. The last third is for clocks that run apart, and for a request of the leader that is still on its way.
- Another replica takes the Lease only when it has itself seen no change of it for the whole duration, counted from
  *after* the answer that first showed it so.
- Every write names the version it is based on, so of two that follow from the same look only one is carried out.

What this cannot see is a Lease deleted or edited by hand: until its next look, within a period, the leader goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

LONGEST = 3600
"""Longest duration of a Lease in seconds."""

VALID: Final = 2 / 3
"""The part of the duration for which a renewal makes a leader."""


class Leadership(Protocol):
    """Whether this replica may change anything now."""

    def not_leading(self) -> str | None:
        """Why no change may be made now, or None while this replica leads."""

    def remaining(self) -> float:
        """Seconds during which a write may still be under way; 0 when not leading, `math.inf` without a Lease."""


class AlwaysLeads:
    """Leadership without a Lease, where there is but one replica: on the memory backend, and in a dry run."""

    def not_leading(self) -> str | None:
        """Nothing stands against a change."""
        return None

    def remaining(self) -> float:
        """There is no end."""
        return math.inf


class Step(Enum):
    """What to do about the Lease next."""

    WAIT = "wait"
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What counts of a Lease: `holder` is empty when it was released, `duration` (seconds) is the holder's own."""

    version: str
    holder: str
    duration: float


class Election:
    """One replica's part. `identity` is of this process alone: a restarted one must not take itself for the holder."""

    def __init__(self, identity: str, duration: float) -> None:
        self._identity = identity
        self._duration = duration
        self._looked = False
        self._sight: Sight | None = None
        self._changed = -math.inf
        self._patience = 0.0
        self._valid_until = -math.inf
        self._unready_since: float | None = None
        self._resigned = False
        self._left = False

    @property
    def holder(self) -> str:
        """Who held the Lease at the last look; empty for nobody."""
        return self._sight.holder if self._sight else ""

    @property
    def holds(self) -> bool:
        """Whether the last look showed this replica as the holder, which does not make it a leader yet."""
        return self.holder == self._identity

    def remaining(self, now: float) -> float:
        """Seconds for which this replica still leads; 0 when it does not."""
        return 0.0 if self._resigned or self._left else max(0.0, self._valid_until - now)

    def saw(self, sight: Sight | None, now: float) -> None:
        """Take in what the API server has shown, None for no Lease; `now` is after the answer came."""
        if sight is not None and sight.holder != self._identity:
            self._valid_until = -math.inf
        if not self._looked or sight != self._sight:
            self._changed = now
            self._patience = self._patience_with(sight)
        self._looked, self._sight = True, sight

    def won(self, sight: Sight, *, sent: float, now: float) -> None:
        """Take in that a create, a take or a renewal was carried out; `sent` is before its request went out."""
        self.saw(sight, now)
        self._valid_until = sent + VALID * self._duration

    def leave(self) -> None:
        """Lead no more and contend no more. No write may be under way: the Lease is released at once."""
        self._left = True

    def step(self, *, ready: bool, now: float) -> Step:
        """Say what to do after the last look. `ready` is whether this replica could lead well."""
        self._note(ready=ready, now=now)
        if self.holds:
            return self._step_of_holder(now)
        if self._left or not ready:
            return Step.WAIT
        if self._sight is None:
            # Deleted under a leader: it is the one who puts it back.
            patient = self.remaining(now) > 0 or self._patient(now)
            return Step.CREATE if patient else Step.WAIT
        return Step.TAKE if self._patient(now) else Step.WAIT

    def _step_of_holder(self, now: float) -> Step:
        if self._left:
            return Step.RELEASE
        if self._resigned:
            # A write that was begun in time may be under way until then.
            return Step.RELEASE if now >= self._valid_until else Step.WAIT
        return Step.RENEW

    def _note(self, *, ready: bool, now: float) -> None:
        """A leader that has not been ready for a whole duration gives way to one that may be."""
        if ready:
            self._unready_since = None
        elif self._unready_since is None:
            self._unready_since = now
        self._resigned = self._unready_since is not None and now - self._unready_since > self._duration

    def _patient(self, now: float) -> bool:
        return now - self._changed >= self._patience

    def _patience_with(self, sight: Sight | None) -> float:
        """How long to see the Lease so before it may be taken."""
        if sight is None:
            # None at the first look: a new installation. Gone since: who held it may be leading still.
            return max(self._patience, self._duration) if self._looked else 0.0
        # Not less than our own: a duration that somebody has edited away must not make anybody hasty.
        # Nor more than any of ours may be: one that is edited to a lifetime must not keep everybody from leading.
        return max(min(sight.duration, LONGEST), self._duration) if sight.holder else 0.0
