"""What of ours is in a cluster, and what of it is to be taken away. Pure.

Ours is what carries our mark: rules and Leases with the label, Nodes with the annotation. All else is somebody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from remediator import node_records
from remediator.cli.listing import Table
from remediator.cli.words import counted, joined, plain, taint_text
from remediator.peer_object import PEER, PEER_OF, is_peer_rule
from remediator.records import MANAGED_BY, MANAGER, NEVER
from remediator.rule_records import from_object

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from remediator.cli.lease_watch import LeaseObject
    from remediator.inventory import Node
    from remediator.node_records import NodeTaint
    from remediator.records import Record
    from remediator.rules import Rule

_FAULT_LABEL = f"{MANAGER}/fault"


class Kind(StrEnum):
    """What bears our mark. A Node stays; its annotation goes, and its taints of ours."""

    RULE = "DeviceTaintRule"
    NODE = "Node"
    LEASE = "Lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is meant: everything, or records of these faults alone."""

    faults: frozenset[str] = frozenset()

    def has(self, fault: str) -> bool:
        """Whether records of that fault are meant."""
        return not self.faults or fault in self.faults


class Part(NamedTuple):
    """One thing that goes with an object: its effect, and what it is."""

    effect: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One object with our mark, and what is to be taken away of it or with it.

    `records` are those that go, and `faults` what the object stands for of what is meant. `node` is empty for a Lease.
    Of a Node, `taints` is how many of ours go, `partly` that a part of our annotation stays, and `unknown` are taints
    that may be ours, or not.
    """

    kind: Kind
    name: str
    node: str
    parts: tuple[Part, ...]
    records: tuple[Record, ...] = ()
    faults: frozenset[str] = frozenset()
    taints: int = 0
    partly: bool = False
    unknown: tuple[NodeTaint, ...] = ()
    of: Rule | Node | LeaseObject


class Seen(NamedTuple):
    """One look at everything: rules, those of others included; all Nodes; Leases with our mark."""

    rules: Sequence[Rule] = ()
    nodes: Sequence[Node] = ()
    leases: Sequence[LeaseObject] = ()


def leftovers(seen: Seen, scope: Scope, *, driver: str) -> list[Leftover]:
    """What there is of ours, and meant, by node; the Leases at the end."""
    rules = (of_rule(rule, scope) for rule in seen.rules)
    nodes = (of_node(node, scope, driver=driver) for node in seen.nodes)
    found = [one for one in (*rules, *nodes) if one is not None]
    found.sort(key=lambda one: (one.node, one.kind, [record.key for record in one.records], one.name))
    return found + [_of_lease(lease) for lease in seen.leases if lease.ours and not scope.faults]


def of_rule(rule: Rule, scope: Scope) -> Leftover | None:
    """What goes of a rule: all of it, or nothing, as it is not ours or not meant."""
    if rule.metadata.labels.get(MANAGED_BY) != MANAGER:
        return None
    record = from_object(rule)
    fault = record.key.fault if record else rule.metadata.labels.get(_FAULT_LABEL, "")
    if not scope.has(fault):
        return None
    name, selector = rule.metadata.name, rule.spec.device_selector
    peer = rule.metadata.annotations.get(PEER, "") or selector.pool
    if record is not None:
        node, says = record.key.node, _record_text(record)
    elif is_peer_rule(rule):
        source = rule.metadata.annotations.get(PEER_OF, "") or rule.spec.taint.value
        node, says = peer, f"flag: its peer {source} is tainted"
    else:
        taints = f"{selector.pool or '*'}/{selector.device or '*'}"
        node, says = peer or "*", f"{name}: no longer says which fault it stands for; taints {taints}"
    return Leftover(
        kind=Kind.RULE,
        name=name,
        node=plain(node),
        parts=(Part(plain(rule.spec.taint.effect), plain(says)),),
        records=() if record is None else (record,),
        faults=frozenset({fault} - {""}),
        of=rule,
    )


def _record_text(record: Record) -> str:
    return f"device {record.key.device}: {record.key.fault} ({record.state}{', latched' if record.latched else ''})"


def of_node(node: Node, scope: Scope, *, driver: str) -> Leftover | None:
    """What goes of a Node: our annotation and our taints, or what of them stands for the faults that are meant."""
    if not node_records.marked(node):
        return None
    try:
        records = node_records.read(node, driver=driver)
    except node_records.DamagedRecordsError:
        records = {}
    meant = tuple(record for key, record in sorted(records.items()) if scope.has(key.fault))
    if not meant and (scope.faults or records):
        return None
    stays, ours = _after(node, scope, driver=driver)
    parts = [Part(str(record.taint.effect), _record_text(record)) for record in meant]
    parts += [Part(plain(str(taint.get("effect"))), f"taint {taint_text(taint)}") for taint in ours]
    return Leftover(
        kind=Kind.NODE,
        name=node.metadata.name,
        node=node.metadata.name,
        parts=tuple(parts) or (Part("-", f"annotation {node_records.ANNOTATION} that cannot be read"),),
        records=meant,
        faults=frozenset(record.key.fault for record in meant),
        taints=len(ours),
        partly=stays,
        # What cannot be read does not say what was ours.
        unknown=() if meant else tuple(node_records.foreign_taints(node)),
        of=node,
    )


def _after(node: Node, scope: Scope, *, driver: str) -> tuple[bool, list[NodeTaint]]:
    """Whether a part of the annotation stays when what is meant has gone, and which taints of ours go."""
    change = change_of(node, scope, driver=driver, now=NEVER)
    stays = change["metadata"]["annotations"][node_records.ANNOTATION] is not None
    after = change.get("spec", {"taints": node.spec.taints})["taints"] or []
    left = {(taint.get("key"), taint.get("effect")) for taint in after}
    gone = [taint for taint in node.spec.taints or [] if (taint.get("key"), taint.get("effect")) not in left]
    return stays, gone


def change_of(node: Node, scope: Scope, *, driver: str, now: datetime) -> dict[str, Any]:
    """The patch that takes what is meant off a Node; `now` is the time that changed taints would get."""
    kept = kept_records(node, scope, driver=driver)
    return node_records.patch(node, kept, now=now, unread=bool(scope.faults))


def kept_records(node: Node, scope: Scope, *, driver: str) -> list[Record]:
    """The records that a Node keeps when what is meant has gone."""
    if not node_records.marked(node):
        return []
    try:
        records = node_records.read(node, driver=driver)
    except node_records.DamagedRecordsError:
        return []
    return [record for key, record in records.items() if not scope.has(key.fault)]


def _of_lease(lease: LeaseObject) -> Leftover:
    says = plain(f"{lease.called}, held by {lease.holder or 'nobody'}")
    return Leftover(kind=Kind.LEASE, name=plain(lease.called), node="", parts=(Part("-", says),), of=lease)


def table(found: Iterable[Leftover], *, names: bool) -> Table:
    """What would go, for people; without `names` it is as narrow as can be."""
    headings = ("NODE", "KIND", "EFFECT", "WHAT")
    rows = (
        (one.node or "-", str(one.kind), part.effect, part.says, plain(one.name)) for one in found for part in one.parts
    )
    return Table((*headings, "NAME") if names else headings, tuple(row if names else row[:-1] for row in rows))


def summary(found: Collection[Leftover]) -> str:
    """How much of each kind."""
    rules, leases = (sum(one.kind is kind for one in found) for kind in (Kind.RULE, Kind.LEASE))
    said = [counted(rules, "DeviceTaintRule")] if rules else []
    said += _of_nodes([one for one in found if one.kind is Kind.NODE])
    return joined([*said, counted(leases, "Lease")] if leases else said)


def _of_nodes(nodes: list[Leftover]) -> Iterator[str]:
    for partly, what in ((False, "annotation"), (True, "part of the annotation")):
        some = [one for one in nodes if one.partly is partly]
        taints = counted(sum(one.taints for one in some), "taint")
        if some:
            plural = what if len(some) == 1 else what.replace("part", "parts").replace("annotation", "annotations")
            yield f"{plural} of {counted(len(some), 'Node')}{'' if taints.startswith('0 ') else f', with {taints}'}"


def all_records(seen: Seen, *, driver: str) -> list[Record]:
    """Every record there is."""
    return [record for one in leftovers(seen, Scope(), driver=driver) for record in one.records]


def no_record_of(faults: Iterable[str], seen: Seen, *, driver: str) -> str:
    """Say that there is no record of those faults, and of which there are."""
    held = joined(map(plain, sorted({record.key.fault for record in all_records(seen, driver=driver)})))
    there = f"there are records of {held}" if held else "there are no records at all"
    return f"there is no record of {joined(sorted(faults))}; {there}"
