"""Records in memory: for trying the product without a cluster, and the fake for tests.

It keeps the same guards as the API server does (existing names, UIDs, resource versions, times of taints), so that a
decision meets the same conflicts. It writes nothing anywhere; a restart forgets everything.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remediator.backends import OnChange, OneWay, ignore
from remediator.errors import ConflictError
from remediator.inventory import DeviceTaint, Node, NodeMetadata, locate
from remediator.records import Key, Record, Stored
from remediator.rule_records import object_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from remediator.targets import Place, Target


class MemoryBackend(OneWay):
    """A dict of records behind the backend protocol."""

    names: tuple[str, ...] = ("memory",)

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.on_change: OnChange = ignore
        self._clock = clock
        self._records: dict[Key, Record] = {}
        self._writes = 0

    def records(self) -> Iterable[Record]:
        """Every record there is."""
        return tuple(self._records.values())

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._records.get(key)

    async def refresh(self, key: Key) -> None:
        """Nothing to do: memory is the truth here."""

    async def create(self, record: Record) -> None:
        """Make a record that is not there; a conflict if it is."""
        if record.key in self._records:
            raise ConflictError(f'creating record "{record.key}": it exists already')
        self._store(record, uid=f"memory-{self._writes + 1}")

    async def update(self, record: Record) -> None:
        """Write a record over the very version it was read from."""
        self._store(record, uid=self._held(record, "updating").uid)

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read; a record already gone is no error."""
        if record.key in self._records:
            self._held(record, "deleting")
            self.on_change(self._records.pop(record.key), None, True)

    def _held(self, record: Record, doing: str) -> Stored:
        held = self._records.get(record.key)
        if held is None or held.stored is None or held.stored != record.stored:
            raise ConflictError(f'{doing} record "{record.key}": it changed since it was read')
        return held.stored

    def _store(self, record: Record, *, uid: str) -> None:
        self._writes += 1
        stored = Stored(object_name(record.key), uid, str(self._writes))
        before = self._records.get(record.key)
        as_before = before is not None and before.taint.effect is record.taint.effect
        since = before.tainted_since if before and as_before else self._clock()
        after = replace(record, stored=stored, tainted_since=since)
        self._records[record.key] = after
        self.on_change(before, after, True)


class AnyCluster:
    """Surroundings without a cluster: every node exists since long ago, and no slice says otherwise."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._asked: set[str] = set()

    def not_ready(self) -> str | None:
        """Return None: there is nothing to wait for."""
        return None

    async def node(self, name: str, *, live: bool = False) -> Node | None:  # noqa: ARG002 - nothing but memory here
        """A node of that name."""
        self._asked.add(name)
        return _node(name)

    def known_node(self, name: str) -> Node | None:
        """The same node, if it was asked for."""
        return _node(name) if name in self._asked else None

    def nodes(self) -> Iterable[str]:
        """Every node that was asked for."""
        return tuple(self._asked)

    def node_taints(self, node: str) -> Collection[DeviceTaint]:  # noqa: ARG002 - there are none on any
        """None: nobody else taints."""
        return ()

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """None: there is no driver."""
        return {}

    def targets(self) -> int:
        """Unknown; as many as it takes for a share of them to be no limit."""
        return 1_000_000

    def unavailable(self) -> Collection[Place]:
        """None: there is no driver."""
        return ()

    def locate(self, node: str, device: int) -> Target:
        """The driver's naming convention."""
        return locate((), driver=self._driver, node=node, device=device)


def _node(name: str) -> Node:
    return Node(NodeMetadata(name, f"memory-{name}", datetime.min.replace(tzinfo=UTC)))
