"""Ways to carry a decision out, one class each behind one protocol.

A backend holds the records and writes them; it never decides. Every write is guarded by the record's `stored`
(UID and resource version): when the cluster has moved on, it raises `ConflictError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from remediator.records import Key, Record

OnChange = Callable[[Record | None, Record | None, bool], None]
"""Told of each record that comes, changes or goes: before, after, and false where others have removed its rule."""


def ignore(before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - as `OnChange` is called
    """Tell nobody of a change."""


class Backend(Protocol):
    """Where records live. Reads are from memory and see our own writes; writes go to the cluster.

    Writes raise `ConflictError` (read again, decide again) or `UnavailableError` (nothing was done, or it is not
    known whether it was: ask again, every write may be repeated).
    """

    names: tuple[str, ...]
    """The ways it has to keep records: the values of the label `backend`."""

    def name_of(self, record: Record) -> str:
        """The way in which that record is, or is to be, kept."""

    def records(self) -> Iterable[Record]:
        """Every record there is."""

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""

    def untidy(self, key: Key) -> bool:
        """Whether writing the record as it is would tidy up after a move of it that was cut short."""

    async def refresh(self, key: Key) -> None:
        """Read one record anew from the cluster, after a conflict."""

    async def create(self, record: Record) -> None:
        """Make a record that is not there; a conflict if it is."""

    async def update(self, record: Record) -> None:
        """Write a record over the very version it was read from."""

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read; a record already gone is no error."""


class TellingBackend(Backend, Protocol):
    """A backend that tells of each record that comes, changes or goes."""

    on_change: OnChange


class OneWay:
    """What is the same of every backend that keeps all its records in one way, which its class names."""

    names: tuple[str, ...]

    def name_of(self, record: Record) -> str:  # noqa: ARG002 - it is the same for all
        """The one there is."""
        return self.names[0]

    def untidy(self, key: Key) -> bool:  # noqa: ARG002 - nothing moves here
        """Never: a record is in one place."""
        return False
