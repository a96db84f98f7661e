"""Both ways at once: each record is kept where its target is, by a rule or on its Node, and moves with it.

A record that moves is made in the new place before it is taken away from the old one, so that its device is never free
in between. Both are there after a crash, and where rules that were stored are served again. Then the rule is the
record, with what the Node knows better of the fault, and the next write takes the other away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remediator.backends import OnChange, ignore
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.records import State
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
        on_nodes = {record.key: record for record in self._nodes.records()}
        by_rule = [_joined(rule, on_nodes.pop(rule.key, None)) for rule in self._rules.records()]
        return (*(record for record in by_rule if record is not None), *on_nodes.values())

    def record(self, key: Key) -> Record | None:
        """The record of one fault, or None."""
        return _joined(self._rules.record(key), self._nodes.record(key))

    def untidy(self, key: Key) -> bool:
        """Whether the record is there twice, and one of them may go, or on nothing but a rule that is out of force."""
        rule, node = self._rules.record(key), self._nodes.record(key)
        if rule is None or rule.ending:
            return False
        return (node is not None) is _counts(rule)

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
        elif held is not None and held.ending:
            raise UnavailableError(Refusal.CONFLICT, f'moving record "{record.key}": its rule is still being deleted')
        elif held is None or held.node_uid != record.node_uid:
            if held is not None:
                # Of the machine before, see `remediator.decide.Replace`; the record stays where it is meanwhile.
                await keeper.delete(held)
            await keeper.create(replace(record, stored=None))
        else:
            await keeper.update(replace(record, stored=held.stored))
        if old is not None and not old.ending:
            await self._other(keeper).delete(old)

    async def delete(self, record: Record) -> None:
        """Remove the very version that was read, wherever it is kept; a record already gone is no error."""
        keeper = self._keeper(record)
        # The one that is not seen first: else it would be seen then.
        hidden = self._other(keeper).record(record.key)
        if hidden is not None and not hidden.ending:
            await self._other(keeper).delete(hidden)
        await keeper.delete(record)

    def _keeper(self, record: Record) -> TellingBackend:
        return self._nodes if isinstance(record.target, NodeTarget) else self._rules

    def _other(self, keeper: TellingBackend) -> TellingBackend:
        return self._rules if keeper is self._nodes else self._nodes

    def _rule_changed(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        record = before or after
        if record is not None:
            node = self._nodes.record(record.key)
            was, is_now = _joined(before, node), _joined(after, node)
            if was != is_now:
                self.on_change(was, is_now, ours)

    def _node_changed(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        record = before or after
        if record is not None:
            rule = self._rules.record(record.key)
            was, is_now = _joined(rule, before), _joined(rule, after)
            if was != is_now:
                self.on_change(was, is_now, ours)


def _joined(rule: Record | None, node: Record | None) -> Record | None:
    """The one record that a rule and a Node make: the rule, unless it is on its way out, or of the machine before.

    The one on the Node may be newer: faults fire and are latched also while rules are not served.
    """
    if rule is None or node is None or rule.node_uid != node.node_uid or not _counts(rule):
        return node or rule
    newest = node if node.last_fired > rule.last_fired else rule
    if node.state is State.RELEASED:
        # An operator's word on the Node is the last one: it was given while the rule was not served.
        rule = replace(
            rule,
            state=State.RELEASED,
            latched=False,
            released_until=node.released_until,
            released_by=node.released_by,
            reason=node.reason,
        )
    return replace(
        rule,
        # An operator who has lifted the latch has seen the rule.
        latched=rule.latched or (node.latched and rule.state is not State.RELEASED),
        episode=newest.episode,
        first_fired=min(rule.first_fired, node.first_fired),
        last_fired=newest.last_fired,
    )


def _counts(rule: Record) -> bool:
    """Whether a rule is one to rely on: not one that is being deleted, nor one of a cluster that serves none."""
    return not rule.ending and not isinstance(rule.target, NodeTarget)
