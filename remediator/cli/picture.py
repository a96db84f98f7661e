"""What was read of the cluster, in the form in which the commands look at it. Pure data.

A part that could not be read is None, and why is said in `unread`: at night half an answer is better than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from remediator.records import Record, from_object

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from remediator.claims import Claims
    from remediator.inventory import Inventory, Node, Place, Target
    from remediator.rules import Rule


class Rules(NamedTuple):
    """All rules: those that are records of ours, and all the others."""

    records: tuple[Record, ...]
    others: tuple[Rule, ...]


def sorted_out(rules: Iterable[Rule]) -> Rules:
    """Read the records out of the rules."""
    records: list[Record] = []
    others: list[Rule] = []
    for rule in rules:
        record = from_object(rule)
        if record is None:
            others.append(rule)
        else:
            records.append(record)
    return Rules(tuple(sorted(records, key=lambda record: record.key)), tuple(others))


def distinct(targets: Iterable[Target]) -> list[Target]:
    """Each thing that can be tainted once, in order: whether a slice has confirmed it makes no other of it."""
    return list({_taintable(target): target for target in targets}.values())


def _taintable(target: Target) -> tuple[str, Place]:
    return target.driver, target.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One look at the cluster. `node_read` says that None for the node is the API server's word.

    `nodes` are names of Nodes there are, as far as known; looked for only where the one that was named is not there.
    """

    driver: str
    now: datetime
    rules: Rules
    node: Node | None = None
    node_read: bool = False
    inventory: Inventory | None = None
    claims: Claims | None = None
    unread: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()

    def void(self, record: Record) -> bool:
        """Whether a record is known to belong to a machine that is not there any more."""
        return self.node_read and (self.node is None or self.node.metadata.uid != record.node_uid)

    def lists(self, record: Record) -> bool | None:
        """Whether a slice lists what the record taints; None where its node has no slices to say so."""
        if self.inventory is None or record.key.node not in self.inventory.nodes():
            return None
        return self.inventory.index_of(record.target.place) is not None

    def others_on(self, target: Target, *, but: Iterable[Record] = ()) -> list[Record]:
        """Records that keep the target tainted, without those."""
        left_out, wanted = {record.key for record in but}, _taintable(target)
        return [
            record
            for record in self.rules.records
            if record.disrupts and _taintable(record.target) == wanted and record.key not in left_out
        ]
