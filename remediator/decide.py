"""Alert × node × record × target → what to do. Pure: no clock, no I/O, no client.

The rules this module keeps: no evidence, no change. A resolved notification and a missing alert are no evidence.
A firing makes or raises a record; what effect it may have is `remediator.level`'s. Only the clear alert removes one,
and only the very episode it names. The same inputs in any order end the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from alerts.faults import FAULTS, Effect, Remediation
from remediator.level import level
from remediator.names import DEVICE, is_subdomain
from remediator.records import NEVER, Key, Record, State, Taint, episode_of
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from remediator.inventory import Node
    from remediator.level import View
    from remediator.notification import Alert

YOUNG_NODE = timedelta(minutes=10)
"""While a Node is younger, an alert that began before it speaks of the machine that had the name before."""

CLOCK_SKEW = timedelta(seconds=5)
"""How far apart clocks may be before a start counts as from the future; less than any hold."""


class Outcome(StrEnum):
    """What became of one alert; the closed set behind `neuron_remediator_alerts_total`."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    WITHHELD = "withheld"
    COVERED = "covered"
    RELEASED = "released"
    OPTED_OUT = "opted_out"
    CLEARED = "cleared"
    HEARTBEAT = "heartbeat"
    FAILED = "failed"
    IGNORED_RESOLVED = "ignored_resolved"
    IGNORED_UNKNOWN_ALERT = "ignored_unknown_alert"
    IGNORED_UNKNOWN_FAULT = "ignored_unknown_fault"
    IGNORED_NO_IDENTITY = "ignored_no_identity"
    IGNORED_OTHER_CLUSTER = "ignored_other_cluster"
    IGNORED_UNKNOWN_NODE = "ignored_unknown_node"
    IGNORED_BEFORE_NODE = "ignored_before_node"
    IGNORED_NO_RECORD = "ignored_no_record"
    IGNORED_LATCHED = "ignored_latched"
    IGNORED_STALE_EPISODE = "ignored_stale_episode"


@dataclass(frozen=True, slots=True)
class Fired:
    """A firing fault or latch alert: evidence that the fault is there. `started` is as sent, by the sender's clock."""

    key: Key
    started: datetime
    latched: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    """A firing clear alert: evidence that one episode of the fault is over."""

    key: Key
    episode: str


def triage(alert: Alert, *, cluster: str | None) -> Fired | Cleared | Outcome:
    """Read what one alert says, or why it says nothing here."""
    labels = alert.labels
    if alert.status != "firing":
        return Outcome.IGNORED_RESOLVED
    if cluster is not None and labels.get("cluster") != cluster:
        return Outcome.IGNORED_OTHER_CLUSTER
    try:
        remediation = Remediation(labels.get("remediation", ""))
    except ValueError:
        return Outcome.IGNORED_UNKNOWN_ALERT
    if remediation is Remediation.HEARTBEAT:
        return Outcome.HEARTBEAT
    key = _identity(labels)
    if isinstance(key, Outcome):
        return key
    if remediation is not Remediation.CLEAR:
        return Fired(key, alert.starts_at, latched=remediation is Remediation.LATCH)
    episode = labels.get("episode", "")
    return Cleared(key, episode) if episode else Outcome.IGNORED_NO_IDENTITY


def _identity(labels: dict[str, str]) -> Key | Outcome:
    node, device, fault = (labels.get(name, "") for name in ("node", "device", "fault"))
    if not (node and device and fault):
        return Outcome.IGNORED_NO_IDENTITY
    # An address with a port is no Node name, and guessing would taint the wrong machine.
    if not is_subdomain(node) or not DEVICE.fullmatch(device):
        return Outcome.IGNORED_NO_IDENTITY
    if fault not in FAULTS:
        return Outcome.IGNORED_UNKNOWN_FAULT
    return Key(node, int(device), fault)


@dataclass(frozen=True, slots=True)
class Create:
    """Make the record; the cluster has none."""

    record: Record


@dataclass(frozen=True, slots=True)
class Update:
    """Write the record over the one it was read from."""

    record: Record


@dataclass(frozen=True, slots=True)
class Replace:
    """Delete a void record, then make the new one.

    Never applied over: the new machine would inherit the time at which the old one was tainted.
    """

    void: Record
    record: Record


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the record: its fault is proven over."""

    record: Record


@dataclass(frozen=True, slots=True)
class Retire:
    """Remove the record of a fault that is not in the table any more."""

    record: Record


@dataclass(frozen=True, slots=True)
class Rename:
    """Have another record stand for a fault that has another name now, then remove the one of the old name."""

    former: Record
    successor: Create | Update | None


Action = Create | Update | Replace | Delete
Levelling = Update | Retire | Rename
"""What may be done without an alert."""


def decide_fired(fired: Fired, *, node: Node | None, record: Record | None, view: View) -> Action | Outcome:
    """Answer a firing. `node` is None only when a live read found no such Node."""
    if node is None:
        return Outcome.IGNORED_UNKNOWN_NODE
    created = node.metadata.creation_timestamp
    if fired.started < created and view.now - created < YOUNG_NODE:
        return Outcome.IGNORED_BEFORE_NODE
    new = _new_record(fired, node, view)
    if record is None:
        return Create(level(new, view, firing=True))
    if record.ending:
        # Once it is gone, the fault is held by nothing, and fires.
        return Outcome.WITHHELD
    if record.node_uid != node.metadata.uid:
        return Replace(record, level(new, view, firing=True))
    settled = level(_take_in(record, new, view.now), view, firing=True)
    return standing(settled, Outcome.UNCHANGED) if settled == record else Update(settled)


def standing(record: Record, as_decided: Outcome) -> Outcome:
    """What a firing that ends in this record is counted as: `as_decided`, or why it has no or a weaker effect."""
    return as_decided if record.state is State.ACTIVE else _STANDING[record.state]


_STANDING = {
    State.WITHHELD: Outcome.WITHHELD,
    State.COVERED: Outcome.COVERED,
    State.RELEASED: Outcome.RELEASED,
    State.OPTED_OUT: Outcome.OPTED_OUT,
}


def _new_record(fired: Fired, node: Node, view: View) -> Record:
    """The record of a first firing, which disturbs nobody yet: `level` says what it may do."""
    fault = FAULTS[fired.key.fault]
    return Record(
        key=fired.key,
        node_uid=node.metadata.uid,
        target=view.target,
        taint=Taint(view.policy.taint_key, fault.value, Effect.NONE),
        latched=fault.latched or fired.latched,
        episode=episode_of(fired.started),
        first_fired=fired.started,
        last_fired=fired.started,
        reason=fault.alert,
    )


def _take_in(record: Record, new: Record, now: datetime) -> Record:
    """Merge a firing into the record that stands: newest spell, latched for good."""
    newest = new if _is_newer(new, record, now) else record
    # An operator has lifted the latch for a time, knowing that the fault is there.
    lifted = record.state is State.RELEASED and now < record.released_until
    return replace(
        record,
        latched=record.latched or (new.latched and not lifted),
        episode=newest.episode,
        first_fired=new.first_fired if record.first_fired == NEVER else min(record.first_fired, new.first_fired),
        last_fired=newest.last_fired,
    )


def _is_newer(new: Record, record: Record, now: datetime) -> bool:
    """Whether a firing began later than the newest that the record has taken in.

    Starts are compared as they were sent, so that repeats and late copies of a sender whose clock is ahead are what
    they are. A start from the future would stand above every true one, so it yields to the first that is not.
    """
    latest = now + CLOCK_SKEW
    if record.last_fired > latest >= new.last_fired:
        return True
    return new.last_fired > record.last_fired


def decide_cleared(cleared: Cleared, *, record: Record | None) -> Action | Outcome:
    """Answer a clear alert: the record goes only if it is not latched and the alert names its very episode."""
    if record is None:
        return Outcome.IGNORED_NO_RECORD
    if record.latched:
        return Outcome.IGNORED_LATCHED
    if record.episode != cleared.episode:
        return Outcome.IGNORED_STALE_EPISODE
    return Delete(record)


def relevel(record: Record, *, node: Node | None, view: View, untidy: bool = False) -> Update | None:
    """Bring a record up to what surrounds it now, without a firing; None when there is nothing to do.

    A record whose Node is not there, or is another machine by now, is left to the garbage collector and to the next
    firing; one of a fault that the table does not have is left alone. But for one whose selector a hand has emptied: it
    taints every device there is. One that is `untidy` is written as it is.
    """
    if record.ending:
        return None
    if record.key.fault not in FAULTS or node is None or record.node_uid != node.metadata.uid:
        return Update(_harmless(record, view)) if record.emptied else None
    settled = level(record, view, firing=False)
    return None if settled == record and not untidy else Update(settled)


def _harmless(record: Record, view: View) -> Record:
    """The record without an effect, on the one device that it is about."""
    device = view.target.device if isinstance(view.target, NodeTarget) else view.target
    return replace(record, target=device, taint=replace(record.taint, effect=Effect.NONE), state=State.WITHHELD)


def rename(record: Record, *, to: str | None, held: Record | None, node: Node | None, view: View) -> Levelling | None:
    """Bring a record of a fault that the table has under another name, or not at all, up to the table of today.

    `held` is the record of today's name, if there is one, and `view` what surrounds that. What was tainted stays so
    meanwhile; nothing is left to do where somebody else has a hand in it, see `relevel`.
    """
    if record.ending or node is None or record.node_uid != node.metadata.uid:
        return None
    if to is None:
        return Retire(record)
    if held is None:
        named = replace(record, key=replace(record.key, fault=to), stored=None)
        return Rename(record, Create(level(named, view, firing=False)))
    if held.ending or held.node_uid != record.node_uid:
        return None
    merged = replace(
        held,
        latched=held.latched or (record.latched and held.state is not State.RELEASED),
        first_fired=min(held.first_fired, record.first_fired),
    )
    return Rename(record, None if merged == held else Update(level(merged, view, firing=False)))


def release(record: Record, *, until: datetime, by: str, why: str) -> Update:
    """Lift a record by an operator's word: no effect and no latch until that time.

    A clean reading removes it meanwhile. If it stands at the end, the fault is there: it is withheld, and fires again.
    """
    return Update(
        replace(
            record,
            taint=replace(record.taint, effect=Effect.NONE),
            state=State.RELEASED,
            latched=False,
            released_until=until,
            released_by=by,
            reason=why,
        )
    )
