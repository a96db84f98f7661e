"""What there is to say about a node, apart from records: its slices, its taints, whose word it is under. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from remediator.cli.words import counted, joined, plain, since, taint_text, where
from remediator.inventory import NEURON_NODE
from remediator.node_records import foreign_taints
from remediator.peer_object import PEER, PEER_OF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remediator.cli.address import Address
    from remediator.cli.picture import Picture
    from remediator.inventory import Node


class Line(NamedTuple):
    """One statement under a short word."""

    word: str
    text: str


def about_node(address: Address, picture: Picture) -> Iterator[Line]:
    """Say what is known of the Node itself."""
    node, inventory = picture.node, picture.inventory
    if node is not None:
        kind = f", {plain(node.instance_type)}" if node.instance_type else ""
        yield Line("node", f"there since {since(node.metadata.creation_timestamp, picture.now)}{kind}")
        yield Line("opted out", _opted_out(node))
        yield from _node_taints(node)
    elif picture.node_read:
        yield Line("node", "there is no Node of that name")
    if not picture.held.served:
        yield Line("rules", "this cluster serves no DeviceTaintRules: what is faulty is tainted by its Node as a whole")
    if inventory is not None:
        yield Line("slices", _slices(address.node, picture))
        yield from _driver_taints(address, picture)
    if address.device is not None and inventory is not None:
        target = inventory.locate(address.node, address.device)
        named = f"{plain(target.device)} of pool {plain(target.pool)} is the name it would have: no slice lists it"
        yield Line("target", where(target) if target.placed else named)
    yield from _flags(address.node, picture)
    for damaged in picture.held.damaged:
        yield Line("damaged", f"{plain(damaged.says)}; {made_anew(served=picture.held.served)}")
    for rule in picture.held.others:
        selector = rule.spec.device_selector
        if selector.driver in ("", picture.driver) and selector.pool in ("", address.node):
            taint = plain(f"{rule.spec.taint.key}:{rule.spec.taint.effect}")
            yield Line(
                "other rule", f"{plain(rule.metadata.name)} ({taint}) is not a record and may taint devices here"
            )


def made_anew(*, served: bool) -> str:
    """What firings do about an annotation that cannot be read; `served`: whether faults may be recorded on rules."""
    where_kept = "where faults are recorded on the Node, " if served else ""
    return f"{where_kept}firings make its records anew"


def _opted_out(node: Node) -> str:
    if node.opted_out:
        return "yes: no taint of ours has an effect on it"
    said = node.metadata.labels.opt_out
    return f"no: the label neuron-remediator/opt-out is {plain(said)!r}; expected 'true'" if said else "no"


def _slices(node: str, picture: Picture) -> str:
    inventory = picture.inventory
    if inventory is None or node not in inventory.nodes():
        return f"none of driver {picture.driver}: it does not run there, or has not come up since its last start"
    if inventory.locate(node, 0).device == NEURON_NODE:
        return "list the node as one device (UltraServer)"
    return f"list {counted(inventory.targets(), 'device')}"


def _driver_taints(address: Address, picture: Picture) -> Iterator[Line]:
    inventory = picture.inventory
    if inventory is None:
        return
    wanted = None if address.device is None else inventory.locate(address.node, address.device).place
    for place, taints in sorted(inventory.taints().items()):
        if wanted in (None, place):
            said = joined(plain(f"{taint.key}={taint.value}:{taint.effect}") for taint in taints)
            yield Line("driver", f"taints {plain(place.device)} itself: {said}")


def _node_taints(node: Node) -> Iterator[Line]:
    """The taints on the Node itself; Kubernetes' own say what is the matter with a machine."""
    foreign = foreign_taints(node)
    for taint in node.spec.taints or []:
        yield Line("node taint", f"{taint_text(taint)} ({'not ours' if taint in foreign else 'ours'})")


def _flags(node: str, picture: Picture) -> Iterator[Line]:
    """Our flags on this node, as a peer of faulty ones."""
    for rule in picture.held.flags:
        annotations = rule.metadata.annotations
        if node in (annotations.get(PEER), rule.spec.device_selector.pool):
            source = plain(annotations.get(PEER_OF) or rule.spec.taint.value or "of its UltraServer")
            effect = plain(rule.spec.taint.effect)
            told = f"peer {source} is tainted; {NEURON_NODE} bears {plain(rule.spec.taint.key)}:{effect} for it"
            yield Line("flagged", f"{told} (rule {plain(rule.metadata.name)}), which keeps nobody off")
