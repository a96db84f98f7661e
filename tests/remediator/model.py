"""A small cluster in memory for the decision machine: nodes, slices, claims, and what everybody does to them.

It plays the driver, the scheduler and people's hands around the API server of `model_api`, and judges nothing. What
keeps the records is real: both backends as one, with the caches they work on.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from remediator.backends.device_taint_rule import DeviceTaintRuleBackend, RecordCache
from remediator.backends.node_taint import NodeRecords, NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.cluster import object_path
from remediator.inventory import (
    NEURON_NODE,
    DeviceTaint,
    Inventory,
    Node,
    NodeAnnotations,
    NodeLabels,
    NodeMetadata,
    NodeSpec,
)
from remediator.node_cache import NODES as NODE_OBJECTS
from remediator.node_cache import NodeCache
from remediator.node_records import patch
from remediator.placement import Choice, by_node, settle
from remediator.rule_records import object_name, to_object
from remediator.targets import AnyTarget, NodeTarget, Place
from tests.remediator.model_api import RULES, Json, ModelApi, Object, merged, rule_of
from tests.remediator.samples import DRIVER, LONG_AGO, NOW, TAINT_KEY, device, resource_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from alerts.faults import Effect
    from remediator.records import Record
    from remediator.traces import Change

NODES = ("standalone", "ultraserver")
DEVICES = range(3)
Shape = Literal["devices", "node", "none"]
Mischief = Literal["taint off", "taint altered", "annotation off", "annotation broken", "annotation of another"]


class ModelCluster:
    """Nodes, slices, claims and rules; `landed` is told of each write that reaches a record, by whomever.

    It is `Surroundings`. `choice` is `--backend`; `foreign` are the taints of each Node that others have put there.
    """

    def __init__(self, landed: Callable[[Record | None, Record | None], None]) -> None:
        self.now = NOW
        self.choice = Choice.AUTO
        self.api = ModelApi(lambda: self.now, landed)
        self.inventory = Inventory(DRIVER)
        self.driver_taints: dict[Place, DeviceTaint] = {}
        self.shapes: dict[str, Shape] = {}
        self.claimed: dict[str, tuple[str, ...]] = {}
        self.foreign: dict[str, list[Json]] = {name: [] for name in NODES}
        for name in NODES:
            self._put_node(Node(NodeMetadata(name, f"{name}-0", LONG_AGO)))
        self.slice("standalone", "devices")
        self.slice("ultraserver", "node")
        self.start()

    def start(self) -> None:
        """Read everything anew, as a remediator that starts does."""
        self._rules, self._nodes = RecordCache(), NodeCache(self.api, elapsed=lambda: 0.0, on_change=lambda: None)
        self._of_nodes = NodeRecords(DRIVER)
        self._nodes.on_node = self._of_nodes.take
        self.backend = PerNodeBackend(
            DeviceTaintRuleBackend(self.api, self._rules),
            NodeTaintBackend(self.api, self._nodes, self._of_nodes, lambda: self.now),
        )
        self._nodes.replace(self.api.nodes(), str(self.api.version))
        self.serve(self.api.served)
        self.api.watch = self._watched

    def _watched(self, before: Object | None, after: Object | None) -> None:
        for seen in (after or before,):
            if isinstance(seen, Node):
                self._nodes.put(seen)
            elif seen is not None and self.api.served:
                if after is None:
                    metadata = msgspec.structs.replace(seen.metadata, resource_version=str(self.api.version))
                    self._rules.remove(msgspec.structs.replace(seen, metadata=metadata))
                else:
                    self._rules.put(seen)

    # What surrounds records

    def not_ready(self) -> str | None:
        """Nothing is waited for but, with rules only, that they are served."""
        return "no rules" if self.choice is Choice.RULES and not self.api.served else None

    async def node(self, name: str, *, live: bool = False) -> Node | None:  # noqa: ARG002 - nothing but memory here
        """The Node."""
        return self.known_node(name)

    def known_node(self, name: str) -> Node | None:
        """The Node."""
        return self._nodes.get(name)

    def nodes(self) -> Iterable[str]:
        """Both."""
        return NODES

    def locate(self, node: str, device: int) -> AnyTarget:
        """By the slices, the claims, what is served and `--backend`."""
        claimed = self.claimed.get(node, ())
        target = self.inventory.locate(node, device, claimed=claimed)
        known = bool(claimed) or node in self.inventory.nodes()
        return settle(target, node, choice=self.choice, served=self.api.served, known=known)

    def node_taints(self, node: str) -> Collection[DeviceTaint]:
        """What others have put on the Node."""
        return self._of_nodes.foreign_taints(node)

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's."""
        return self.inventory.taints()

    def targets(self) -> int:
        """By the slices, or the Nodes where nothing else can be tainted."""
        return len(NODES) if self.by_node else self.inventory.targets() + len({*NODES} - self.inventory.nodes())

    def unavailable(self) -> Collection[Place]:
        """By the driver's taints."""
        places = self.inventory.unavailable()
        return {Place(place.pool, "") for place in places} if self.by_node else places

    @property
    def by_node(self) -> bool:
        """Whether nothing but Nodes can be tainted."""
        return by_node(self.choice, served=self.api.served)

    # What the driver, the scheduler and the API server do

    def slice(self, node: str, shape: Shape) -> None:
        """Have the node's slice list its devices, the node as a whole, or have no slice."""
        self.shapes[node] = shape
        names = [NEURON_NODE] if shape == "node" else [f"neuron-device-{index}" for index in DEVICES]
        listed = [
            device(name, None if shape == "node" else index, *self._taints_on(Place(node, name)))
            for index, name in enumerate(names)
        ]
        one = resource_slice(*listed, name=node, node_name=node, pool=node)
        if shape == "none":
            self.inventory.remove(one)
        else:
            self.inventory.put(one)

    def _taints_on(self, place: Place) -> tuple[DeviceTaint, ...]:
        return (self.driver_taints[place],) if place in self.driver_taints else ()

    def driver_taint(self, place: Place, effect: Effect | None, key: str = TAINT_KEY) -> None:
        """Have the driver put a taint on a place, or take it off."""
        self.driver_taints.pop(place, None)
        if effect is not None:
            self.driver_taints[place] = DeviceTaint(key, "unhealthy", effect)
        self.slice(place.pool, self.shapes[place.pool])

    def serve(self, served: bool) -> None:  # noqa: FBT001 - what is set
        """Have rules be there, with those that were stored, or no more."""
        self.api.served = served
        self._rules.served_as("v1" if served else "")
        if served:
            self._rules.replace(self.api.rules(), str(self.api.version))
        self.api.forget_lost()

    def wait(self, seconds: float) -> None:
        """Let time pass; a write that has not landed by then never will."""
        self.now += timedelta(seconds=seconds)
        self.api.forget_lost()

    # What hands do

    def _put_node(self, node: Node) -> None:
        self.api.put(object_path(NODE_OBJECTS, node.metadata.name), node)

    def opt_out(self, node: str, *, out: bool) -> None:
        """Set or take away the label."""
        self._annotate(node, labels=NodeLabels(opt_out="true" if out else ""))

    def _annotate(self, name: str, **metadata: object) -> None:
        node = self.api.node(name)
        self._put_node(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **metadata)))

    def recycle(self, node: str) -> None:
        """Put another machine in the place of the one that had the name."""
        self.foreign[node] = []
        self._put_node(Node(NodeMetadata(node, f"{node}-{self.api.version}", self.now)))

    def heartbeat(self, node: str) -> None:
        """Have the kubelet say that it lives, which makes another version of the Node."""
        self._put_node(self.api.node(node))

    def node_taint(self, name: str, key: str, effect: str | None) -> None:
        """Have somebody else put a taint on the Node, over ours where there is one, or take all of that key off."""
        before, others = self.taints_on(name), self.foreign[name]
        if effect is None:
            gone, new = [one for one in others if one["key"] == key], []
        else:
            gone = [one for one in before if (one["key"], one["effect"]) == (key, effect)]
            new = [{"key": key, "effect": effect, "note": "theirs"}]
        self.foreign[name] = [one for one in others if one not in gone] + new
        self._set_taints(name, [one for one in before if one not in gone] + new)

    def taints_on(self, name: str) -> list[Json]:
        """The Node's taints."""
        return self.api.node(name).spec.taints or []

    def _set_taints(self, name: str, taints: list[Json]) -> None:
        self._put_node(msgspec.structs.replace(self.api.node(name), spec=NodeSpec(taints or None)))

    def meddle(self, name: str, how: Mischief) -> None:
        """Have a hand spoil what we keep on a Node. A taint of which the annotation does not tell is not ours."""
        others, all_ = self.foreign[name], self.taints_on(name)
        if how == "taint off":
            self._set_taints(name, [one for one in all_ if one in others])
            return
        if how == "taint altered":
            self._set_taints(name, [one if one in others else {**one, "value": "by-hand"} for one in all_])
        else:
            text = {"annotation off": "", "annotation broken": "{", "annotation of another": self._of_another(name)}[
                how
            ]
            self._annotate(name, annotations=NodeAnnotations(text))
        self.foreign[name] = self.taints_on(name)

    def _of_another(self, name: str) -> str:
        text = self.api.node(name).metadata.annotations.records
        return json.dumps({**json.loads(text), "uid": "another"}) if text.startswith('{"') else text

    def put(self, after: Record | None, before: Record) -> None:
        """Write a record, or delete it, where it is kept, unguarded."""
        key = before.key
        if isinstance(before.target, NodeTarget):
            node = self.api.node(key.node)
            held = {one: record for one, record in self.api.on_node(key.node).items() if one != key}
            change = patch(node, [*held.values(), *([after] if after else [])], now=self.now)
            self.api.put(object_path(NODE_OBJECTS, key.node), merged(node, change))
        else:
            object_ = to_object(replace(after, stored=None), "resource.k8s.io/v1") if after else None
            self.api.put(object_path(RULES, object_name(key)), rule_of(object_) if object_ else None)


@dataclass
class Silent:
    """Traces that nobody hears, and a leadership that nobody contests."""

    heard: list[Change] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        """Hear of a change."""

    def not_leading(self) -> str | None:
        """Leads."""
        return None

    def remaining(self) -> float:
        """For ever."""
        return math.inf
