"""What comes of taking our objects away: who gets work again, and who stays out of service through others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from alerts.faults import Effect
from remediator.cli.leftovers import Kind, all_records, kept_records
from remediator.cli.picture import distinct, meets
from remediator.cli.strays import keys_of
from remediator.cli.words import called, counted, joined, kept_off_by_others, plain, taint_text
from remediator.records import MANAGED_BY, MANAGER
from remediator.rule_records import from_object
from remediator.targets import NodeTarget, Target, lies_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from remediator.cli.leftovers import Leftover, Scope, Seen
    from remediator.inventory import Inventory
    from remediator.targets import AnyTarget

_FEW = 20
_LATCHED = "WARNING: {} will be forgotten. No clean reading ends such a fault, and pods will be placed there again"


class Remarks(NamedTuple):
    """What an operator must know before he agrees; `loud` above all."""

    quiet: tuple[str, ...]
    loud: tuple[str, ...]


def remarks(
    found: Collection[Leftover], seen: Seen, scope: Scope, inventory: Inventory | None, *, driver: str
) -> Remarks:
    """Say what comes back into service, what does not, and what is latched."""
    going = [record for one in found for record in one.records]
    others = _Others(found, seen, scope, inventory, driver=driver)
    back: list[str] = []
    staying: list[str] = []
    for target in distinct(record.target for record in going if record.disrupts):
        keeper = next(others.keeping(target), "")
        if keeper:
            staying.append(f"{_named(target)} stays out of service: {keeper}")
        else:
            back.append(_named(target))
    quiet = [f"back in service: {counted(len(back), 'target')}: {_shortened(back)}"] if back else []
    quiet += staying[:_FEW]
    if len(staying) > _FEW:
        quiet.append(f"{len(staying) - _FEW} more stay out of service")
    quiet += _of_another_key(found, keys_of(all_records(seen, driver=driver)))
    latched = [str(record.key) for record in going if record.latched]
    loud = [f"{_LATCHED.format(counted(len(latched), 'latched record'))}: {_shortened(latched)}"] if latched else []
    return Remarks(tuple(quiet), tuple(loud))


def _of_another_key(found: Collection[Leftover], keys: Collection[str]) -> Iterator[str]:
    """Taints on Nodes whose annotation cannot be read, but for those that `remediator.cli.strays` tells of."""
    for one in found:
        if taints := [taint_text(taint) for taint in one.unknown if taint.get("key") not in keys]:
            says = f"other taints of Node {plain(one.name)}, whose annotation cannot be read, are left"
            yield f"{says}, though one with a former --taint.key may be ours: {joined(taints)}"


def _named(target: AnyTarget) -> str:
    return f"Node {plain(target.node)}" if isinstance(target, NodeTarget) else f"{plain(target.pool)}/{called(target)}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{joined(names[:_FEW])}{more}"


class _Others:
    """Everything that is not taken away and may keep work off: our other records, the driver, other people."""

    def __init__(
        self, found: Collection[Leftover], seen: Seen, scope: Scope, inventory: Inventory | None, *, driver: str
    ) -> None:
        going = {one.name for one in found if one.kind is Kind.RULE}
        by_rule = (from_object(rule) for rule in seen.rules if rule.metadata.name not in going)
        on_nodes = (record for node in seen.nodes for record in kept_records(node, scope, driver=driver))
        self._records = [record for record in (*by_rule, *on_nodes) if record is not None and record.disrupts]
        self._nodes = {node.metadata.name: node for node in seen.nodes}
        self._rules = [
            rule
            for rule in seen.rules
            if rule.metadata.labels.get(MANAGED_BY) != MANAGER and Effect.read(rule.spec.taint.effect).rank > 0
        ]
        self._inventory = inventory

    def keeping(self, target: AnyTarget) -> Iterator[str]:
        """Who keeps work off that target."""
        for record in self._records:
            if lies_in(target, record.target):
                yield f"held by {record.key} too"
        if isinstance(target, Target):
            yield from self._keeping_device(target)
        elif (node := self._nodes.get(target.node)) and (taints := kept_off_by_others(node)):
            yield f"others taint it: {joined(taints)}"

    def _keeping_device(self, target: Target) -> Iterator[str]:
        taints = self._inventory.taints().get(target.place, ()) if self._inventory else ()
        if any(taint.disrupts for taint in taints):
            yield "the driver itself taints it"
        for rule in self._rules:
            if meets(rule, target):
                yield f"rule {plain(rule.metadata.name)} taints it"
