"""One fault on one device as it is recorded in the cluster. Pure.

The cluster is the only database: everything the remediator knows of a fault is in the fields of its record, so that a
restart loses nothing. The object that bears them is a DeviceTaintRule (`remediator.rule_records`), or the Node, where
that is the target (`remediator.node_records`). Nothing here talks to the API server or decides.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from remediator.targets import AnyTarget, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from alerts.faults import Effect


MANAGER = "neuron-remediator"
"""Field manager, and the mark by which our objects are found."""

MANAGED_BY = "app.kubernetes.io/managed-by"
EMPTIED = "?"
"""What stands where somebody emptied a selector: nothing in a cluster has that name."""

NEVER = datetime.min.replace(tzinfo=UTC)
"""The time of what has no readable time."""


class State(StrEnum):
    """Why a record's effect is what it is.

    active: as decided · withheld: would be stronger, budget or evidence is missing · covered: the driver's own
    taint is at least as strong · released: lifted by an operator's word until a time · opted-out: the Node says so.
    """

    ACTIVE = "active"
    WITHHELD = "withheld"
    COVERED = "covered"
    RELEASED = "released"
    OPTED_OUT = "opted-out"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which record: the same fault on the same device has the same key, whoever reports it."""

    node: str
    device: int
    fault: str

    def __str__(self) -> str:
        return f"{self.node}/{self.device}/{self.fault}"


@dataclass(frozen=True, slots=True)
class Taint:
    """Key, value and effect of a taint."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Stored:
    """Where and in which version the cluster holds the record: the preconditions of the next write.

    Of a record on a Node, name and UID are the Node's, and the version is the one in which the record was seen to
    change last.
    """

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One fault on one device. `stored` is None until the cluster has it.

    `last_fired` is the start of the newest firing taken in, by its sender's clock, and `episode` names its spell.
    `tainted_since` is the server's word for how long the taint has its present effect, NEVER before the cluster has
    the record. `released_until` and `released_by` say how long an operator's word stands, and whose it is. `reason` is
    why the record is as it is: the alert, or the operator's words. `ending` says that its rule is being deleted and
    some finalizer holds that up: it taints, and nothing can be done about it.
    """

    key: Key
    node_uid: str
    target: AnyTarget
    taint: Taint
    state: State = State.ACTIVE
    latched: bool
    episode: str
    first_fired: datetime
    last_fired: datetime
    reason: str
    released_until: datetime = NEVER
    released_by: str = ""
    tainted_since: datetime = NEVER
    ending: bool = False
    stored: Stored | None = None

    @property
    def disrupts(self) -> bool:
        """Whether it keeps work off its target, or evicts what runs there."""
        return self.taint.effect.rank > 0

    @property
    def emptied(self) -> bool:
        """Whether a hand has taken a part of the selector away, so that the rule taints more than its target."""
        target = self.target
        return isinstance(target, Target) and EMPTIED in (target.driver, target.pool, target.device)


def episode_of(started: datetime) -> str:
    """Name one spell of a fault by its start.

    Derived instead of drawn at random, so that repeating a half-done write ends in the same object, and so that
    evidence about an earlier spell can never name a later one.
    """
    digest = hashlib.sha256(started.isoformat(timespec="microseconds").encode()).digest()
    return base64.b32encode(digest[:5]).decode().lower()


def to_fields(record: Record) -> dict[str, str]:
    """What a record says of itself, wherever it is kept: state, latch, episode, times, reason."""
    values = {
        "state": str(record.state),
        "reason": record.reason,
        "latched": bool_text(record.latched),
        "episode": record.episode,
        "first-fired": time_text(record.first_fired),
        "last-fired": time_text(record.last_fired),
    }
    if record.state is State.RELEASED:
        values |= {"released-until": time_text(record.released_until), "released-by": record.released_by}
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """What the object that bears a record says of it. `intact` is false where a hand has damaged that."""

    key: Key
    node_uid: str
    target: AnyTarget
    taint: Taint
    tainted_since: datetime
    stored: Stored
    intact: bool = True
    ending: bool = False


def from_fields(fields: Mapping[str, str], bearer: Bearer) -> Record:
    """Read a record from its fields, each on the safe side where it is damaged or missing.

    Latched unless it says "false", a missing time as long ago, an unknown state as withheld, so that the rules ask for
    a firing, and the firing writes it anew.
    """
    state = _state(fields.get("state", "")) if bearer.intact else State.WITHHELD
    # No apply of ours takes away what a hand has added, so on any other record it must mean nothing.
    released = state is State.RELEASED
    last_fired = moment(fields.get("last-fired", ""))
    return Record(
        key=bearer.key,
        node_uid=bearer.node_uid,
        target=bearer.target,
        taint=bearer.taint,
        state=state,
        latched=fields.get("latched") != "false",
        # Without one, no clear could ever name the record.
        episode=fields.get("episode") or episode_of(last_fired),
        first_fired=moment(fields.get("first-fired", "")),
        last_fired=last_fired,
        reason=fields.get("reason", ""),
        released_until=moment(fields.get("released-until", "")) if released else NEVER,
        released_by=fields.get("released-by", "") if released else "",
        tainted_since=bearer.tainted_since,
        ending=bearer.ending,
        stored=bearer.stored,
    )


def bool_text(value: bool) -> str:  # noqa: FBT001 - the value to print is the whole point
    """Write a truth value as Kubernetes does."""
    return "true" if value else "false"


def time_text(value: datetime, precision: str = "microseconds") -> str:
    """Write a time (UTC) as Kubernetes does."""
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        return State.WITHHELD


def moment(text: str) -> datetime:
    """Read a time as it stands in fields; NEVER for what is none."""
    try:
        read = datetime.fromisoformat(text)
        return read.astimezone(UTC) if read.tzinfo else NEVER
    except (ValueError, OverflowError):
        return NEVER
