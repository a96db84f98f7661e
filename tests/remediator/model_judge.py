"""What the decision machine holds each write of the remediator against: evidence, budget, and what is there meanwhile.

It sees what is decided, each single write that reaches the cluster, and what stands afterwards. It says what must be so
in its own words: of the product it takes the words and the budget's figures, and none of its judgement.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from alerts.faults import FAULTS, Effect
from remediator.budget import WINDOW, Limit
from remediator.decide import YOUNG_NODE, Action, Cleared, Create, Delete, Fired, Levelling, Replace, Update
from remediator.errors import RemediatorError
from remediator.records import NEVER, Key, Record, State
from remediator.targets import NodeTarget, Place
from remediator.writing import Writer
from tests.remediator.model import ModelCluster
from tests.remediator.model_api import Write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from remediator.budget import Budget, Limits
    from remediator.policy import Policy
    from remediator.targets import AnyTarget

FAULT_KINDS = ("hbm", "link_host", "link_efa")
"""Latched NoExecute, unlatched NoExecute, unlatched NoSchedule: the gravest first."""

Cause = Fired | Cleared | Literal["sweep", "operator", "hand", "garbage collector"]


@dataclass(frozen=True)
class Raise:
    """One write that made, or may yet make, the effect on a place stronger."""

    place: Place
    when: datetime


class JudgedWriter(Writer):
    """The writer, with everything judged that it is to carry out."""

    judge: Judge

    async def carry_out(self, action: Action | Levelling) -> None:
        """Write."""
        with self.judge.judging(action):
            await super().carry_out(action)


class Judge:
    """Watches over a cluster. `cause` is what whoever writes now acts on.

    `taken_in` is the newest start of each fault that was taken in for good; `raises` are the places made worse of late.
    A failure is kept in `broken`, as the product lets no error of one record stop the others.
    """

    policy: Policy
    limits: Limits
    budget: Budget

    def __init__(self) -> None:
        self.cluster = ModelCluster(self.landed)
        self.cause: Cause = "hand"
        self.taken_in: dict[Key, datetime] = {}
        self.raises: list[Raise] = []
        self.judged = 0
        self.broken: AssertionError | None = None
        self._action: Create | Update | Replace | Delete | None = None
        self._before: Record | None = None
        self._floor = 0
        self._orphaned: set[Write] = set()

    @contextmanager
    def judging(self, action: Action | Levelling) -> Iterator[None]:
        """Judge what is decided, each write, and what stands afterwards."""
        assert isinstance(action, Create | Update | Replace | Delete)
        try:
            yield from self._judging(action)
        except AssertionError as error:
            self.broken = self.broken or error
            raise
        finally:
            self._action = None

    def _judging(self, action: Create | Update | Replace | Delete) -> Iterator[None]:
        self.judged += 1
        record, api = action.record, self.cluster.api
        self._action, self._before = action, self.cluster.backend.record(record.key)
        api.about = record.key
        self._judge_action(action)
        # Room that was found for a write whose answer was lost, or for a move cut short, stays found.
        found = [*self._unanswered(), *api.in_force()]
        exposed = self.exposed() | {one.target.place for one in found if one.disrupts}
        strongest = self._strongest(record.target.place)
        copies = [one for one in api.copies(record.key) if one.node_uid == record.node_uid]
        # Of this budget no key is taken into account: a place is disrupted, or it is not.
        around = [one for one in copies if _is_at(one.target, record.target)]
        narrows = any(one.taint.effect.rank >= record.taint.effect.rank for one in around)
        self._floor = min(max((one.taint.effect.rank for one in copies), default=0), record.taint.effect.rank)
        self._floor *= isinstance(action, Update)
        lost, taken = len(api.unanswered), False
        try:
            yield
            taken = True
            self._orphaned |= {one for one in api.late if one.record.key == record.key}
        except RemediatorError:
            if not isinstance(action, Delete) and len(api.unanswered) > lost:
                # Whichever of its writes it was, what was found for the whole stays found.
                api.unanswered.append(Write("", None, None, "create", record, self.cluster.now))
            taken = not isinstance(action, Delete) and _says(self.cluster.backend.record(record.key), record)
            raise
        finally:
            if taken and isinstance(self.cause, Fired):
                self.noted(self.cause)
            if taken and isinstance(action, Delete):
                assert not api.copies(record.key)
            possible = taken or any(one.record.key == record.key for one in api.late)
            self._judge_budget(action, exposed, strongest, possible=possible, narrows=narrows)

    def noted(self, firing: Fired) -> None:
        """Remember that a firing has been taken in for good; a spell that began when it did is held from now on."""
        self.taken_in[firing.key] = max(firing.started, self.taken_in.get(firing.key, NEVER))

    def forget(self, *keys: Key) -> None:
        """Somebody else has taken these records away."""
        for key in keys:
            self.taken_in.pop(key, None)

    # What is decided

    def _judge_action(self, action: Create | Update | Replace | Delete) -> None:
        record, cause = action.record, self.cause
        node = self.cluster.api.node(record.key.node)
        if isinstance(record.target, NodeTarget):
            assert record.target.node == record.key.node
        else:
            assert all((record.target.driver, record.target.pool, record.target.device))
        assert isinstance(cause, Fired | Cleared) or isinstance(action, Update)
        if isinstance(cause, Fired):
            assert isinstance(action, Create | Update | Replace)
            assert cause.key == record.key
            # Of the machine before, while it may still be spoken of.
            created = node.metadata.creation_timestamp
            assert cause.started >= created or self.cluster.now - created >= YOUNG_NODE
        if isinstance(action, Replace):
            assert action.void.node_uid != node.metadata.uid
        if isinstance(action, Delete):
            return
        assert record.node_uid == node.metadata.uid
        assert record.taint.value == FAULTS[record.key.fault].value
        assert record.taint.effect.rank <= self._most(record).rank
        if isinstance(action, Update) and self._before is not None and not self._before.emptied:
            self._judge_move(self._before, record)
        if record.taint.key != self.policy.taint_key:
            # Whoever tolerates the key of before need not tolerate today's.
            assert record.state is State.WITHHELD
            assert self._before is not None
            assert record.taint.key == self._before.taint.key

    def _judge_move(self, before: Record, after: Record) -> None:
        """A slice that is away moves nothing, but a guess; and that to the Node by a firing alone."""
        if before.target.place == after.target.place or self.cluster.locate(after.key.node, after.key.device).placed:
            return
        assert not before.target.placed
        assert isinstance(self.cause, Fired) or not isinstance(after.target, NodeTarget)

    def _most(self, record: Record) -> Effect:
        """The strongest effect that a record may have where it is."""
        caps = [FAULTS[record.key.fault].effect, self.policy.max_effect]
        if isinstance(record.target, NodeTarget) and not self.policy.node_no_execute:
            caps.append(Effect.NO_SCHEDULE)
        return min(caps, key=lambda effect: effect.rank)

    # What reaches the cluster

    def landed(self, before: Record | None, after: Record | None) -> None:
        """Judge one write by what caused it: no evidence, no change; and nothing is free while it moves."""
        if self.cause in {"hand", "garbage collector", "operator"}:
            return
        one = after or before
        assert one is not None
        assert self._action is not None
        if one.key != self._action.record.key:
            self._judge_neighbour(before, after)
            return
        now = self.cluster.api.copies(one.key)
        others = [copy for copy in now if copy is not after]
        assert max((*(copy.taint.effect.rank for copy in now), *self._by_others())) >= self._floor
        if after is None:
            assert before is not None
            self._judge_deletion(before, others)
        elif isinstance(self._action, Create | Replace):
            assert before is None
            assert not others
            assert isinstance(self.cause, Fired)
            assert after.latched == (self.cause.latched or FAULTS[after.key.fault].latched)
        else:
            was = [*others, *([before] if before else [])]
            self._judge_change(after, [one for one in was if one.node_uid == after.node_uid])
        if isinstance(one.target, NodeTarget):
            self.judge_node(one.target.node)

    def _by_others(self) -> list[int]:
        """What others' taints do in place of the one that is written: there is one of a key and an effect on a Node."""
        assert self._action is not None
        record = self._action.record
        foreign = self.cluster.foreign[record.key.node] if isinstance(record.target, NodeTarget) else []
        return [0, *(Effect.read(one["effect"]).rank for one in foreign if one["key"] == record.taint.key)]

    def _judge_neighbour(self, before: Record | None, after: Record | None) -> None:
        """A write takes nothing from another record of the Node but an effect that others' taint has there anyway."""
        assert before is not None
        assert after is not None
        assert not after.disrupts
        theirs = [(one["key"], one["effect"]) for one in self.cluster.foreign[after.key.node]]
        assert (before.taint.key, before.taint.effect) in theirs

    def _judge_deletion(self, gone: Record, others: list[Record]) -> None:
        void = gone.node_uid != self.cluster.api.node(gone.key.node).metadata.uid
        if isinstance(self.cause, Cleared) and not (void and others):
            before = self._before
            assert before is not None
            assert (before.key, before.episode) == (self.cause.key, self.cause.episode)
            assert not before.latched
            # An operator has lifted it.
            assert not gone.latched or before.state is State.RELEASED
        elif not others:
            assert isinstance(self.cause, Fired)
            assert void

    def _judge_change(self, after: Record, was: list[Record]) -> None:
        """`was` is everything that stood for the fault on that machine before the write."""
        before = self._before
        assert before is not None
        had = max((one.taint.effect.rank for one in was if _contains(one, after)), default=0)
        if after.taint.effect.rank > had:
            assert isinstance(self.cause, Fired) or before.latched
        # An operator has lifted it, for a time.
        latched = before.latched or (any(one.latched for one in was) and before.state is not State.RELEASED)
        assert after.latched >= latched
        if not isinstance(self.cause, Fired):
            names = ("episode", "first_fired", "last_fired", "node_uid", "latched")
            assert all(getattr(before, name) == getattr(after, name) for name in names)

    def judge_node(self, name: str) -> None:
        """The Node has a taint of ours exactly when a record there has an effect: the strongest, by the gravest."""
        held = self.cluster.api.on_node(name).values()
        expected = set()
        for key in {one.taint.key for one in held if one.disrupts}:
            of_key = [one for one in held if one.taint.key == key]
            effect = max((one.taint.effect for one in of_key), key=lambda effect: effect.rank)
            faults = [one.key.fault for one in of_key if one.taint.effect is effect]
            expected.add((key, FAULTS[min(faults, key=FAULT_KINDS.index)].value, effect))
        taints, foreign = self.cluster.taints_on(name), self.cluster.foreign[name]
        ours = [(one["key"], one["value"], one["effect"]) for one in taints if one not in foreign]
        assert len(ours) == len(expected)
        assert {*ours} == expected
        assert len({(one["key"], one["effect"]) for one in taints}) == len(taints)

    def judge_foreign(self) -> None:
        """What others have put on Nodes is as they have put it, in their order."""
        for name, foreign in self.cluster.foreign.items():
            assert [one for one in self.cluster.taints_on(name) if one in foreign] == foreign

    # What the budget must see to

    def _strongest(self, place: Place) -> int:
        """The strongest effect that we have on a place, or that a write without an answer may have brought there."""
        ones = [*self.cluster.api.in_force(), *self._unanswered()]
        return max((one.taint.effect.rank for one in ones if one.target.place == place), default=0)

    def _unanswered(self) -> list[Record]:
        return [one.record for one in self.cluster.api.unanswered if one.step != "delete"]

    def exposed(self) -> set[Place]:
        """Places where work is kept off, by us or the driver, or may be by a write whose answer was lost.

        What a move that was cut short has left where it came from is on its way out, and counts no more. Nor does a
        move that has not come to be before its record was written where it was, or cleared: should it land, that is
        done again.
        """
        ours = {one.target.place for one in self.cluster.backend.records() if one.disrupts}
        late = [one for one in self.cluster.api.late if one.step != "delete" and one not in self._orphaned]
        landing = {one.record.target.place for one in late if one.record.disrupts}
        return ours | landing | {*self.cluster.unavailable()}

    def _judge_budget(
        self, action: Action, exposed: set[Place], strongest: int, *, possible: bool, narrows: bool
    ) -> None:
        record = action.record
        after = self.exposed()
        added = after - exposed
        assert added <= ({record.target.place} if isinstance(action, Create | Update | Replace) else set())
        if narrows:
            return
        limit = self.budget.limit(Limit.UNAVAILABLE)
        if added and limit is not None:
            # A record that moves, and whose answer was lost, is on one of two places.
            held = self.cluster.backend.record(record.key)
            leaves = held is not None and held.disrupts and held.target.place not in added
            assert len(after) - leaves <= limit, (exposed, after)
        if not possible or record.taint.effect.rank <= strongest or self._strongest(record.target.place) <= strongest:
            return
        self.raises.append(Raise(record.target.place, self.cluster.now))
        if self.limits.max_new is not None:
            assert len(self.worsened()) <= self.limits.max_new

    def worsened(self) -> set[Place]:
        """The places made worse of late."""
        return {one.place for one in self.raises if self.cluster.now - one.when < WINDOW}

    def starts_anew(self) -> None:
        """All that is known from now on is on the records: raises whose records are gone or moved are forgotten."""
        since: dict[Place, datetime] = {}
        for one in self.cluster.backend.records():
            if one.disrupts:
                since[one.target.place] = max(one.tainted_since, since.get(one.target.place, NEVER))
        stand = {place: when for place, when in since.items() if self.cluster.now - when < WINDOW}
        self.raises = [Raise(place, when) for place, when in stand.items()]
        if self.limits.max_new is not None:
            assert self.budget.used(Limit.NEW, self.cluster.now) == len(stand)


def _contains(one: Record, other: Record) -> bool:
    """Whether whoever is kept off by the one is by the other: it is the same taint, there or on the Node around it."""
    same_taint = (one.taint.key, one.taint.value) == (other.taint.key, other.taint.value)
    return same_taint and _is_at(one.target, other.target)


def _is_at(one: AnyTarget, other: AnyTarget) -> bool:
    """Whether the one is the other, or the Node around it."""
    around = isinstance(one, NodeTarget) and not isinstance(other, NodeTarget) and one.node == other.pool
    return around or one.place == other.place


def _says(one: Record | None, other: Record) -> bool:
    """Whether the cluster shows what was to be written."""
    names = ("target", "last_fired", "latched", "state")
    return one is not None and all(getattr(one, name) == getattr(other, name) for name in names)
