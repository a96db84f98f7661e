"""The pure decision under everything that may happen around it, in any order: the invariants of the design.

Real: deciding, levelling, the budget, the order of reservation and write, the records as objects. Modelled: the cluster
and the truth about each fault. Of what happens, only a firing, a latched record, or a clear is evidence of anything.
That a dry run writes nothing is not shown here but by the audit log of the real API server.
"""
# ruff: noqa: D102 - the names of rules and invariants say what happens and what must hold

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from alerts.faults import FAULTS, Effect, Remediation
from remediator.budget import WINDOW, Budget, Limit, Limits, Share
from remediator.decide import (
    YOUNG_NODE,
    Action,
    Cleared,
    Create,
    Fired,
    Outcome,
    Replace,
    Update,
    decide_cleared,
    decide_fired,
    release,
    relevel,
    triage,
)
from remediator.errors import ConflictError, RemediatorError
from remediator.inventory import NEURON_NODE, Place
from remediator.level import NO_ROOM
from remediator.metrics import Metrics
from remediator.notification import Alert
from remediator.policy import Policy
from remediator.records import NEVER, Key, Record, State, episode_of, object_name, to_object
from remediator.surroundings import Views
from remediator.writing import Writer
from tests.remediator.model import DEVICES, NODES, Late, ModelCluster, Shape, Silent, Trouble
from tests.remediator.samples import NOW, TAINT_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS_AT_LEAST = 2000
FAULT_KINDS = ("hbm", "link_host", "link_efa")
"""Latched NoExecute, unlatched NoExecute, unlatched NoSchedule."""

KEYS = [Key(node, index, fault) for node in NODES for index in DEVICES for fault in FAULT_KINDS]
PLACES = [Place(node, name) for node in NODES for name in (NEURON_NODE, *(f"neuron-device-{i}" for i in DEVICES))]
MACHINE = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

keys = st.sampled_from(KEYS)
nodes = st.sampled_from(NODES)
Cause = Fired | Cleared | Literal["sweep", "operator", "hand", "garbage collector"]


@dataclass(frozen=True)
class Raise:
    """One write that made, or may yet make, the effect on a place stronger."""

    place: Place
    when: datetime


class DecisionMachine(RuleBasedStateMachine):
    """A remediator in a cluster where everything happens."""

    executed: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.cluster = ModelCluster(self.on_landed)
        self.policy = Policy(taint_key=TAINT_KEY)
        self.limits = Limits(max_unavailable=2, max_new=2)
        self.cause: Cause = "sweep"
        self.bag: list[Fired | Cleared] = []
        self.present: dict[Key, datetime] = {}
        self.taken_in: dict[Key, datetime] = {}
        self.raises: list[Raise] = []
        self.start()

    def start(self) -> None:
        """Start the remediator anew: all that it knows is on the records."""
        cluster, silent = self.cluster, Silent()
        self.budget = Budget(self.limits, cluster)
        self.views = Views(cluster, policy=self.policy, budget=self.budget, clock=self.clock)
        metrics = Metrics(
            records=cluster.records,
            backend=cluster.name,
            surroundings=cluster,
            leads=lambda: True,
            budget=self.budget,
            clock=self.clock,
        )
        self.writer = Writer(
            backend=cluster, leadership=silent, budget=self.budget, traces=silent, metrics=metrics, clock=self.clock
        )
        cluster.on_change = lambda before, after, _ours: self.budget.changed(before, after)
        for record in cluster.records():
            self.budget.changed(None, record)

    def teardown(self) -> None:
        self.runner.close()

    def clock(self) -> datetime:
        return self.cluster.now

    # Deciding and writing, as the product does

    def deliver(self, message: Fired | Cleared) -> Action | Outcome:
        """Decide and write; what fails is asked for again by Alertmanager, which is a later step here."""
        decision = self.decide(message)
        note(f"{message} → {decision}")
        if not isinstance(decision, Outcome):
            self.carry_out(message, decision)
        elif isinstance(message, Fired) and not decision.startswith("ignored"):
            self.noted(message)
        return decision

    def decide(self, message: Fired | Cleared) -> Action | Outcome:
        held = self.cluster.record(message.key)
        if isinstance(message, Cleared):
            return decide_cleared(message, record=held)
        node = self.cluster.known_node(message.key.node)
        return decide_fired(message, node=node, record=held, view=self.views.of(message.key, node))

    def sweep_decides(self) -> Iterable[Update]:
        """What a sweep would write, the longest standing first, each decided after the writes for those before."""
        for record in sorted(self.cluster.records(), key=lambda one: (one.first_fired, one.key)):
            node = self.cluster.known_node(record.key.node)
            update = relevel(record, node=node, view=self.views.of(record.key, node))
            if update is not None:
                yield update

    def carry_out(self, cause: Cause, action: Action) -> None:
        self.judge_action(cause, action)
        self.cause = cause
        troubled = self.cluster.trouble
        # Room that was found for a write whose answer was lost stays found when it is repeated.
        exposed = self.exposed() | {one.target.place for one in self.unanswered() if one.disrupts}
        strongest = self.strongest(action.record.target.place)
        taken = True
        try:
            self.runner.run(self.writer.carry_out(action))
        except ConflictError:
            taken = False
        except RemediatorError:
            if isinstance(action, Replace) and troubled in {"lost", "lost, landed"}:
                self.cluster.unanswered.append(Late("create", action.record, self.cluster.now))
            taken = troubled == "lost, landed" and not isinstance(action, Replace)
        if taken and isinstance(cause, Fired):
            self.noted(cause)
        possible = taken or any(one.record.key == action.record.key for one in self.cluster.late)
        self.judge_budget(action, exposed=exposed, strongest=strongest, possible=possible)

    def noted(self, firing: Fired) -> None:
        """Remember that a firing has been taken in for good; a spell that began when it did is held from now on."""
        self.taken_in[firing.key] = max(firing.started, self.taken_in.get(firing.key, NEVER))

    # What each action must be

    def judge_action(self, cause: Cause, action: Action) -> None:
        record = action.record
        node = self.cluster.known[record.key.node]
        object_ = to_object(record, "resource.k8s.io/v1")
        assert all(object_["spec"]["deviceSelector"][name] for name in ("driver", "pool", "device"))
        assert object_["metadata"]["name"] == object_name(record.key)
        assert record.taint.key == TAINT_KEY
        assert record.taint.value == FAULTS[record.key.fault].value
        assert isinstance(cause, Fired | Cleared) or isinstance(action, Update)
        if isinstance(cause, Fired):
            assert isinstance(action, Create | Update | Replace)
            assert cause.key == record.key
            # Of the machine before, while it may still be spoken of.
            created = node.metadata.creation_timestamp
            assert cause.started >= created or self.cluster.now - created >= YOUNG_NODE
        if isinstance(action, Create | Update | Replace):
            assert object_["metadata"]["ownerReferences"][0]["uid"] == node.metadata.uid
        if isinstance(action, Replace):
            assert action.void.node_uid != node.metadata.uid

    def on_landed(self, before: Record | None, after: Record | None) -> None:
        """Judge each write that reaches the rules by what caused it: no evidence, no change."""
        if self.cause in {"hand", "garbage collector"}:
            return
        if after is None:
            assert before is not None
            if isinstance(self.cause, Cleared):
                assert (before.key, before.episode) == (self.cause.key, self.cause.episode)
                assert not before.latched
            else:
                assert isinstance(self.cause, Fired)
                assert before.node_uid != self.cluster.known[before.key.node].metadata.uid
            return
        if before is None:
            assert isinstance(self.cause, Fired)
            assert after.latched == (self.cause.latched or FAULTS[after.key.fault].latched)
            return
        moved = before.target.place != after.target.place
        if after.taint.effect.rank > (0 if moved else before.taint.effect.rank):
            assert before.latched or isinstance(self.cause, Fired)
        if not isinstance(self.cause, Fired):
            names = ("episode", "first_fired", "last_fired", "node_uid")
            assert all(getattr(before, name) == getattr(after, name) for name in names)
            assert after.latched == before.latched or self.cause == "operator"
        assert after.latched >= before.latched or self.cause == "operator"

    # What the budget must see to

    def strongest(self, place: Place) -> int:
        """The strongest effect that we have on a place, or that a write without an answer may have brought there."""
        ranks = [one.taint.effect.rank for one in self.cluster.records() if one.target.place == place]
        ranks += [one.taint.effect.rank for one in self.unanswered() if one.target.place == place]
        return max(ranks, default=0)

    def unanswered(self) -> list[Record]:
        return [one.record for one in self.cluster.unanswered if one.step != "delete"]

    def may_land(self) -> list[Late]:
        return [one for one in self.cluster.late if one.step != "delete" and self.cluster.may_land(one)]

    def exposed(self) -> set[Place]:
        """Places where work is kept off, by us or the driver, or may be by a write whose answer was lost."""
        ours = {one.target.place for one in self.cluster.records() if one.disrupts}
        return (
            ours
            | {one.record.target.place for one in self.may_land() if one.record.disrupts}
            | {*self.cluster.unavailable()}
        )

    def judge_budget(self, action: Action, *, exposed: set[Place], strongest: int, possible: bool) -> None:
        record = action.record
        after = self.exposed()
        added = after - exposed
        assert added <= ({record.target.place} if isinstance(action, Create | Update | Replace) else set())
        limit = self.budget.limit(Limit.UNAVAILABLE)
        if added and limit is not None:
            # A record that moves, and whose answer was lost, is on one of two places.
            held = self.cluster.record(record.key)
            leaves = held is not None and held.disrupts and held.target.place not in added
            assert len(after) - leaves <= limit
        if not possible or record.taint.effect.rank <= strongest or self.strongest(record.target.place) <= strongest:
            return
        self.raises.append(Raise(record.target.place, self.cluster.now))
        if self.limits.max_new is not None:
            recent = {one.place for one in self.raises if self.cluster.now - one.when < WINDOW}
            assert len(recent) <= self.limits.max_new

    # What happens: alerts

    @initialize(some=st.lists(keys, min_size=2, max_size=8, unique=True))
    def faults_stand(self, some: list[Key]) -> None:
        """Where everything is quiet there is nothing to get wrong."""
        for key in some:
            self.fault_fires(key, "new", late=False)

    @rule(key=keys, late=st.booleans())
    def fire(self, key: Key, late: bool) -> None:  # noqa: FBT001 - drawn
        """The fault is there. An alert of it is delivered now, or much later."""
        self.fault_fires(key, "new", late=late)

    @rule(data=st.data(), how=st.sampled_from(["new", "new", "repeat", "repeat", "older", "future"]))
    @precondition(lambda self: bool(self.held()))
    def fire_again(self, data: st.DataObject, how: str) -> None:
        self.fault_fires(data.draw(st.sampled_from(self.held())), how, late=False)

    def held(self) -> list[Key]:
        return sorted(one.key for one in self.cluster.records())

    def fault_fires(self, key: Key, how: str, *, late: bool) -> None:
        if how == "new" or key not in self.present:
            self.cluster.wait(1)  # no two spells of a fault begin at once
            self.present[key] = self.cluster.now
        started = self.present[key]
        if how == "older":
            started -= timedelta(seconds=90)
        elif how == "future":
            started += timedelta(hours=1)
        self.send(Fired(key, started, latched=False), late=late)

    @rule(key=keys)
    def latch(self, key: Key) -> None:
        """The source itself says that the fault will not clear."""
        if key not in self.present:
            self.cluster.wait(1)
            self.present[key] = self.cluster.now
        self.send(Fired(key, self.present[key], latched=True), late=False)

    @rule(data=st.data(), late=st.booleans())
    @precondition(lambda self: bool(self.clearable()))
    def clear(self, data: st.DataObject, late: bool) -> None:  # noqa: FBT001 - drawn
        """A clean reading of a device whose unlatched record stands."""
        key = data.draw(st.sampled_from(self.clearable()))
        self.present.pop(key, None)
        held = self.cluster.record(key)
        assert held is not None
        decision = self.send(Cleared(key, held.episode), late=late)
        assert late or not isinstance(decision, Outcome)

    @rule(data=st.data())
    @precondition(lambda self: bool(self.held()))
    def clear_of_latched(self, data: st.DataObject) -> None:
        """It cannot be, by the rules; an alert made by a hand can."""
        held = self.cluster.record(data.draw(st.sampled_from(self.held())))
        if held is not None and held.latched:
            assert self.deliver(Cleared(held.key, held.episode)) is Outcome.IGNORED_LATCHED

    def clearable(self) -> list[Key]:
        return sorted(one.key for one in self.cluster.records() if not one.latched)

    @rule(data=st.data(), seconds=st.sampled_from([1, 90, 3600]))
    @precondition(lambda self: bool(self.held()))
    def stale_clear(self, data: st.DataObject, seconds: int) -> None:
        key = data.draw(st.sampled_from(self.held()))
        held = self.cluster.record(key)
        before = held.last_fired if held else self.cluster.now
        decision = self.send(Cleared(key, episode_of(before - timedelta(seconds=seconds))), late=False)
        assert isinstance(decision, Outcome)

    @rule(data=st.data())
    @precondition(lambda self: bool(self.bag))
    def again_or_late(self, data: st.DataObject) -> None:
        """A copy of what was sent at any time before: a duplicate, or out of order."""
        self.deliver(data.draw(st.sampled_from(self.bag)))

    @rule(key=keys, remediation=st.sampled_from(Remediation))
    def resolved(self, key: Key, remediation: Remediation) -> None:
        labels = {"node": key.node, "device": str(key.device), "fault": key.fault, "episode": "x"}
        alert = Alert(status="resolved", labels=labels | {"remediation": remediation}, starts_at=self.cluster.now)
        assert triage(alert, cluster=None) is Outcome.IGNORED_RESOLVED

    def send(self, message: Fired | Cleared, *, late: bool) -> Action | Outcome | None:
        self.bag = [*self.bag[-30:], message]
        return None if late else self.deliver(message)

    # What happens: the remediator

    @rule()
    def sweep(self) -> None:
        """Level all records, until nothing is left to do: what one frees may be another's room."""
        for _ in range(len(KEYS) + 2):
            written = False
            for update in self.sweep_decides():
                trouble = self.cluster.trouble
                self.carry_out("sweep", update)
                written = written or trouble is None
            if not written and not [*self.sweep_decides()]:
                break
        else:
            raise AssertionError("sweeps do not come to an end")
        for record in self.cluster.records():
            self.is_level(record)

    def is_level(self, record: Record) -> None:
        node = self.cluster.known[record.key.node]
        if record.node_uid != node.metadata.uid:
            return
        wanted, view = self.policy.effect_of(record.key.fault), self.views.of(record.key, node)
        effect = record.taint.effect
        assert effect.rank <= wanted.rank
        assert (record.state is State.RELEASED) == (record.released_until > self.cluster.now)
        if record.state is State.ACTIVE:
            assert effect is wanted
        elif record.state is not State.WITHHELD:
            assert effect is Effect.NONE
        elif record.latched:
            # While its slice is gone, it is where it was.
            target = view.target if view.target.placed or not record.target.placed else record.target
            assert effect is not wanted or record.target.place != target.place
            assert view.refusal(record.key, target, wanted) is not None
        if record.state is not State.RELEASED:
            assert (record.state is State.OPTED_OUT) == node.opted_out

    @rule()
    def restart(self) -> None:
        """What was not to be done before is not to be done after, unless there is room of which no record tells.

        The other way round, an effect that was lowered of late looks like one that was raised.
        """
        before, used = [*self.sweep_decides()], self.used()
        self.restart_on_other_terms()
        assert self.used()[0] <= used[0]
        if before:
            return
        for update in self.sweep_decides():
            held = self.cluster.record(update.record.key)
            assert self.used() != used
            assert held is not None
            assert held.latched
            assert held.reason.startswith(NO_ROOM)

    def used(self) -> list[int]:
        return [self.budget.used(which, self.cluster.now) for which in Limit]

    def restart_on_other_terms(self) -> None:
        """Lost writes have landed by then or never will. Raises whose records are gone or moved are forgotten."""
        self.cluster.late.clear()
        self.cluster.unanswered.clear()
        self.start()
        stand = {place: when for place, when in self.tainted_since().items() if self.cluster.now - when < WINDOW}
        self.raises = [Raise(place, when) for place, when in stand.items()]
        if self.limits.max_new is not None:
            assert self.budget.used(Limit.NEW, self.cluster.now) == len(stand)

    def tainted_since(self) -> dict[Place, datetime]:
        since: dict[Place, datetime] = {}
        for one in self.cluster.records():
            if one.disrupts:
                since[one.target.place] = max(one.tainted_since, since.get(one.target.place, NEVER))
        return since

    @rule(cap=st.sampled_from([*Effect, Effect.NO_EXECUTE]), swept=st.booleans())
    def policy_changes(self, cap: Effect, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.policy = Policy(taint_key=TAINT_KEY, max_effect=cap)
        self.restart_on_other_terms()
        self.seen(swept)

    def seen(self, swept: bool) -> None:  # noqa: FBT001 - drawn
        """A change is looked at soon; or other things happen first."""
        if swept:
            self.sweep()

    @rule(
        unavailable=st.sampled_from([1, 2, 3, Share(20), Share(75), None]),
        new=st.sampled_from([1, 2, 3, None]),
    )
    def budget_changes(self, unavailable: int | Share | None, new: int | None) -> None:
        self.limits = Limits(max_unavailable=unavailable, max_new=new)
        self.restart_on_other_terms()

    @rule(trouble=st.sampled_from(["refused", "conflict", "lost, landed", "lost"]))
    def next_write_meets(self, trouble: Trouble) -> None:
        self.cluster.trouble = trouble

    @rule(data=st.data())
    @precondition(lambda self: bool(self.cluster.late))
    def lost_write_lands(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.cluster.late))
        self.cluster.late.remove(one)
        self.cause = "hand"  # judged when it was sent
        with suppress(ConflictError):
            self.cluster.land(one.step, one.record)

    # What happens: everybody else

    @rule(data=st.data(), minutes=st.sampled_from([1, 30]))
    @precondition(lambda self: bool(self.held()))
    def operator_releases(self, data: st.DataObject, minutes: int) -> None:
        held = data.draw(st.sampled_from(sorted(self.cluster.records(), key=lambda one: one.key)))
        until = self.cluster.now + timedelta(minutes=minutes)
        self.cause = "operator"
        self.cluster.put(release(held, until=until, by="alice", why="cable").record, held)

    @rule(data=st.data(), effect=st.none() | st.sampled_from(Effect))
    @precondition(lambda self: bool(self.held()))
    def hand_changes_or_deletes(self, data: st.DataObject, effect: Effect | None) -> None:
        held = data.draw(st.sampled_from(sorted(self.cluster.records(), key=lambda one: one.key)))
        changed = None if effect is None else replace(held, taint=replace(held.taint, effect=effect))
        self.cause = "hand"
        self.cluster.put(changed, held)
        if effect is None:
            self.taken_in.pop(held.key, None)

    @rule(node=nodes)
    def node_is_recycled(self, node: str) -> None:
        self.cluster.recycle(node)
        for key in KEYS:
            if key.node == node:
                self.present.pop(key, None)
                self.taken_in.pop(key, None)

    @rule()
    def garbage_is_collected(self) -> None:
        self.cause = "garbage collector"
        for record in self.cluster.records():
            if record.node_uid != self.cluster.known[record.key.node].metadata.uid:
                self.cluster.put(None, record)

    @rule(node=nodes, out=st.booleans(), swept=st.booleans())
    def opt_out(self, node: str, out: bool, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.opt_out(node, out=out)
        self.seen(swept)

    @rule(
        place=st.sampled_from(PLACES),
        effect=st.sampled_from([None, *Effect]),
        key=st.sampled_from([TAINT_KEY, "neuron.aws.com/other"]),
        swept=st.booleans(),
    )
    def driver_taints(self, place: Place, effect: Effect | None, key: str, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.driver_taint(place, effect, key)
        self.seen(swept)

    @rule(node=nodes, shape=st.sampled_from(["devices", "node", "none"]), swept=st.booleans())
    def slices_change(self, node: str, shape: Shape, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.slice(node, shape)
        self.seen(swept)

    @rule(seconds=st.sampled_from([1, 20, 61, 601, 3601]), swept=st.booleans())
    def time_passes(self, seconds: float, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.wait(seconds)
        self.seen(swept)

    # What must hold after every step

    @invariant()
    def count_steps(self) -> None:
        self.executed["steps"] += 1

    @invariant()
    def the_budget_counts_all_that_is_or_may_be(self) -> None:
        assert self.budget.used(Limit.UNAVAILABLE, self.cluster.now) >= len(self.exposed())

    @invariant()
    def a_fault_that_is_there_and_was_told_is_held(self) -> None:
        """Whatever was cleared, repeated, reordered or restarted meanwhile. Starts from the future aside."""
        for key, started in self.present.items():
            if self.taken_in.get(key, NEVER) == started:
                held = self.cluster.record(key)
                assert held is not None, key
                assert held.last_fired >= started


def test_no_sequence_of_events_breaks_an_invariant() -> None:
    DecisionMachine.executed.clear()
    run_state_machine_as_test(DecisionMachine, settings=MACHINE)

    assert DecisionMachine.executed["steps"] >= STEPS_AT_LEAST


# Order and number


def end_of(messages: Iterable[Fired], surroundings: Iterable[tuple[str, bool, Place, Effect]]) -> set[Record]:
    """The records that a sequence of firings leaves, budget aside, but for what tells one write from another."""
    machine = DecisionMachine()
    machine.limits = Limits(max_unavailable=None, max_new=None)
    machine.start()
    for node, out, place, effect in surroundings:
        machine.cluster.opt_out(node, out=out)
        machine.cluster.driver_taint(place, effect)
    for message in messages:
        machine.deliver(message)
    machine.teardown()
    return {replace(one, stored=None, tainted_since=NEVER) for one in machine.cluster.records()}


past_firings = st.builds(
    Fired,
    key=st.sampled_from(KEYS[2:7]),
    started=st.integers(0, 5).map(lambda minutes: NOW - timedelta(minutes=minutes)),
    latched=st.booleans(),
)
around = st.lists(st.tuples(nodes, st.booleans(), st.sampled_from(PLACES), st.sampled_from(Effect)), max_size=3)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(some=st.lists(past_firings, min_size=1, max_size=8), surroundings=around, data=st.data())
def test_the_same_firings_in_any_order_and_number_end_the_same(
    some: list[Fired], surroundings: list[tuple[str, bool, Place, Effect]], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(some), max_size=8))
    shuffled = data.draw(st.permutations(some + again))

    assert end_of(shuffled, surroundings) == end_of(some, surroundings)
