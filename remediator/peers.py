"""Peers of a faulty UltraServer node: which of them are to be flagged, and what to change to get there. Pure.

A flag is made where it is known that two nodes belong together and what the peer's device is; it goes with the fault,
with either Node, or when they are known to belong together no more. While a slice is merely away (the kubelet wipes
those of its node when it starts), or the UltraServers cannot be read, what there is stays. Nothing here talks to the
API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from remediator.inventory import NEURON_NODE
from remediator.peer_object import PeerRule, belongs_to, from_object, says

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from remediator.inventory import Inventory, Node
    from remediator.records import Record
    from remediator.rules import Rule
    from remediator.targets import Target


class Changes(NamedTuple):
    """What makes the rules that are held those that are wanted; what is to be created comes last.

    A rule that belongs to an earlier machine of that name is deleted and made anew.
    """

    delete: tuple[Rule, ...]
    mend: tuple[tuple[PeerRule, Rule], ...]
    create: tuple[PeerRule, ...]


def wanted(
    *,
    records: Iterable[Record],
    members: Mapping[str, AbstractSet[str]] | None,
    inventory: Inventory,
    nodes: Callable[[str], Node | None],
    held: Iterable[Rule],
) -> dict[str, PeerRule]:
    """Say which rules there should be, by name.

    `members` is what NeuronUltraServers say, for each node the nodes of its UltraServer; None while that is not known.
    Nodes that none of them names belong together where their slices say the same capacity block. `nodes` looks a Node
    up in memory.
    """
    sources = _sources(records, nodes)
    if not sources:
        return {}
    grouping = _Grouping(members, inventory)
    found: dict[str, PeerRule] = {}
    for source, uid in sources.items():
        for peer in sorted(grouping.peers_of(source)):
            target = _device_of(inventory, peer)
            if target is not None and _may_be_flagged(nodes(peer)):
                rule = PeerRule(source=source, source_uid=uid, peer=peer, target=target)
                found[rule.name] = rule
    for rule in _kept(held, sources, grouping, inventory.driver):
        if _may_be_flagged(nodes(rule.peer)):
            found.setdefault(rule.name, rule)
    return found


def _may_be_flagged(peer: Node | None) -> bool:
    """Whether the Node is there, and has not asked to be left alone."""
    return peer is not None and not peer.opted_out


def _sources(records: Iterable[Record], nodes: Callable[[str], Node | None]) -> dict[str, str]:
    """Nodes that hold a record with an effect, and the UIDs of their Nodes; not on the word of a machine before."""
    found: dict[str, str] = {}
    for record in records:
        if record.disrupts and record.key.node not in found:
            node = nodes(record.key.node)
            if node is not None and node.metadata.uid == record.node_uid:
                found[record.key.node] = record.node_uid
    return found


def _device_of(inventory: Inventory, node: str) -> Target | None:
    """The one device that stands for the whole node, if a slice lists it."""
    target = inventory.locate(node, 0)
    return target if target.device == NEURON_NODE else None


def _kept(held: Iterable[Rule], sources: Mapping[str, str], grouping: _Grouping, driver: str) -> Iterator[PeerRule]:
    """Rules that are to stay for want of evidence to the contrary."""
    for rule in held:
        said = from_object(rule, driver=driver)
        uid = sources.get(said.source) if said else None
        if said and uid and belongs_to(rule, uid) and grouping.may_be_peers(said.source, said.peer):
            yield PeerRule(source=said.source, source_uid=uid, peer=said.peer, target=said.target)


@dataclass(frozen=True)
class _Grouping:
    """Which nodes are in one UltraServer."""

    members: Mapping[str, AbstractSet[str]] | None
    inventory: Inventory

    def peers_of(self, source: str) -> AbstractSet[str]:
        """Those that are known to be."""
        if self.members is None:
            return frozenset()
        if source in self.members:
            return self.members[source] - {source}
        if _device_of(self.inventory, source) is None:
            return frozenset()
        return self._in_block.get(self._blocks.get(source, ""), frozenset()) - {source}

    def may_be_peers(self, source: str, peer: str) -> bool:
        """Whether two nodes that are not known to be peers may be so all the same, as a slice is away."""
        if self.members is None:
            return True
        if source in self.members or peer in self.members:
            return peer in self.members.get(source, ()) and self._away(peer)
        source_away, peer_away = self._away(source), self._away(peer)
        return (
            (source_away or peer_away)
            and (source_away or source in self._blocks)
            and (peer_away or peer in self._blocks)
        )

    def _away(self, node: str) -> bool:
        return node not in self.inventory.nodes()

    @cached_property
    def _blocks(self) -> dict[str, str]:
        """The capacity blocks of nodes that no NeuronUltraServer names. It looks through all slices, so not before."""
        inventory = self.inventory
        if not any(build.kind == NEURON_NODE for build in inventory.builds()):
            return {}
        return {
            node: device.capacity_block
            for pool in inventory.pools()
            for node, device in inventory.devices_of(pool)
            if device.name == NEURON_NODE and device.capacity_block and node not in (self.members or ())
        }

    @cached_property
    def _in_block(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for node, block in self._blocks.items():
            found.setdefault(block, set()).add(node)
        return found


def changes(wanted: Mapping[str, PeerRule], held: Iterable[Rule]) -> Changes:
    """Say what to do, comparing what is wanted with our rules as they are.

    One whose deletion a finalizer holds up is not deleted again, and its name is not free.
    """
    delete: list[Rule] = []
    mend: list[tuple[PeerRule, Rule]] = []
    create = dict(wanted)
    for rule in held:
        asked = create.pop(rule.metadata.name, None)
        ending = rule.metadata.deletion_timestamp is not None
        if asked is not None and (ending or belongs_to(rule, asked.source_uid)):
            if not says(rule, asked):
                mend.append((asked, rule))
        elif not ending:
            delete.append(rule)
            if asked is not None:
                create[asked.name] = asked
    return Changes(tuple(delete), tuple(mend), tuple(create.values()))
