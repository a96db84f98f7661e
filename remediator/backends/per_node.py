"""Both ways at once: each record is kept where its target is, by a rule or on its Node, and moves with it.

A record that moves is made in the new place before it is taken away from the old one, so that its device is never free
in between. Where both are there, after a crash, the rule is the record, and the next write takes the other away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remediator.backends import OnChange, ignore
from remediator.errors import ConflictError
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remediator.backends import TellingBackend
    from remediator.records import Key, Record


class PerNodeBackend:
    """Records on rules and on Nodes, as one."""

    def __init__(self, rules: TellingBackend, nodes: TellingBackend) -> None:
        self.on_change: OnChange = ignore
        self.names = (*rules.names, *nodes.names)
        self._rules = rules
        self._nodes = nodes
        rules.on_change = self._rule_changed
        nodes.on_change = self._node_changed

    def name_of(self, record: Record) -> str:
        """Where that record is, or is to be, kept."""
        return self._keeper(record).name_of(record)

    def records(self) -> Iterable[Record]:
        """Every record there is, each once."""
        by_rule = tuple(self._rules.records())
        keys = {record.key for record in by_rule}
        return (*by_rule, *(record for record in self._nodes.records() if record.key not in keys))

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return self._rules.record(key) or self._nodes.record(key)

    def untidy(self, key: Key) -> bool:
        """Whether the record is there twice, as a move has been cut short."""
        return self._rules.record(key) is not None and self._nodes.record(key) is not None

    async def refresh(self, key: Key) -> None:
        """Read one record anew from the cluster."""
        await self._nodes.refresh(key)
        await self._rules.refresh(key)

    async def create(self, record: Record) -> None:
        """Make a record that is not there; a conflict if it is."""
        await self._keeper(record).create(record)

    async def update(self, record: Record) -> None:
        """Write a record over the very version it was read from; move it if that is kept elsewhere."""
        keeper = self._keeper(record)
        held, old = keeper.record(record.key), self._other(keeper).record(record.key)
        seen = self.record(record.key)
        if old is not None and seen is not None and record.stored != seen.stored:
            raise ConflictError(f'moving record "{record.key}": it has changed since it was read')
        if old is None or (held is not None and held.stored == record.stored):
            await keeper.update(record)
        elif held is None:
            await keeper.create(replace(record, stored=None))
        else:
            await keeper.update(replace(record, stored=held.stored))
        if old is not None:
            await self._other(keeper).delete(old)

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read, wherever it is kept; a record already gone is no error."""
        # The one that is not seen first: else it would be seen then.
        if (hidden := self._nodes.record(record.key)) is not None and self._rules.record(record.key) is not None:
            await self._nodes.delete(hidden)
        await self._keeper(record).delete(record)

    def _keeper(self, record: Record) -> TellingBackend:
        return self._nodes if isinstance(record.target, NodeTarget) else self._rules

    def _other(self, keeper: TellingBackend) -> TellingBackend:
        return self._rules if keeper is self._nodes else self._nodes

    def _rule_changed(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        record = before or after
        if record is not None:
            other = self._nodes.record(record.key)
            self.on_change(before or other, after or other, ours)

    def _node_changed(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        record = before or after
        if record is not None and self._rules.record(record.key) is None:
            self.on_change(before, after, ours)
