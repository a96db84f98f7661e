"""A small cluster in memory for the decision machine: nodes, slices, rules as the API server keeps them, lost answers.

It plays the API server and the driver, and judges nothing. Records go through the very objects that are stored, so that
what is not written there is forgotten.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from remediator.budget import LANDED_BY
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.inventory import NEURON_NODE, DeviceTaint, Inventory, Node, NodeLabels, NodeMetadata, Place, Target
from remediator.records import Key, Record, from_object, object_name, to_object
from remediator.rules import Rule
from tests.remediator.samples import DRIVER, LONG_AGO, NOW, TAINT_KEY, device, resource_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from alerts.faults import Effect
    from remediator.backends import OnChange
    from remediator.traces import Change

NODES = ("standalone", "ultraserver")
DEVICES = range(3)
Shape = Literal["devices", "node", "none"]
Trouble = Literal["refused", "conflict", "lost, landed", "lost"]
Step = Literal["create", "update", "delete"]


@dataclass(frozen=True)
class Late:
    """A write whose answer was lost, and which may land still."""

    step: Step
    record: Record
    made: datetime


class ModelCluster:
    """Nodes, slices and rules; `landed` is told of each write that reaches the rules, by whomever.

    It is `Surroundings` and `Backend` at once. `trouble` is what the next write meets; `unanswered` are writes of the
    last minute whose answers were lost, and `late` those of them that may land still.
    """

    name = "model"

    def __init__(self, landed: Callable[[Record | None, Record | None], None]) -> None:
        self.now = NOW
        self.known = {name: _node(name, 0, LONG_AGO) for name in NODES}
        self.inventory = Inventory(DRIVER)
        self.driver_taints: dict[Place, DeviceTaint] = {}
        self.shapes: dict[str, Shape] = {}
        self.trouble: Trouble | None = None
        self.late: list[Late] = []
        self.unanswered: list[Late] = []
        self.on_change: OnChange = lambda _before, _after, _ours: None
        self._landed = landed
        self._rules: dict[Key, Rule] = {}
        self._records: dict[Key, Record] = {}
        self._versions = 0
        self.slice("standalone", "devices")
        self.slice("ultraserver", "node")

    # What surrounds records

    def not_ready(self) -> str | None:
        """Nothing to wait for."""
        return None

    async def node(self, name: str, *, live: bool = False) -> Node | None:  # noqa: ARG002 - nothing but memory here
        """The Node."""
        return self.known.get(name)

    def known_node(self, name: str) -> Node | None:
        """The Node."""
        return self.known.get(name)

    def nodes(self) -> Iterable[str]:
        """Both."""
        return self.known

    def locate(self, node: str, device: int) -> Target:
        """By the slices."""
        return self.inventory.locate(node, device)

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's."""
        return self.inventory.taints()

    def targets(self) -> int:
        """By the slices."""
        return self.inventory.targets()

    def unavailable(self) -> Collection[Place]:
        """By the driver's taints."""
        return self.inventory.unavailable()

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

    def opt_out(self, node: str, *, out: bool) -> None:
        """Set or take away the label."""
        metadata = self.known[node].metadata
        labels = NodeLabels(opt_out="true" if out else "")
        self.known[node] = Node(msgspec.structs.replace(metadata, labels=labels))

    def recycle(self, node: str) -> None:
        """Put another machine in the place of the one that had the name."""
        self._versions += 1
        self.known[node] = _node(node, self._versions, self.now)

    # Records, as a backend has them

    def records(self) -> Iterable[Record]:
        """All."""
        return tuple(self._records.values())

    def record(self, key: Key) -> Record | None:
        """One."""
        return self._records.get(key)

    async def refresh(self, key: Key) -> None:
        """Nothing to do: what is held is the truth here."""

    async def create(self, record: Record) -> None:
        """Write, if nothing goes wrong."""
        self._attempt("create", record)

    async def update(self, record: Record) -> None:
        """Write, if nothing goes wrong."""
        self._attempt("update", record)

    async def delete(self, record: Record) -> None:
        """Write, if nothing goes wrong."""
        self._attempt("delete", record)

    def _attempt(self, step: Step, record: Record) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble in {"lost", "lost, landed"}:
            self.unanswered.append(Late(step, record, self.now))
        match trouble:
            case "refused":
                raise UnavailableError(Refusal.THROTTLED, "429")
            case "conflict":
                raise ConflictError("409")
            case "lost":
                self.late.append(self.unanswered[-1])
            case _:
                self.land(step, record)
        if trouble is not None:
            raise UnavailableError(Refusal.TIMEOUT, "no answer")

    def land(self, step: Step, record: Record) -> None:
        """Write, guarded as the API server guards."""
        held = self._records.get(record.key)
        if (held is not None) if step == "create" else (held is None or held.stored != record.stored):
            raise ConflictError("409")
        self.put(None if step == "delete" else record, held)

    def put(self, after: Record | None, before: Record | None) -> None:
        """Write unguarded, as a hand does."""
        key = (after or before or _nothing()).key
        if after is None:
            self._rules.pop(key, None)
            self._records.pop(key, None)
        else:
            self._versions += 1
            self._rules[key] = self._stored(after, before)
            after = self._records[key] = read_back(self._rules[key])
        self.late = [one for one in self.late if self.may_land(one)]
        self._landed(before, after)
        self.on_change(before, after, True)

    def _stored(self, record: Record, before: Record | None) -> Rule:
        object_ = to_object(replace(record, stored=None), "resource.k8s.io/v1")
        object_["metadata"] |= {
            "uid": before.stored.uid if before and before.stored else f"rule-{self._versions}",
            "resourceVersion": str(self._versions),
        }
        as_before = before is not None and before.taint.effect is record.taint.effect
        since = before.tainted_since if before and as_before else self.now.replace(microsecond=0)
        object_["spec"]["taint"]["timeAdded"] = since.isoformat()
        return msgspec.json.decode(json.dumps(object_), type=Rule)

    # Time, and what it does to lost writes

    def wait(self, seconds: float) -> None:
        """Let time pass; a write that has not landed by then never will."""
        self.now += timedelta(seconds=seconds)
        self.unanswered = [one for one in self.unanswered if self.now - one.made < LANDED_BY]
        self.late = [one for one in self.late if self.may_land(one)]

    def may_land(self, one: Late) -> bool:
        """Whether the API server would still take it."""
        if self.now - one.made >= LANDED_BY:
            return False
        held = self._records.get(one.record.key)
        return held is None if one.step == "create" else held is not None and held.stored == one.record.stored


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


def read_back(rule: Rule) -> Record:
    """What a rule of ours says; it always says something."""
    record = from_object(rule)
    assert record is not None
    assert rule.metadata.name == object_name(record.key)
    return record


def _node(name: str, number: int, created: datetime) -> Node:
    return Node(NodeMetadata(name, f"{name}-{number}", created))


def _nothing() -> Record:
    raise AssertionError("neither before nor after")
