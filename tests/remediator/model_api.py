"""The API server of the model: Nodes and rules as it stores them, guarded as it guards them, and answers that get lost.

It stands in for the requests of the real backends and judges nothing. What it stores goes through the very objects, so
that what is not written there is forgotten; what changes is told to the caches at once, as a watch without delay does.
"""
# ruff: noqa: ARG002 - methods take what the real ones take

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from remediator.budget import LANDED_BY
from remediator.cluster import RESOURCE_API, Api, object_path
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.inventory import Node
from remediator.node_cache import NODES
from remediator.node_records import DamagedRecordsError, read
from remediator.rule_records import from_object, object_name
from remediator.rules import Rule
from tests.remediator.samples import DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from remediator.records import Key, Record

T = TypeVar("T")
Json = dict[str, Any]
Object = Node | Rule
Trouble = Literal["refused", "conflict", "lost, landed", "lost"]
Step = Literal["create", "update", "delete"]

RULES = f"{RESOURCE_API}/v1/devicetaintrules"


@dataclass(frozen=True, eq=False)
class Write:
    """One write: the object before, which is its guard, and after; `record` is what it writes or deletes."""

    path: str
    before: Object | None
    after: Object | None
    step: Step
    record: Record
    made: datetime


class ModelApi(Api):
    """Objects by path. `landed` is told of each record that is written somewhere, on a rule or a Node, by whomever.

    `trouble` is what the next write meets, `trouble_at_end` what the next deletion does: it may be the end of a move.
    `unanswered` are writes of the last minute whose answers were lost, and `late` those of them that may land still.
    `served` says whether there are rules at all: those that are stored are out of force while there are none. `about`
    is the record that the product writes now. `watch` is told of each object, before and after.
    """

    def __init__(self, clock: Callable[[], datetime], landed: Callable[[Record | None, Record | None], None]) -> None:
        self.objects: dict[str, Object] = {}
        self.served = True
        self.version = 0
        self.trouble: Trouble | None = None
        self.trouble_at_end: Trouble | None = None
        self.late: list[Write] = []
        self.unanswered: list[Write] = []
        self.about: Key | None = None
        self.watch: Callable[[Object | None, Object | None], None] = lambda _before, _after: None
        self._clock = clock
        self._landed = landed
        self._by_path: dict[str, dict[Key, Record]] = {}

    # What is stored

    def node(self, name: str) -> Node:
        """The Node of that name; there is one."""
        found = self.objects[object_path(NODES, name)]
        assert isinstance(found, Node)
        return found

    def rules(self) -> list[Rule]:
        """All that are served."""
        return [one for one in self.objects.values() if isinstance(one, Rule) and self.served]

    def nodes(self) -> list[Node]:
        """All."""
        return [one for one in self.objects.values() if isinstance(one, Node)]

    def on_node(self, name: str) -> dict[Key, Record]:
        """The records that the Node bears."""
        return self._by_path.get(object_path(NODES, name), {})

    def copies(self, key: Key) -> list[Record]:
        """Each place in which a record is kept and in force: on its rule, on its Node."""
        paths = [object_path(NODES, key.node), *([object_path(RULES, object_name(key))] if self.served else [])]
        return [held[key] for path in paths if key in (held := self._by_path.get(path, {}))]

    def in_force(self) -> list[Record]:
        """All of them."""
        return [
            one
            for path, held in self._by_path.items()
            if self.served or not path.startswith(RULES)
            for one in held.values()
        ]

    def put(self, path: str, after: Object | None) -> None:
        """Store unguarded, as a hand does."""
        self.version += 1
        before = self.objects.pop(path, None)
        if after is not None:
            after = self.objects[path] = self._stamped(after, before)
        held, now = self._by_path.pop(path, {}), _records(after)
        if now:
            self._by_path[path] = now
        self.late = [one for one in self.late if self.may_land(one)]
        for key in sorted(held.keys() | now.keys()):
            if _content(held.get(key)) != _content(now.get(key)):
                self._landed(held.get(key), now.get(key))
        self.watch(before, after)

    def _stamped(self, object_: Object, before: Object | None) -> Object:
        version = str(self.version)
        if isinstance(object_, Node):
            return Node(msgspec.structs.replace(object_.metadata, resource_version=version), object_.spec)
        taint = object_.spec.taint
        was = before.spec.taint if isinstance(before, Rule) else None
        since = was.time_added if was and was.effect == taint.effect else self._clock().isoformat(timespec="seconds")
        spec = msgspec.structs.replace(object_.spec, taint=msgspec.structs.replace(taint, time_added=since))
        uid = before.metadata.uid if isinstance(before, Rule) else f"rule-{self.version}"
        return Rule(msgspec.structs.replace(object_.metadata, uid=uid, resource_version=version), spec)

    # Requests

    async def get(self, path: str, decode_as: type[T], **query: str) -> T | None:
        """The object."""
        return cast("T | None", self.objects.get(path))

    async def create(self, path: str, body: Mapping[str, Any], decode_as: type[T], **query: str) -> T:
        """Store a rule."""
        path = object_path(path, body["metadata"]["name"])
        if path in self.objects:
            raise ConflictError("409")
        return cast("T", self._attempt(path, "create", rule_of(body)))

    async def apply(self, path: str, body: Mapping[str, Any], decode_as: type[T], **query: str) -> T:
        """Store a rule over another."""
        self._guard(path, body["metadata"])
        return cast("T", self._attempt(path, "update", rule_of(body)))

    async def merge(self, path: str, change: Mapping[str, Any], decode_as: type[T], **query: str) -> T | None:
        """Change a Node."""
        held = self._guard(path, change["metadata"])
        return cast("T", self._attempt(path, "update", merged(held, change)))

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        """Delete a rule."""
        if path in self.objects:
            self._guard(path, {"uid": uid, "resourceVersion": resource_version})
            self._attempt(path, "delete", None)

    def _guard(self, path: str, metadata: Mapping[str, str]) -> Object:
        held = self.objects.get(path)
        if (
            held is None
            or metadata["resourceVersion"] != held.metadata.resource_version
            or metadata.get("uid", held.metadata.uid) != held.metadata.uid
        ):
            raise ConflictError("409")
        return held

    def _attempt(self, path: str, step: Step, after: Object | None) -> Object | None:
        write = Write(path, self.objects.get(path), after, *self._told(path, step, after), self._clock())
        trouble, self.trouble = self.trouble, None
        if write.step == "delete" and trouble is None:
            trouble, self.trouble_at_end = self.trouble_at_end, None
        if trouble in {"lost", "lost, landed"}:
            self.unanswered.append(write)
        match trouble:
            case "refused":
                raise UnavailableError(Refusal.THROTTLED, "429")
            case "conflict":
                raise ConflictError("409")
            case "lost":
                self.late.append(write)
            case _:
                self.put(path, after)
        if trouble is not None:
            raise UnavailableError(Refusal.TIMEOUT, "no answer")
        return self.objects.get(path)

    def _told(self, path: str, step: Step, after: Object | None) -> tuple[Step, Record]:
        """What the write does to the record it is about."""
        held, then = self._by_path.get(path, {}), _records(after)
        assert self.about is not None
        record = then.get(self.about) or held[self.about]
        if isinstance(after, Node):
            step = "delete" if self.about not in then else "update" if self.about in held else "create"
        return step, record

    # Answers that were lost

    def may_land(self, one: Write) -> bool:
        """Whether it would still be taken."""
        served = self.served or isinstance(one.before or one.after, Node)
        return served and self._clock() - one.made < LANDED_BY and self.objects.get(one.path) is one.before

    def land(self, one: Write) -> None:
        """Have it reach the cluster at last."""
        self.late.remove(one)
        if self.may_land(one):
            self.put(one.path, one.after)

    def forget_lost(self) -> None:
        """Writes that have not landed by now never will."""
        self.unanswered = [one for one in self.unanswered if self._clock() - one.made < LANDED_BY]
        self.late = [one for one in self.late if self.may_land(one)]


def rule_of(body: Mapping[str, Any]) -> Rule:
    """A rule as it is stored, but for what the server adds."""
    body = {**body, "metadata": {"uid": "", "resourceVersion": "", **body["metadata"]}}
    return msgspec.json.decode(json.dumps(body), type=Rule)


def merged(object_: Object, change: Mapping[str, Any]) -> Object:
    """The object under a merge patch (RFC 7386)."""
    laid = _laid_over(msgspec.to_builtins(object_), change)
    return msgspec.convert(deepcopy(laid), type=type(object_), strict=False)


def _laid_over(value: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    after = dict(value) if isinstance(value, dict) else {}
    for name, part in change.items():
        if part is None:
            after.pop(name, None)
        else:
            after[name] = _laid_over(after.get(name), part)
    return after


def _records(object_: Object | None) -> dict[Key, Record]:
    """What the object says; a rule of ours always says something."""
    if isinstance(object_, Rule):
        record = from_object(object_)
        assert record is not None
        assert object_.metadata.name == object_name(record.key)
        return {record.key: record}
    try:
        return read(object_, driver=DRIVER) if object_ is not None else {}
    except DamagedRecordsError:
        return {}


def _content(record: Record | None) -> Record | None:
    return record and replace(record, stored=None)
