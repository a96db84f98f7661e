"""What stands around the real webhook in tests: a clock, a cluster as plain values, a backend with trouble on demand.

The backend underneath is the product's own memory backend; only faults are added here.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remediator.backends import OneWay
from remediator.backends.memory import MemoryBackend
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.inventory import Inventory
from remediator.targets import NodeTarget
from tests.remediator.samples import DRIVER, NODE, NOW, node
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from remediator.backends import OnChange
    from remediator.inventory import DeviceTaint, Node
    from remediator.records import Key, Record
    from remediator.targets import AnyTarget, Place
    from remediator.traces import Change


@dataclass
class Clock:
    """A wall clock that stands until it is set."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        """Say what time it is."""
        return self.now


@dataclass
class FakeCluster:
    """Nodes, slices, others' taints on Nodes. A look at a Node waits for `gate` and raises `failure`, if set."""

    known: dict[str, Node] = field(default_factory=lambda: {NODE: node()})
    inventory: Inventory = field(default_factory=lambda: Inventory(DRIVER))
    waiting_for: str | None = None
    failure: Exception | None = None
    gate: asyncio.Event | None = None
    asked: int = 0
    tainted: dict[str, list[DeviceTaint]] = field(default_factory=dict)
    really: dict[str, Node] | None = None
    by_node: bool = False

    def not_ready(self) -> str | None:
        """Why no decision can be made."""
        return self.waiting_for

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """Look the Node up; a live look sees what `really` says, where it is set."""
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        seen = self.really if live and self.really is not None else self.known
        return seen.get(name)

    def known_node(self, name: str) -> Node | None:
        """The Node, without asking anybody."""
        return self.known.get(name)

    def nodes(self) -> Iterable[str]:
        """The Nodes that memory knows."""
        return self.known.keys()

    def node_taints(self, node: str) -> Collection[DeviceTaint]:
        """Other people's taints on the Node itself."""
        return self.tainted.get(node, ())

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's own taints in the slices."""
        return self.inventory.taints()

    def targets(self) -> int:
        """A fleet of ten nodes, whatever is known."""
        return 160

    def unavailable(self) -> Collection[Place]:
        """Places that the driver keeps work off."""
        return self.inventory.unavailable()

    def locate(self, node: str, device: int) -> AnyTarget:
        """Ask the slices; with `by_node`, nothing but the Node can be tainted."""
        target = self.inventory.locate(node, device)
        return NodeTarget(node, target, placed=True) if self.by_node else target


@dataclass
class Leads:
    """A leadership that a test gives and takes."""

    reason: str | None = None
    seconds: float = math.inf

    def not_leading(self) -> str | None:
        """Why nothing may be changed."""
        return self.reason

    def remaining(self) -> float:
        """How long a write may take."""
        return self.seconds if self.reason is None else 0.0


@dataclass
class Heard:
    """Keeps the changes that were told."""

    changes: list[Change] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        """Keep it."""
        self.changes.append(change)


def unavailable() -> UnavailableError:
    """The API server is down."""
    return UnavailableError(Refusal.UNREACHABLE, "POST /apis/resource.k8s.io: ClientConnectorError")


def conflict() -> ConflictError:
    """Somebody else is faster, always."""
    return ConflictError("the object has been modified")


async def eventually(condition: Callable[[], object], *, what: str) -> None:
    """Wait until a plain condition is true, for some seconds at most."""

    async def met() -> bool:
        return bool(condition())

    await wait_for(met, timeout=10, what=what)


class Hang(Exception):  # noqa: N818 - not an error but a kind of trouble
    """As trouble: the write is carried out, and its answer never comes."""


class FaultyBackend(OneWay):
    """The memory backend. `trouble` decides per device which write fails how; `writes` lists the successful ones."""

    names: tuple[str, ...] = ("memory",)

    def __init__(self) -> None:
        self.memory = MemoryBackend(lambda: NOW)
        self.trouble: dict[int, Exception] = {}
        self.writes: list[tuple[str, Key]] = []
        self.refreshes = 0

    @property
    def on_change(self) -> OnChange:
        """Who is told of changes."""
        return self.memory.on_change

    @on_change.setter
    def on_change(self, told: OnChange) -> None:
        self.memory.on_change = told

    def records(self) -> Iterable[Record]:
        """Every record."""
        return self.memory.records()

    def record(self, key: Key) -> Record | None:
        """One record."""
        return self.memory.record(key)

    async def refresh(self, key: Key) -> None:
        """Count the looks at the cluster after a conflict."""
        self.refreshes += 1
        await self.memory.refresh(key)

    async def create(self, record: Record) -> None:
        """Create, with trouble."""
        await self._write("create", record)

    async def update(self, record: Record) -> None:
        """Update, with trouble."""
        await self._write("update", record)

    async def delete(self, record: Record) -> None:
        """Delete, with trouble."""
        await self._write("delete", record)

    async def _write(self, step: str, record: Record) -> None:
        await asyncio.sleep(0)  # as a real write does, let others in
        trouble = self.trouble.get(record.key.device)
        if trouble is not None and not isinstance(trouble, Hang):
            raise trouble
        await getattr(self.memory, step)(record)
        self.writes.append((step, record.key))
        if trouble is not None:
            await asyncio.Event().wait()
