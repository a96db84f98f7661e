"""Records as they would be: the cluster's own, with what a dry run would have written laid over them in memory.

It writes nothing anywhere. What it imagines of a record ends when the cluster's own changes, that is the truth then, or
when no alert has asked for the record for a while: an imagined record is never seen by the rules that would clear it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from remediator.backends import OnChange, OneWay, ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from remediator.backends import TellingBackend
    from remediator.records import Key, Record


_FORGOTTEN_AFTER = timedelta(minutes=15)
"""Three repeats of an alert that still fires."""


class DryRunBackend(OneWay):
    """Reads the cluster, imagines the writes."""

    names: tuple[str, ...] = ("dry-run",)

    def __init__(self, real: TellingBackend, clock: Callable[[], datetime]) -> None:
        self.on_change: OnChange = ignore
        self._real = real
        self._clock = clock
        # None: imagined to be gone.
        self._imagined: dict[Key, Record | None] = {}
        self._asked: dict[Key, datetime] = {}
        real.on_change = self._cluster_changed

    def records(self) -> Iterable[Record]:
        """Every record, as it would be."""
        self._forget()
        real = {record.key: record for record in self._real.records()}
        return tuple(record for record in (real | self._imagined).values() if record is not None)

    def record(self, key: Key) -> Record | None:
        """The record of one fault, as it would be."""
        if key in self._imagined:
            self._asked[key] = self._clock()
        return self._imagined[key] if key in self._imagined else self._real.record(key)

    async def refresh(self, key: Key) -> None:
        """Nothing to do: nobody else writes what is imagined."""

    async def create(self, record: Record) -> None:
        """Imagine a record."""
        self._imagine(record.key, record)

    async def update(self, record: Record) -> None:
        """Imagine a change."""
        self._imagine(record.key, record)

    async def delete(self, record: Record) -> None:
        """Imagine that the record is gone."""
        self._imagine(record.key, None)

    def _imagine(self, key: Key, after: Record | None) -> None:
        before = self.record(key)
        if after is not None and (before is None or before.taint.effect is not after.taint.effect):
            after = replace(after, tainted_since=self._clock())
        self._imagined[key] = after
        self._asked[key] = self._clock()
        self.on_change(before, after, True)

    def _forget(self) -> None:
        now = self._clock()
        for key in [key for key, asked in self._asked.items() if now - asked >= _FORGOTTEN_AFTER]:
            del self._asked[key]
            self.on_change(self._imagined.pop(key), self._real.record(key), True)

    def _cluster_changed(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        record = after or before
        if record is not None:
            self._asked.pop(record.key, None)
            self.on_change(self._imagined.pop(record.key, before), after, ours)
