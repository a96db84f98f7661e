"""What was read of the cluster, in the form in which the commands look at it. Pure data.

A part that could not be read is None, and why is said in `unread`: at night half an answer is better than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from remediator import node_records
from remediator.peer_object import is_peer_rule
from remediator.rule_records import from_object
from remediator.targets import NodeTarget, lies_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from remediator.claims import Claims
    from remediator.inventory import DeviceTaint, Inventory, Node
    from remediator.records import Record
    from remediator.rules import Rule
    from remediator.targets import AnyTarget, Target


class Damaged(NamedTuple):
    """A Node whose annotation cannot be read, and what is wrong with it."""

    node: Node
    says: str


class Held(NamedTuple):
    """All records that were found, on rules and on Nodes, and the rules that are none.

    `flags` are our rules on peers of a faulty UltraServer node, `others` all the rest. `damaged` are the Nodes
    whose records cannot be read; `served` is false where the cluster serves no rules.
    """

    records: tuple[Record, ...]
    others: tuple[Rule, ...] = ()
    flags: tuple[Rule, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    served: bool = True


def sorted_out(rules: Iterable[Rule], nodes: Iterable[Node], *, driver: str, served: bool = True) -> Held:
    """Read the records out of rules and Nodes."""
    records: list[Record] = []
    others: list[Rule] = []
    flags: list[Rule] = []
    damaged: list[Damaged] = []
    for rule in rules:
        record = from_object(rule)
        if record is not None:
            records.append(record)
        else:
            (flags if is_peer_rule(rule) else others).append(rule)
    for node in nodes:
        try:
            records += node_records.read(node, driver=driver).values()
        except node_records.DamagedRecordsError as error:
            damaged.append(Damaged(node, str(error)))
    records.sort(key=lambda record: record.key)
    return Held(tuple(records), tuple(others), tuple(flags), tuple(damaged), served)


def distinct(targets: Iterable[AnyTarget]) -> list[AnyTarget]:
    """Each thing that can be tainted once, in order: whether a slice has confirmed it makes no other of it."""
    return list({(getattr(target, "driver", ""), target.place): target for target in targets}.values())


def meets(rule: Rule, target: Target) -> bool:
    """Whether a rule taints that device."""
    selector = rule.spec.device_selector
    return (
        selector.driver in ("", target.driver)
        and selector.pool in ("", target.pool)
        and selector.device in ("", target.device)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One look at the cluster. `node_read` says that None for the node is the API server's word.

    `nodes` are names of Nodes there are, as far as known; looked for only where the one that was named is not there.
    """

    driver: str
    now: datetime
    held: Held
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
        """Whether a slice lists the device of a record; None where its node has no slices to say so."""
        if self.inventory is None or record.key.node not in self.inventory.nodes():
            return None
        if isinstance(record.target, NodeTarget):
            return self.inventory.locate(record.key.node, record.key.device).placed
        return self.inventory.index_of(record.target.place) is not None

    def device_of(self, record: Record) -> Target:
        """The device that a record is about: of one that taints its Node as a whole, the one that is faulty."""
        target = record.target
        if not isinstance(target, NodeTarget):
            return target
        located = self.inventory.locate(record.key.node, record.key.device) if self.inventory else None
        return located if located is not None and located.placed else target.device

    def driver_taints(self, record: Record) -> tuple[DeviceTaint, ...]:
        """The driver's own taints on the device that a record is about, as far as they could be read."""
        return self.inventory.taints().get(self.device_of(record).place, ()) if self.inventory else ()

    def others_on(self, target: AnyTarget, *, but: Iterable[Record] = ()) -> list[Record]:
        """Records that keep the target tainted, or the Node it is in, without those."""
        left_out = {record.key for record in but}
        return [
            record
            for record in self.held.records
            if record.disrupts and lies_in(target, record.target) and record.key not in left_out
        ]
