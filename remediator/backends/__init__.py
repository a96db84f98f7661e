"""Ways to carry a decision out, one class each behind one protocol.

A backend holds the records and writes them; it never decides. Every write is guarded by the record's `stored`
(UID and resource version): when the cluster has moved on, it raises `ConflictError` and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remediator.inventory import Node, Target
    from remediator.records import Key, Record


class Backend(Protocol):
    """Where records live. Reads are from memory and see our own writes; writes go to the cluster.

    Writes raise `ConflictError` (read again, decide again) or `UnavailableError` (nothing was done, or it is not
    known whether it was: ask again, every write may be repeated).
    """

    name: str

    def records(self) -> Iterable[Record]:
        """Every record there is."""

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""

    async def refresh(self, key: Key) -> None:
        """Read one record anew from the cluster, after a conflict."""

    async def create(self, record: Record) -> None:
        """Make a record that is not there; a conflict if it is."""

    async def update(self, record: Record) -> None:
        """Write a record over the very version it was read from."""

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read; a record already gone is no error."""


class Surroundings(Protocol):
    """What must be known of the cluster to place a record."""

    def not_ready(self) -> str | None:
        """Why decisions cannot be made yet, or None when they can."""

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """The Node, from memory or by a live read; None only when the cluster says it is not there."""

    def nodes(self) -> Iterable[str]:
        """Names of the Nodes that are there, as far as devices of theirs are of interest."""

    def locate(self, node: str, device: int) -> Target:
        """Where device `device` of that node is to be tainted."""
