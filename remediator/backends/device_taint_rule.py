"""Records as DeviceTaintRules: one rule for each fault on each device.

The API's union of rules is the reference count: a device stays tainted until its last rule is gone, so nothing is
counted here. ResourceSlices are never written, and only objects with our mark are read as ours.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.backends import OnChange, OneWay, ignore
from remediator.cluster import RESOURCE_API, Api, object_path
from remediator.errors import NotServedError, Refusal, UnavailableError
from remediator.records import MANAGER, Key, Record, State
from remediator.rule_records import from_object, key_of, object_name, to_object
from remediator.rules import Rule
from remediator.targets import NodeTarget, Target

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG = logging.getLogger(__name__)


class RecordCache:
    """Our rules as last seen. Sees our own writes at once; an event older than what is held changes nothing.

    `version` is the API version the rules are served in; empty while they are not, as far as is known.
    `on_change(before, after, ours)` is told of each record that comes, changes or goes; `ours` is false where others
    have removed its rule.
    """

    def __init__(self) -> None:
        self.version = ""
        self.on_change: OnChange = ignore
        self._records: dict[Key, Record] = {}
        self._keys: dict[str, Key] = {}
        # UID → version of what was deleted while events about it may still be under way.
        self._deleted: dict[str, int] = {}
        # The newest version that a list or an event has told: all that happened until then is known.
        self._told = 0

    def served_as(self, version: str) -> None:
        """Take in how rules are served from now on; an empty version says that they are not.

        Then they taint nothing, and what they say is left to be recorded elsewhere, as the API server lets nobody have
        it any more: each record has no effect, and its Node for a target.
        """
        self.version, self._told, self._deleted = version, 0, {}
        for held in self.all():
            if version and isinstance(held.target, NodeTarget):
                # It will be listed as it is, if it is there.
                self._drop(held.key, ours=True)
            elif not version and isinstance(held.target, Target):
                lifted = self._records[held.key] = _out_of_force(held, held.target)
                self.on_change(held, lifted, True)

    def replace(self, objects: list[Rule], resource_version: str) -> None:
        """Take the whole list; what we wrote after it was made stays.

        A list older than what was told before is of a cluster whose history went back (etcd from a backup): nothing
        that is held can be relied on then.
        """
        listed_at = int(resource_version)
        rewound = listed_at < self._told
        self._told = listed_at
        # A list may be older than our deletion, and even than the rule; one that is neither ends the wait for events.
        listed = {rule.metadata.uid for rule in objects}
        for held in self.all():
            if rewound or (held.stored and held.stored.uid not in listed and _version(held) <= listed_at):
                self._drop(held.key, ours=rewound)
        self._deleted = {
            uid: version
            for uid, version in self._deleted.items()
            if (uid in listed or version > listed_at) and not rewound
        }
        for rule in objects:
            self._take(rule)

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed, as a watch tells it."""
        self._told = max(self._told, int(object_.metadata.resource_version))
        self._take(object_)

    def answered(self, rule: Rule) -> None:
        """Take one rule as a write or a read of ours was answered.

        An answer that comes after the watch has told as much is old news: the rule may be gone by now.
        """
        if self.version and int(rule.metadata.resource_version) > self._told:
            self._take(rule)

    def _take(self, rule: Rule) -> None:
        uid = rule.metadata.uid
        # One that is still there while it is deleted is held by a finalizer: it taints, so it is shown.
        hidden = uid in self._deleted and rule.metadata.deletion_timestamp is None
        if hidden or self._newest(uid) >= int(rule.metadata.resource_version):
            return
        record = from_object(rule)
        if record is None:
            _LOG.warning(
                "reading a rule of ours: its labels and name do not say which fault it stands for; delete it by hand",
                extra={"rule": rule.metadata.name},
            )
            self._drop_uid(uid, ours=False)
            return
        held = self._records.get(record.key)
        if held is None or _version(held) < _version(record):
            self._records[record.key] = record
            self._keys[uid] = record.key
            if held is not None and held.stored is not None and held.stored.uid != uid:
                self._keys.pop(held.stored.uid, None)
            self.on_change(held, record, True)

    def _newest(self, uid: str) -> int:
        """The version in which that very rule is held; 0 if it is not. Most events tell what our own write told."""
        key = self._keys.get(uid)
        held = self._records.get(key) if key else None
        return _version(held) if held and held.stored and held.stored.uid == uid else 0

    def remove(self, object_: Rule) -> None:
        """Drop one rule, as a watch tells it; its successor of the same name stays."""
        self._told = max(self._told, int(object_.metadata.resource_version))
        self._deleted.pop(object_.metadata.uid, None)
        self._drop_uid(object_.metadata.uid, ours=False)

    def forget(self, uid: str, resource_version: str, *, ours: bool = True) -> None:
        """Drop a rule that was deleted in that version, for good: events about it may still be under way."""
        # One that is not held has had its last event: nothing is remembered that no event would take away again.
        if uid in self._keys:
            self._deleted[uid] = int(resource_version)
            self._drop_uid(uid, ours=ours)

    def all(self) -> Iterable[Record]:
        """Every record there is."""
        return tuple(self._records.values())

    def get(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._records.get(key)

    def _drop_uid(self, uid: str, *, ours: bool) -> None:
        key = self._keys.pop(uid, None)
        held = self._records.get(key) if key else None
        if key and held and held.stored and held.stored.uid == uid:
            self._drop(key, ours=ours)

    def _drop(self, key: Key, *, ours: bool) -> None:
        gone = self._records.pop(key)
        if gone.stored is not None:
            self._keys.pop(gone.stored.uid, None)
        self.on_change(gone, None, ours)


def _out_of_force(record: Record, device: Target) -> Record:
    as_decided = record.state in (State.ACTIVE, State.WITHHELD)
    return replace(
        record,
        target=NodeTarget(record.key.node, device),
        taint=replace(record.taint, effect=Effect.NONE),
        state=State.WITHHELD if as_decided else record.state,
    )


def _version(record: Record) -> int:
    return int(record.stored.resource_version) if record.stored else 0


class DeviceTaintRuleBackend(OneWay):
    """Records in the cluster."""

    names: tuple[str, ...] = ("device-taint-rule",)

    def __init__(self, api: Api, cache: RecordCache) -> None:
        self._api = api
        self._cache = cache

    @property
    def on_change(self) -> OnChange:
        """Who is told of each record that comes, changes or goes."""
        return self._cache.on_change

    @on_change.setter
    def on_change(self, told: OnChange) -> None:
        self._cache.on_change = told

    def records(self) -> Iterable[Record]:
        """Every record there is."""
        return self._cache.all()

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._cache.get(key)

    async def refresh(self, key: Key) -> None:
        """Read one record anew from the cluster; nothing to do while it serves no rules."""
        if not self._cache.version:
            return
        rule = await self._api.get(self._path(object_name(key)), Rule)
        if rule is None:
            held = self._cache.get(key)
            if held is not None and held.stored is not None:
                self._cache.forget(held.stored.uid, held.stored.resource_version, ours=False)
            return
        if key_of(rule) is None:
            raise UnavailableError(
                Refusal.CONFLICT,
                f'reading rule "{rule.metadata.name}": it does not carry our mark, or not what it stands for; '
                "expected the name to be free, delete that rule by hand",
            )
        self._cache.answered(rule)

    async def create(self, record: Record) -> None:
        """Make a rule that is not there; a conflict if it is."""
        rule = await self._api.create(self._collection(), self._object(record), Rule, fieldManager=MANAGER)
        self._cache.answered(rule)

    async def update(self, record: Record) -> None:
        """Apply over the very version that was read."""
        path = self._path(object_name(record.key))
        # Force: the fields were first owned by the same manager's create, which counts as another owner.
        rule = await self._api.apply(path, self._object(record), Rule, fieldManager=MANAGER, force="true")
        self._cache.answered(rule)

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read; a rule already gone is no error."""
        if record.stored is None:
            raise ValueError(f'deleting record "{record.key}": it was never stored')
        stored = record.stored
        if not self._cache.version:
            # What is not served cannot be deleted, and is of no effect.
            self._cache.forget(stored.uid, stored.resource_version)
            return
        await self._api.delete(self._path(stored.name), uid=stored.uid, resource_version=stored.resource_version)
        self._cache.forget(stored.uid, stored.resource_version)

    def _path(self, name: str) -> str:
        return object_path(self._collection(), name)

    def _collection(self) -> str:
        if not self._cache.version:
            raise NotServedError("writing a rule: the API server serves no version of DeviceTaintRule")
        return collection(self._cache.version)

    def _object(self, record: Record) -> dict[str, Any]:
        return to_object(record, f"resource.k8s.io/{self._cache.version}")


def collection(version: str) -> str:
    """Path of all rules in one API version."""
    return f"{RESOURCE_API}/{version}/devicetaintrules"
