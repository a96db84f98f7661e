"""Carries a decided action out: one writer a record, the budget reserved beforehand, only while leading, with traces.

It owns order and safety of writes, not judgement: what is to be written is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from remediator.decide import Action, Create, Delete, Replace, Update
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.traces import VOID, Change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from remediator.backends import Backend
    from remediator.budget import Budget
    from remediator.metrics import Metrics
    from remediator.records import Key, Record
    from remediator.traces import Traces

_NOT_CARRIED_OUT = frozenset(
    {Refusal.UNAUTHORIZED, Refusal.FORBIDDEN, Refusal.INVALID, Refusal.THROTTLED, Refusal.NOT_LEADING}
)
"""Refusals after which the write has certainly not reached the cluster."""


class Leadership(Protocol):
    """Whether this replica may change anything."""

    def not_leading(self) -> str | None:
        """Why no change may be made now, or None while this replica leads."""

    def remaining(self) -> float:
        """Seconds during which a write may still be under way; 0 or less when not leading, infinite without a Lease."""


class Writer:
    """The one way in which records are written. `clock` is the wall clock (UTC)."""

    def __init__(
        self,
        *,
        backend: Backend,
        leadership: Leadership,
        budget: Budget,
        traces: Traces,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._leadership = leadership
        self._budget = budget
        self._traces = traces
        self._metrics = metrics
        self._clock = clock
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def not_leading(self) -> str | None:
        """Why nothing may be written now, or None."""
        return self._leadership.not_leading()

    @asynccontextmanager
    async def alone(self, key: Key) -> AsyncIterator[None]:
        """Be the only one who decides on that record and writes it."""
        # Weak: a lock lives as long as somebody holds or awaits it, so a million faults leave none behind.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    async def carry_out(self, action: Action) -> None:
        """Write; the caller is `alone`. Raises `ConflictError` or `UnavailableError`.

        There is no await between the decision and the reservation, so that no two decisions see the same room.
        """
        match action:
            case Create(record):
                await self._step("create", record)
            case Update(record):
                await self._step("update", record)
            case Replace(void, record):
                self._reserve(record)
                await self._step("delete", void, told=VOID)
                await self._step("create", record, reserved=True)
            case Delete(record):
                await self._step("delete", record)

    async def _step(self, step: str, record: Record, *, told: str = "", reserved: bool = False) -> None:
        before = self._backend.record(record.key)
        if step != "delete" and not reserved:
            self._reserve(record)
        result = "failed"
        try:
            await self._write(step, record)
            result = "ok"
        except ConflictError:
            result = "conflict"
            self._budget.refused(record.key)
            raise
        except UnavailableError as error:
            if error.refusal in _NOT_CARRIED_OUT:
                self._budget.refused(record.key)
            raise
        finally:
            self._metrics.actions.labels(step, self._backend.name, result).inc()
        if step == "delete":
            self._traces.changed(Change(told or step, before or record, None))
        else:
            self._budget.written(record.key)
            # It may be gone again, by the hand of another.
            self._traces.changed(Change(step, before, self._backend.record(record.key) or record))

    def _reserve(self, record: Record) -> None:
        self._budget.reserve(record.key, record.target.place, record.taint.effect, self._clock())

    async def _write(self, step: str, record: Record) -> None:
        remaining = self._leadership.remaining()
        if remaining <= 0:
            raise UnavailableError(
                Refusal.NOT_LEADING, f'writing record "{record.key}": another replica may lead by now'
            )
        write = {"create": self._backend.create, "update": self._backend.update, "delete": self._backend.delete}[step]
        try:
            async with asyncio.timeout(None if math.isinf(remaining) else remaining):
                await write(record)
        except TimeoutError as error:
            raise UnavailableError(
                Refusal.TIMEOUT, f'writing record "{record.key}": no answer while the Lease is certain'
            ) from error
