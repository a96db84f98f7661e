"""Records on Nodes: one annotation and, where a record has an effect, one taint, both written in one guarded patch.

For nodes whose devices no rule can taint. Nothing of a Node but that annotation and that taint is ever changed: the
patch holds the list of taints as it was read, with ours in its place, and fails if the Node has changed since.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from alerts.faults import Effect
from remediator.backends import OnChange, OneWay, ignore
from remediator.cluster import Api, object_path
from remediator.errors import ConflictError
from remediator.inventory import DeviceTaint, Node
from remediator.node_cache import NODES, NodeCache
from remediator.node_records import DamagedRecordsError, NodeTaint, foreign_taints, marked, patch, read
from remediator.records import MANAGER, Key, Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from datetime import datetime

_LOG = logging.getLogger(__name__)


class NodeRecords:
    """The records of all Nodes, as last seen; kept current by whoever holds the Nodes.

    `on_change(before, after, ours)` is told of each record that comes, changes or goes; it cannot be told from here
    who has taken one away.
    """

    def __init__(self, driver: str) -> None:
        self.on_change: OnChange = ignore
        self._driver = driver
        self._of_node: dict[str, dict[Key, Record]] = {}
        # Of those Nodes that have any.
        self._foreign: dict[str, tuple[DeviceTaint, ...]] = {}

    def take(self, name: str, node: Node | None) -> None:
        """Take one Node as it is now, None when it is gone."""
        self._foreign.pop(name, None)
        if node is not None and (foreign := foreign_taints(node)):
            self._foreign[name] = tuple(map(_device_taint, foreign))
        before = self._of_node.pop(name, {})
        after = self.of(node) if node is not None and marked(node) else {}
        # A record that is as it was keeps the version in which it became so: the next write of it is based on that.
        after = {key: _unless_changed(before.get(key), record) for key, record in after.items()}
        if after:
            self._of_node[name] = after
        for key in {**before, **after}:
            if before.get(key) is not after.get(key):
                self.on_change(before.get(key), after.get(key), False)

    def of(self, node: Node) -> dict[Key, Record]:
        """The records that the Node bears; none of those of an annotation that a hand has broken."""
        try:
            return read(node, driver=self._driver)
        except DamagedRecordsError as error:
            _LOG.error("the records of a Node cannot be read: firings make them anew", extra={"error": str(error)})
            return {}

    def foreign_taints(self, name: str) -> tuple[DeviceTaint, ...]:
        """The taints of that Node that are not ours."""
        return self._foreign.get(name, ())

    def get(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._of_node.get(key.node, {}).get(key)

    def all(self) -> Iterable[Record]:
        """Every record there is."""
        return tuple(record for records in self._of_node.values() for record in records.values())


def _device_taint(taint: NodeTaint) -> DeviceTaint:
    return DeviceTaint(taint.get("key", ""), taint.get("value", ""), Effect.read(taint.get("effect", "")))


def _unless_changed(before: Record | None, after: Record) -> Record:
    return before if before is not None and replace(before, stored=after.stored) == after else after


class NodeTaintBackend(OneWay):
    """Records on Nodes. `clock` is the wall clock (UTC)."""

    names: tuple[str, ...] = ("node-taint",)

    def __init__(self, api: Api, nodes: NodeCache, records: NodeRecords, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._nodes = nodes
        self._records = records
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def on_change(self) -> OnChange:
        """Who is told of each record that comes, changes or goes."""
        return self._records.on_change

    @on_change.setter
    def on_change(self, told: OnChange) -> None:
        self._records.on_change = told

    def records(self) -> Iterable[Record]:
        """Every record there is."""
        return self._records.all()

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._records.get(key)

    async def refresh(self, key: Key) -> None:
        """Read the Node anew from the cluster."""
        await self._nodes.read(key.node)

    async def create(self, record: Record) -> None:
        """Put a record on its Node; a conflict if it is there."""
        async with self._alone(record.key) as (node, held):
            if record.key in held:
                raise ConflictError(f'creating record "{record.key}": the Node has it already')
            await self._write(node, {**held, record.key: self._stamped(record, None)})

    async def update(self, record: Record) -> None:
        """Write a record over the very one that was read."""
        async with self._alone(record.key) as (node, held):
            before = self._same(record, held)
            await self._write(node, {**held, record.key: self._stamped(record, before)})

    async def delete(self, record: Record) -> None:
        """Remove the very record that was read; one already gone is no error."""
        async with self._alone(record.key) as (node, held):
            if record.key in held:
                self._same(record, held)
                await self._write(node, {key: one for key, one in held.items() if key != record.key})

    @asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[tuple[Node, dict[Key, Record]]]:
        """The Node and its records, with nobody else here writing them: two faults of one Node come at once."""
        async with self._locks.setdefault(key.node, asyncio.Lock()):
            node = self._nodes.get(key.node)
            if node is not None:
                yield node, {one: held for one in self._records.of(node) if (held := self._records.get(one))}
                return
            # It may be ahead of its event.
            node = await self._nodes.read(key.node)
            if node is None:
                raise ConflictError(f'writing record "{key}": its Node is gone')
            yield node, self._records.of(node)

    @staticmethod
    def _same(record: Record, held: dict[Key, Record]) -> Record:
        before = held.get(record.key)
        if before is None or before.stored != record.stored:
            raise ConflictError(f'writing record "{record.key}": it has changed since it was read')
        return before

    def _stamped(self, record: Record, before: Record | None) -> Record:
        """With the time since when it has its effect, as a server would keep it."""
        as_before = before is not None and before.taint.effect is record.taint.effect
        return replace(record, tainted_since=before.tainted_since if before and as_before else self._clock())

    async def _write(self, node: Node, records: dict[Key, Record]) -> None:
        name = node.metadata.name
        change = patch(node, records.values(), now=self._clock())
        after = await self._api.merge(object_path(NODES, name), change, Node, fieldManager=MANAGER)
        if after is None:
            raise ConflictError(f'writing the records of Node "{name}": it is gone')
        self._nodes.answered(after)
