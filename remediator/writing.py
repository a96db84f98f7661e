"""Carries a decided action out: one writer a record, the budget reserved beforehand, only while leading, with traces.

It owns order and safety of writes, not judgement: what is to be written is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from remediator.budget import LANDED_BY
from remediator.decide import Action, Create, Delete, Levelling, Rename, Replace, Retire, Update
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.records import NEVER
from remediator.traces import CREATE, DELETE, RENAME, RETIRE, UPDATE, VOID, Change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from remediator.backends import Backend
    from remediator.budget import Budget
    from remediator.election import Leadership
    from remediator.metrics import Metrics
    from remediator.records import Key, Record
    from remediator.traces import Traces

_NOT_CARRIED_OUT = frozenset(
    {
        Refusal.UNAUTHORIZED,
        Refusal.FORBIDDEN,
        Refusal.INVALID,
        Refusal.THROTTLED,
        Refusal.NOT_LEADING,
        Refusal.NOT_SERVED,
    }
)
"""Refusals after which the write has certainly not reached the cluster."""


@dataclass(slots=True)
class _Attempt:
    """A write of ours; `told` once its change has been told."""

    step: str
    told_as: str
    record: Record
    began: datetime
    told: bool = False

    def made(self, after: Record | None) -> bool:
        """Whether the cluster showing this record is what the write was to bring about."""
        if self.step == DELETE or after is None:
            return self.step == DELETE and after is None
        return replace(after, stored=None, tainted_since=NEVER) == replace(
            self.record, stored=None, tainted_since=NEVER
        )


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
        # What is being written, and what has been with the answer lost.
        self._attempts: dict[Key, _Attempt] = {}

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

    async def carry_out(self, action: Action | Levelling) -> None:
        """Write; the caller is `alone` with every record in it. Raises `ConflictError` or `UnavailableError`.

        There is no await between the decision and the reservation, so that no two decisions see the same room.
        """
        match action:
            case Create(record):
                self._reserve(record)
                await self._step(CREATE, record)
            case Update(record):
                self._reserve(record)
                await self._step(UPDATE, record)
            case Replace(void, record):
                self._reserve(record)
                await self._step(DELETE, void, told_as=VOID)
                await self._step(CREATE, record)
            case Delete(record):
                await self._step(DELETE, record, reserved=False)
            case Retire(record):
                await self._step(DELETE, record, told_as=RETIRE, reserved=False)
            case Rename(former, successor):
                if successor is not None:
                    await self.carry_out(successor)
                await self._step(DELETE, former, told_as=RENAME, reserved=False)

    def saw(self, before: Record | None, after: Record | None) -> bool:
        """Note that a record came, changed or went; whether that is what is, or was, being written here.

        A change is told when the cluster shows it, be it by the answer or, where that is lost, by the watch.
        """
        record = after or before
        attempt = self._attempts.get(record.key) if record else None
        if attempt is None or not attempt.made(after) or self._clock() - attempt.began >= LANDED_BY:
            return False
        if not attempt.told:
            attempt.told = True
            self._traces.changed(Change(attempt.told_as, before, after))
        return True

    def in_doubt(self) -> bool:
        """Whether a write may reach the cluster yet, as its answer has not come."""
        now = self._clock()
        return any(now - attempt.began < LANDED_BY for attempt in self._attempts.values())

    async def _step(self, step: str, record: Record, *, told_as: str = "", reserved: bool = True) -> None:
        key, before = record.key, self._backend.record(record.key)
        lost = self._attempts.get(key)
        attempt = self._attempts[key] = _Attempt(step, told_as or step, record, self._clock())
        result = "failed"
        try:
            await self._write(step, record)
            result = "ok"
        except ConflictError:
            # It may be an earlier write of ours, with its answer lost, that is in the way.
            result = "conflict"
            if reserved:
                self._budget.refused(key)
            raise
        except UnavailableError as error:
            if error.refusal in _NOT_CARRIED_OUT:
                self._take_back(key, lost)
                if reserved:
                    self._budget.refused(key)
            raise
        finally:
            self._metrics.actions.labels(step, self._backend.name_of(record), result).inc()
        self._take_back(key, None)
        if told_as != VOID:
            self._budget.written(key)
        if not attempt.told:
            # Memory knew it before we did, or has heard by now that it is gone again.
            after = None if step == DELETE else self._backend.record(key) or record
            self._traces.changed(Change(attempt.told_as, before or (None if after else record), after))

    def _take_back(self, key: Key, earlier: _Attempt | None) -> None:
        """The attempt on that record is over; what was in doubt before it still is."""
        if earlier is None:
            self._attempts.pop(key, None)
        else:
            self._attempts[key] = earlier

    def _reserve(self, record: Record) -> None:
        self._budget.reserve(record.key, record.target.place, record.taint.effect, self._clock())

    async def _write(self, step: str, record: Record) -> None:
        remaining = self._leadership.remaining()
        if remaining <= 0:
            raise UnavailableError(
                Refusal.NOT_LEADING, f'writing record "{record.key}": another replica may lead by now'
            )
        write = {CREATE: self._backend.create, UPDATE: self._backend.update, DELETE: self._backend.delete}[step]
        try:
            async with asyncio.timeout(None if math.isinf(remaining) else remaining):
                await write(record)
        except TimeoutError as error:
            raise UnavailableError(
                Refusal.TIMEOUT, f'writing record "{record.key}": no answer while the Lease is certain'
            ) from error
