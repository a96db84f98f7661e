"""One fault on one device as an object in the cluster, and back. Pure.

The cluster is the only database: everything the remediator knows of a fault is on its DeviceTaintRule, as
labels and annotations, so that a restart loses nothing. A record whose target is a Node as a whole is on that Node, in
the same fields: see `remediator.node_records`. Nothing here talks to the API server or decides.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.names import SUBDOMAIN_LIMIT
from remediator.targets import AnyTarget, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remediator.rules import Rule

MANAGER = "neuron-remediator"
"""Field manager, and the mark by which our objects are found."""

MANAGED_BY = "app.kubernetes.io/managed-by"
_PREFIX = f"{MANAGER}/"
_EMPTIED = "?"  # what stands where somebody emptied a selector: nothing in a cluster has that name
NEVER = datetime.min.replace(tzinfo=UTC)
"""The time of what has no readable time."""
# Without a dash, so that a name, which writes `_` as `-`, stands for one fault only.
_FAULT = re.compile(r"[a-z][a-z0-9_]*")
_NAME = re.compile(r"neuron-health\.(?P<node>.+)\.(?P<device>[0-9]+)\.(?P<fault>[a-z0-9-]+)")


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
        return isinstance(target, Target) and _EMPTIED in (target.driver, target.pool, target.device)


def episode_of(started: datetime) -> str:
    """Name one spell of a fault by its start.

    Derived instead of drawn at random, so that repeating a half-done write ends in the same object, and so that
    evidence about an earlier spell can never name a later one.
    """
    digest = hashlib.sha256(started.isoformat(timespec="microseconds").encode()).digest()
    return base64.b32encode(digest[:5]).decode().lower()


def object_name(key: Key) -> str:
    """Name the record's object: readable, and shortened with a hash where the API server's limit demands it."""
    name = f"neuron-health.{key.node}.{key.device}.{key.fault.replace('_', '-')}"
    if len(name) <= SUBDOMAIN_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: SUBDOMAIN_LIMIT - 13].rstrip('.-')}-{digest}"


def to_object(record: Record, api_version: str) -> dict[str, Any]:
    """Write the record as a DeviceTaintRule, for a create or (with `stored`) for a guarded server-side apply.

    `timeAdded` is never sent: sending it would restart every toleration's clock, and the server sets it. Raises
    ValueError for a record whose target is a Node.
    """
    target, taint = record.target, record.taint
    if not isinstance(target, Target):
        raise ValueError(  # noqa: TRY004 - not the type of an argument is wrong, but what the record says
            f'writing record "{record.key}" as a rule: its target is the Node; expected a device'
        )
    metadata: dict[str, Any] = {
        "name": object_name(record.key),
        "labels": {
            MANAGED_BY: MANAGER,
            f"{_PREFIX}device": str(record.key.device),
            f"{_PREFIX}fault": record.key.fault,
        },
        "annotations": {f"{_PREFIX}{name}": value for name, value in _annotations(record).items()},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": record.key.node, "uid": record.node_uid}],
    }
    if record.stored is not None:
        metadata |= {
            "name": record.stored.name,
            "uid": record.stored.uid,
            "resourceVersion": record.stored.resource_version,
        }
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": metadata,
        "spec": {
            "deviceSelector": {"driver": target.driver, "pool": target.pool, "device": target.device},
            "taint": {"key": taint.key, "value": taint.value, "effect": str(taint.effect)},
        },
    }


def _annotations(record: Record) -> dict[str, str]:
    values = {"node": record.key.node, "node-uid": record.node_uid, **to_fields(record)}
    if isinstance(record.target, Target):
        values["placed"] = _bool(record.target.placed)
    return values


def to_fields(record: Record) -> dict[str, str]:
    """What a record says of itself, wherever it is kept: state, latch, episode, times, reason."""
    values = {
        "state": str(record.state),
        "reason": record.reason,
        "latched": _bool(record.latched),
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


def _bool(value: bool) -> str:  # noqa: FBT001 - the value to print is the whole point
    return "true" if value else "false"


def time_text(value: datetime, precision: str = "microseconds") -> str:
    """Write a time (UTC) as Kubernetes does."""
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


def from_object(rule: Rule) -> Record | None:
    """Read a record from a rule; None for a rule that is not ours or that no longer says which fault it is.

    Whatever else a hand has damaged is read on the safe side (`from_fields`), an unknown effect as None, as Kubernetes
    itself does. Damaged labels, state or selector read as withheld; so does a rule whose deletion a finalizer holds.
    """
    metadata, selector, taint = rule.metadata, rule.spec.device_selector, rule.spec.taint
    fields = {
        name.removeprefix(_PREFIX): value for name, value in metadata.annotations.items() if name.startswith(_PREFIX)
    }
    key = key_of(rule)
    if key is None:
        return None
    labels = {f"{_PREFIX}device": str(key.device), f"{_PREFIX}fault": key.fault}
    intact = (
        bool(selector.driver and selector.pool and selector.device)
        and labels.items() <= metadata.labels.items()
        and metadata.deletion_timestamp is None
    )
    owners = metadata.owner_references
    bearer = Bearer(
        key=key,
        # Without it the record would be void, and lose its sticky mark.
        node_uid=fields.get("node-uid") or (owners[0].uid if owners else ""),
        target=Target(
            selector.driver or _EMPTIED,
            selector.pool or _EMPTIED,
            selector.device or _EMPTIED,
            placed=intact and fields.get("placed") == "true",
        ),
        taint=Taint(taint.key, taint.value, Effect.read(taint.effect)),
        tainted_since=moment(taint.time_added),
        stored=Stored(metadata.name, metadata.uid, metadata.resource_version),
        intact=intact,
        ending=metadata.deletion_timestamp is not None,
    )
    return from_fields(fields, bearer)


def key_of(rule: Rule) -> Key | None:
    """The key whose name the rule has: as its labels say it, or, where a hand has damaged those, as the name does.

    None for a rule that is not ours or that no longer says which fault it is.
    """
    metadata = rule.metadata
    if metadata.labels.get(MANAGED_BY) != MANAGER:
        return None
    device, fault = (metadata.labels.get(f"{_PREFIX}{name}", "") for name in ("device", "fault"))
    candidates = [(metadata.annotations.get(f"{_PREFIX}node", ""), device, fault)]
    if named := _NAME.fullmatch(metadata.name):
        candidates.append((named["node"], named["device"], named["fault"].replace("-", "_")))
    for node, index, kind in candidates:
        if node and _FAULT.fullmatch(kind) and index.isascii() and index.isdigit():
            key = Key(node, int(index), kind)
            if object_name(key) == metadata.name:
                return key
    return None


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
