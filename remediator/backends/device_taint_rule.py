"""Records as DeviceTaintRules: one rule for each fault on each device.

The API's union of rules is the reference count: a device stays tainted until its last rule is gone, so nothing is
counted here. ResourceSlices are never written, and only objects with our mark are read as ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remediator.cluster import RESOURCE_API, Api, object_path
from remediator.errors import Refusal, UnavailableError
from remediator.records import MANAGED_BY, MANAGER, Key, Record, Rule, from_object, object_name, to_object

if TYPE_CHECKING:
    from collections.abc import Iterable

SELECTOR = f"{MANAGED_BY}={MANAGER}"
"""Label selector of our own rules."""


class RecordCache:
    """Our rules as last seen. Sees our own writes at once; an event older than what is held changes nothing."""

    def __init__(self) -> None:
        self._records: dict[Key, Record] = {}
        self._keys: dict[str, Key] = {}
        self._deleted: set[str] = set()

    def replace(self, objects: list[Rule], resource_version: str) -> None:
        """Take the whole list; what we wrote after it was made stays."""
        newer = {key: held for key, held in self._records.items() if _version(held) > int(resource_version)}
        self._records = newer
        self._keys = {held.stored.uid: key for key, held in newer.items() if held.stored}
        # A list may be older than our deletion; what it no longer holds has no events under way either.
        self._deleted &= {rule.metadata.uid for rule in objects}
        for rule in objects:
            self.put(rule)

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed."""
        record = from_object(object_)
        if record is None:
            self._drop_uid(object_.metadata.uid)
            return
        if object_.metadata.uid in self._deleted:
            return
        held = self._records.get(record.key)
        if held is None or _version(held) <= _version(record):
            self._records[record.key] = record
            self._keys[object_.metadata.uid] = record.key

    def remove(self, object_: Rule) -> None:
        """Drop one rule; its successor of the same name stays."""
        self._deleted.discard(object_.metadata.uid)
        self._drop_uid(object_.metadata.uid)

    def forget(self, uid: str) -> None:
        """Drop a rule that was deleted, for good: events about it may still be under way."""
        # One that is not held has had its last event: nothing is remembered that no event would take away again.
        if uid in self._keys:
            self._deleted.add(uid)
            self._drop_uid(uid)

    def all(self) -> Iterable[Record]:
        """Every record there is."""
        return tuple(self._records.values())

    def get(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._records.get(key)

    def _drop_uid(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        held = self._records.get(key) if key else None
        if key and held and held.stored and held.stored.uid == uid:
            del self._records[key]


def _version(record: Record) -> int:
    return int(record.stored.resource_version) if record.stored else 0


class DeviceTaintRuleBackend:
    """Records in the cluster."""

    name = "device-taint-rule"

    def __init__(self, api: Api, version: str, cache: RecordCache) -> None:
        self._api = api
        self._api_version = f"resource.k8s.io/{version}"
        self._collection = collection(version)
        self._cache = cache

    def records(self) -> Iterable[Record]:
        """Every record there is."""
        return self._cache.all()

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._cache.get(key)

    async def refresh(self, key: Key) -> None:
        """Read one record anew from the cluster."""
        rule = await self._api.get(object_path(self._collection, object_name(key)), Rule)
        if rule is None:
            held = self._cache.get(key)
            if held is not None and held.stored is not None:
                self._cache.forget(held.stored.uid)
            return
        if rule.metadata.labels.get(MANAGED_BY) != MANAGER:
            raise UnavailableError(
                Refusal.CONFLICT,
                f'reading rule "{rule.metadata.name}": it is not ours; expected the name to be free, delete that rule',
            )
        if from_object(rule) is None:
            # Ours, and altered until it no longer says what it stands for: the firing at hand makes it anew.
            await self._delete(rule.metadata.name, rule.metadata.uid, rule.metadata.resource_version)
            self._cache.forget(rule.metadata.uid)
            return
        self._cache.put(rule)

    async def create(self, record: Record) -> None:
        """Make a rule that is not there; a conflict if it is."""
        body = to_object(record, self._api_version)
        self._cache.put(await self._api.create(self._collection, body, Rule, fieldManager=MANAGER))

    async def update(self, record: Record) -> None:
        """Apply over the very version that was read."""
        path = object_path(self._collection, object_name(record.key))
        body = to_object(record, self._api_version)
        # Force: the fields were first owned by the same manager's create, which counts as another owner.
        self._cache.put(await self._api.apply(path, body, Rule, fieldManager=MANAGER, force="true"))

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read; a rule already gone is no error."""
        if record.stored is None:
            raise ValueError(f'deleting record "{record.key}": it was never stored')
        stored = record.stored
        await self._delete(stored.name, stored.uid, stored.resource_version)
        self._cache.forget(stored.uid)

    async def _delete(self, name: str, uid: str, resource_version: str) -> None:
        path = object_path(self._collection, name)
        await self._api.delete(path, uid=uid, resource_version=resource_version)


def collection(version: str) -> str:
    """Path of all rules in one API version."""
    return f"{RESOURCE_API}/{version}/devicetaintrules"
