"""Keeps the records level with what surrounds them when no alert comes: what may be lowered, lifted or raised by now.

It finds out when to look (a poke, the end of a release, now and then) and has every decision made by
`remediator.decide`. It never removes a record but one whose fault the table has no more, or has under another name.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from alerts.faults import FORMER
from exporter.service.logs import Seldom
from remediator.decide import Levelling, Update, relevel, rename
from remediator.errors import ConflictError, RemediatorError
from remediator.pacing import Pacing
from remediator.records import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from remediator.backends import Backend
    from remediator.records import Key, Record
    from remediator.surroundings import Surroundings, Views
    from remediator.writing import Writer

_LOG = logging.getLogger(__name__)

SWEEP_SECONDS = 15.0
"""The longest time between two looks: the budget's window opens by time alone, and a failed write is tried again."""

_PAUSE_SECONDS = 0.5
"""The shortest: a burst of changes is looked at once."""

_WORKERS = 16
_RECORDS_A_TURN = 100
_LOG_SECONDS = 10.0


class Leveller:
    """Sweeps over all records. `clock` is the wall clock (UTC), `elapsed` a monotonic clock in seconds.

    `former` are the names that faults had before, as in `alerts.faults`.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        surroundings: Surroundings,
        views: Views,
        writer: Writer,
        clock: Callable[[], datetime],
        elapsed: Callable[[], float],
        former: Mapping[str, str | None] = FORMER,
    ) -> None:
        self._backend = backend
        self._surroundings = surroundings
        self._views = views
        self._writer = writer
        self._clock = clock
        self._elapsed = elapsed
        self._former = former
        self._put_off = math.inf
        self._pacing = Pacing()
        self._poked = asyncio.Event()
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)

    def poke(self) -> None:
        """Have a look soon: something that decisions depend on has changed."""
        self._poked.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            self._poked.clear()
            began = self._clock()
            # Who begins to lead lists anew; nothing pokes when that brings nothing new.
            blind = self._surroundings.not_ready() is not None
            await self.sweep()
            await asyncio.sleep(_PAUSE_SECONDS)
            if blind:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_next(began)):
                    await self._poked.wait()

    async def sweep(self) -> None:
        """Look at every record once, the longest standing first, and write what is not level."""
        if self._writer.not_leading() or self._surroundings.not_ready():
            return
        self._put_off = math.inf
        due: list[Key] = []
        for count, record in enumerate(sorted(self._backend.records(), key=_age), 1):
            if self._due(record):
                due.append(record.key)
            if count % _RECORDS_A_TURN == 0:
                await asyncio.sleep(0)
        keys = iter(due)

        async def work() -> None:
            for key in keys:
                await self._settle(key)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(due), _WORKERS)):
                group.create_task(work())

    async def _settle(self, key: Key) -> None:
        """Decide anew, alone with the record, and write. What fails is left to the next sweep."""
        try:
            async with AsyncExitStack() as alone:
                for one in self._concerned(key):
                    await alone.enter_async_context(self._writer.alone(one))
                record = self._backend.record(key)
                action = self._decide(record) if record else None
                if record is not None and action is not None and self._in_time(record, action):
                    await self._writer.carry_out(action)
                    if _raises(record, action):
                        self._pacing.raised(key, self._elapsed())
        except ConflictError:
            with suppress(RemediatorError):
                await self._backend.refresh(key)
            self.poke()
        except RemediatorError as error:
            self._seldom.warning("levelling a record: failed", extra={"record": str(key), "error": str(error)})
        except Exception:  # noqa: BLE001 - a bug that one record meets must not keep the others from being lowered
            _LOG.exception("levelling a record: unexpected error", extra={"record": str(key)})

    def _due(self, record: Record) -> bool:
        try:
            action = self._decide(record)
            return action is not None and self._in_time(record, action)
        except Exception:  # noqa: BLE001 - a bug that one record meets must not keep the others from being lowered
            _LOG.exception("levelling a record: unexpected error", extra={"record": str(record.key)})
            return False

    def _decide(self, record: Record) -> Levelling | None:
        key, node = record.key, self._surroundings.known_node(record.key.node)
        if key.fault in self._former:
            today = self._today(key) or key
            held = self._backend.record(today)
            return rename(record, to=self._former[key.fault], held=held, node=node, view=self._views.of(today, node))
        return relevel(record, node=node, view=self._views.of(key, node), untidy=self._backend.untidy(key))

    def _in_time(self, record: Record, action: Levelling) -> bool:
        """Whether it may be done now. What is raised too soon after the last time is looked at when its time comes."""
        if not _raises(record, action):
            return True
        now = self._elapsed()
        due = self._pacing.due(record.key, now)
        if due > now:
            self._put_off = min(due, self._put_off)
        return due <= now

    def _today(self, key: Key) -> Key | None:
        name = self._former.get(key.fault)
        return None if name is None else replace(key, fault=name)

    def _concerned(self, key: Key) -> list[Key]:
        """The records to be alone with; nobody who holds that of today's name waits for that of a former one."""
        today = self._today(key)
        return [key] if today is None else [key, today]

    def _until_next(self, began: datetime) -> float:
        """Seconds until the next look; a release that had ended when the last one began is waited for no more."""
        now = self._clock()
        put_off = self._put_off - self._elapsed()
        released = (record for record in self._backend.records() if record.state is State.RELEASED)
        ends = ((one.released_until - now).total_seconds() for one in released if one.released_until > began)
        return max(0.0, min((*ends, put_off, SWEEP_SECONDS)))


def _raises(record: Record, action: Levelling) -> bool:
    """Whether it disturbs anybody: by a stronger effect, or by the same elsewhere. What is lowered never waits."""
    if not isinstance(action, Update) or not action.record.disrupts:
        return False
    before, after = record.taint.effect.rank, action.record.taint.effect.rank
    return after > before or (after == before and action.record.target.place != record.target.place)


def _age(record: Record) -> tuple[datetime, Key]:
    return record.first_fired, record.key
