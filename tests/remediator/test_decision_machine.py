"""The pure decision under everything that may happen around it, in any order: the invariants of the design.

Real: deciding, levelling, sweeping, the budget, the order of reservation and write, both backends as one, records as
rules and on Nodes. Modelled: the API server, who else is in the cluster, and the truth about each fault. Of what
happens, only a firing, a latched record, or a clear is evidence of anything.
That a dry run writes nothing is not shown here but by the audit log of the real API server.
"""
# ruff: noqa: D102 - the names of rules and invariants say what happens and what must hold

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

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

from alerts.faults import Effect, Remediation
from remediator.budget import Budget, Limit, Limits, Share
from remediator.decide import Action, Cleared, Fired, Outcome, Update, decide_cleared, decide_fired, release, triage
from remediator.errors import RemediatorError
from remediator.inventory import NEURON_NODE
from remediator.level import NO_ROOM
from remediator.leveller import Leveller
from remediator.metrics import Metrics
from remediator.notification import Alert
from remediator.pacing import LONGEST
from remediator.placement import Choice
from remediator.policy import Policy
from remediator.records import NEVER, Key, Record, State, episode_of
from remediator.surroundings import Views
from remediator.targets import NodeTarget, Place
from tests.remediator.model import DEVICES, NODES, Mischief, Shape, Silent
from tests.remediator.model_judge import FAULT_KINDS, Judge, JudgedWriter
from tests.remediator.samples import NOW, TAINT_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remediator.level import View
    from remediator.targets import AnyTarget
    from tests.remediator.model_api import Json, Trouble

STEPS_AT_LEAST = 2000
OTHER_KEY = "neuron.aws.com/other"
KEYS = [Key(node, index, fault) for node in NODES for index in DEVICES for fault in FAULT_KINDS]
DEVICE_NAMES = [NEURON_NODE, *(f"neuron-device-{index}" for index in DEVICES)]
PLACES = [Place(node, name) for node in NODES for name in DEVICE_NAMES]
MACHINE = settings(
    max_examples=180,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

keys = st.sampled_from(KEYS)
nodes = st.sampled_from(NODES)
shapes: st.SearchStrategy[Shape] = st.sampled_from(["devices", "node", "none"])
troubles: st.SearchStrategy[Trouble] = st.sampled_from(["refused", "conflict", "lost, landed", "lost"])


class DecisionMachine(RuleBasedStateMachine):
    """A remediator in a cluster where everything happens."""

    executed: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.judge = Judge()
        self.cluster = self.judge.cluster
        self.policy = Policy(taint_key=TAINT_KEY)
        self.limits = Limits(max_unavailable=2, max_new=2)
        self.bag: list[Fired | Cleared] = []
        self.present: dict[Key, datetime] = {}
        # Nobody reads them here, and making them takes longer than all the rest of a start.
        self.metrics = Metrics(
            records=list,
            backends=self.cluster.backend.names,
            surroundings=self.cluster,
            leads=lambda: True,
            budget=Budget(self.limits, self.cluster),
            clock=self.clock,
        )
        self.start()

    def start(self) -> None:
        """Start the remediator anew: all that it knows is on the records."""
        cluster, silent = self.cluster, Silent()
        cluster.start()
        self.backend = backend = cluster.backend
        self.budget = budget = Budget(self.limits, cluster)
        self.views = Views(cluster, policy=self.policy, budget=budget, clock=self.clock)
        self.writer = JudgedWriter(
            backend=backend, leadership=silent, budget=budget, traces=silent, metrics=self.metrics, clock=self.clock
        )
        self.leveller = Leveller(
            backend=backend,
            surroundings=cluster,
            views=self.views,
            writer=self.writer,
            clock=self.clock,
            elapsed=self.elapsed,
        )
        self.writer.judge, self.judge.budget = self.judge, budget
        self.judge.policy, self.judge.limits = self.policy, self.limits
        backend.on_change = lambda before, after, _ours: budget.changed(before, after)
        for record in backend.records():
            budget.changed(None, record)

    def teardown(self) -> None:
        self.runner.close()

    def clock(self) -> datetime:
        return self.cluster.now

    def elapsed(self) -> float:
        return self.cluster.now.timestamp()

    # Deciding and writing, as the product does

    def deliver(self, message: Fired | Cleared) -> Action | Outcome | None:
        """Decide and write; what fails is asked for again by Alertmanager, which is a later step here."""
        if self.cluster.not_ready():
            return None
        decision = self.decide(message)
        note(f"{message} → {decision}")
        if not isinstance(decision, Outcome):
            self.judge.cause = message
            with suppress(RemediatorError):
                self.runner.run(self.writer.carry_out(decision))
        elif isinstance(message, Fired) and not decision.startswith("ignored"):
            self.judge.noted(message)
        return decision

    def decide(self, message: Fired | Cleared) -> Action | Outcome:
        held = self.backend.record(message.key)
        if isinstance(message, Cleared):
            return decide_cleared(message, record=held)
        node = self.cluster.known_node(message.key.node)
        return decide_fired(message, node=node, record=held, view=self.views.of(message.key, node))

    def due(self) -> list[Record]:
        """The records that sweeps would write, now or in a while; what that would be is judged when they do."""
        return [record for record in self.backend.records() if self.leveller._decide(record)]

    # What happens: alerts

    @initialize(
        some=st.lists(keys, min_size=2, max_size=8, unique=True),
        listed=st.tuples(shapes, shapes),
        served=st.sampled_from([True, True, False]),
        on_nodes=st.booleans(),
    )
    def faults_stand(self, some: list[Key], listed: tuple[Shape, Shape], served: bool, on_nodes: bool) -> None:  # noqa: FBT001 - drawn
        """Where everything is quiet there is nothing to get wrong."""
        self.policy = Policy(taint_key=TAINT_KEY, node_no_execute=on_nodes)
        self.start()
        for node, shape in zip(NODES, listed, strict=True):
            self.cluster.slice(node, shape)
        self.cluster.serve(served)
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
        return sorted(one.key for one in self.backend.records())

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
        self.is_cleared(data.draw(st.sampled_from(self.clearable())), late=late)

    def is_cleared(self, key: Key, *, late: bool) -> None:
        self.present.pop(key, None)
        held = self.backend.record(key)
        assert held is not None
        decision = self.send(Cleared(key, held.episode), late=late)
        assert late or self.cluster.not_ready() or not isinstance(decision, Outcome)

    @rule(data=st.data())
    @precondition(lambda self: bool(self.held()))
    def clear_of_latched(self, data: st.DataObject) -> None:
        """It cannot be, by the rules; an alert made by a hand can."""
        held = self.backend.record(data.draw(st.sampled_from(self.held())))
        if held is not None and held.latched:
            assert self.deliver(Cleared(held.key, held.episode)) in {Outcome.IGNORED_LATCHED, None}

    def clearable(self) -> list[Key]:
        return sorted(one.key for one in self.backend.records() if not one.latched)

    @rule(data=st.data(), seconds=st.sampled_from([1, 90, 3600]))
    @precondition(lambda self: bool(self.held()))
    def stale_clear(self, data: st.DataObject, seconds: int) -> None:
        key = data.draw(st.sampled_from(self.held()))
        held = self.backend.record(key)
        before = held.last_fired if held else self.cluster.now
        decision = self.send(Cleared(key, episode_of(before - timedelta(seconds=seconds))), late=False)
        assert decision is None or isinstance(decision, Outcome)

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
        if self.cluster.not_ready():
            return
        for _ in range(len(KEYS) + 4):
            if not self.look():
                break
        else:
            raise AssertionError("sweeps do not come to an end")
        assert not any(self.leveller._due(record) for record in self.backend.records())
        for record in self.backend.records():
            self.is_level(record)
        for name in NODES:
            self.judge.judge_node(name)

    def is_level(self, record: Record) -> None:
        node = self.cluster.api.node(record.key.node)
        copies = self.cluster.api.copies(record.key)
        if record.node_uid != node.metadata.uid:
            assert all(one.node_uid == record.node_uid for one in copies)
            return
        if action := self.leveller._decide(record):
            # It has been raised a moment ago, and somebody takes that off again and again.
            assert isinstance(action, Update)
            after = action.record
            assert after.taint.effect.rank >= record.taint.effect.rank
            assert after.taint.effect.rank > record.taint.effect.rank or after.target.place != record.target.place
            now = self.elapsed()
            assert self.leveller._pacing.due(record.key, now) - now <= LONGEST
            return
        assert len(copies) == 1
        wanted, view = self.policy.effect_of(record.key.fault, record.target), self.views.of(record.key, node)
        effect, target = record.taint.effect, record.target
        assert effect.rank <= wanted.rank
        assert (record.state is State.RELEASED) == (record.released_until > self.cluster.now)
        # While its slice is gone, it is where it was, and no device that a rule taints has the Node tainted instead.
        by_rule = not isinstance(target, NodeTarget)
        away = target.placed or (by_rule and isinstance(view.target, NodeTarget))
        moves = view.target.placed or not away
        if record.state is State.ACTIVE:
            assert effect is wanted
            assert record.taint.key == self.policy.taint_key
            assert not moves or target.place == view.target.place
        elif record.state is not State.WITHHELD:
            assert effect is Effect.NONE
            assert not view.target.placed or target.place == view.target.place
        else:
            self.is_withheld(record, view, view.target if moves else target)
        if record.state not in {State.RELEASED, State.OPTED_OUT}:
            there = view.target if moves else target
            most = self.policy.effect_of(record.key.fault, there)
            assert (record.state is State.COVERED) == (0 < most.rank <= self.by_others(there))
        if record.state is not State.RELEASED:
            assert (record.state is State.OPTED_OUT) == node.opted_out

    def by_others(self, target: AnyTarget) -> int:
        """How strong others' taints of our key are on a device, or on its Node where that would be tainted."""
        device = target.device if isinstance(target, NodeTarget) else target
        effects = [
            one.effect for one in self.cluster.taints().get(device.place, ()) if one.key == self.policy.taint_key
        ]
        if isinstance(target, NodeTarget):
            foreign = self.cluster.foreign[target.node]
            effects += [Effect.read(one["effect"]) for one in foreign if one["key"] == self.policy.taint_key]
        return max((effect.rank for effect in effects), default=0)

    def is_withheld(self, record: Record, view: View, target: AnyTarget) -> None:
        """It has the weaker effect that it had, where it had it; from the Node to its device it goes all the same."""
        wanted, is_there = self.policy.effect_of(record.key.fault, target), record.target.place == target.place
        of_today = record.taint.key == self.policy.taint_key
        if isinstance(record.target, NodeTarget) and of_today:
            assert is_there
        if record.latched:
            assert record.taint.effect is not wanted or not is_there
            assert view.refusal(record.key, target, wanted) is not None

    @rule()
    def restart(self) -> None:
        """What was not to be done before is not to be done after, unless there is room of which no record tells.

        The other way round, an effect that was lowered of late looks like one that was raised.
        """
        due, used, worsened = self.due(), self.used(), self.judge.worsened()
        self.restart_on_other_terms()
        assert self.used()[0] <= used[0]
        if due:
            return
        for held in self.due():
            assert (self.used(), self.judge.worsened()) != (used, worsened)
            assert held.latched
            assert held.reason.startswith(NO_ROOM)

    def used(self) -> list[int]:
        return [self.budget.used(which, self.cluster.now) for which in Limit]

    def restart_on_other_terms(self) -> None:
        """Lost writes have landed by then or never will."""
        self.cluster.api.late.clear()
        self.cluster.api.unanswered.clear()
        out_of_force = set(self.held()) - {one.key for one in self.cluster.api.in_force()}
        self.start()
        self.judge.forget(*out_of_force)
        self.judge.starts_anew()

    @rule(
        cap=st.sampled_from([*Effect, Effect.NO_EXECUTE]),
        on_nodes=st.booleans(),
        key=st.sampled_from([TAINT_KEY, OTHER_KEY]),
        swept=st.booleans(),
    )
    def policy_changes(self, cap: Effect, on_nodes: bool, key: str, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.policy = Policy(taint_key=key, max_effect=cap, node_no_execute=on_nodes)
        self.restart_on_other_terms()
        self.seen(swept)

    @rule(choice=st.sampled_from([Choice.AUTO, *Choice]), swept=st.booleans())
    def backend_changes(self, choice: Choice, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.choice = choice
        self.restart_on_other_terms()
        self.seen(swept)

    def seen(self, swept: bool) -> None:  # noqa: FBT001 - drawn
        """A change is looked at soon; or other things happen first."""
        if swept:
            self.sweep()

    @rule(trouble=troubles, cleared=st.booleans())
    @precondition(lambda self: bool(self.held()) and self.cluster.api.served)
    def move_is_cut_short(self, trouble: Trouble, cleared: bool) -> None:  # noqa: FBT001 - drawn
        """It is there twice then."""
        on_nodes = len(self.by_rule()) < len(self.held())
        self.cluster.choice = Choice.RULES if on_nodes else Choice.NODES
        self.restart_on_other_terms()
        self.cluster.api.trouble_at_end = trouble
        self.look()
        for key in self.clearable():
            if cleared and len(self.cluster.api.copies(key)) > 1:
                self.is_cleared(key, late=False)

    def look(self) -> bool:
        """Level all records once; whether there was something to do."""
        self.judge.cause, judged = "sweep", self.judge.judged
        self.runner.run(self.leveller.sweep())
        if self.judge.broken is not None:
            raise self.judge.broken
        return judged < self.judge.judged

    @rule(
        unavailable=st.sampled_from([1, 2, 3, Share(20), Share(75), None]),
        new=st.sampled_from([1, 2, 3, None]),
    )
    def budget_changes(self, unavailable: int | Share | None, new: int | None) -> None:
        self.limits = Limits(max_unavailable=unavailable, max_new=new)
        self.restart_on_other_terms()

    @rule(trouble=troubles)
    def next_write_meets(self, trouble: Trouble) -> None:
        self.cluster.api.trouble = trouble

    @rule(data=st.data())
    @precondition(lambda self: bool(self.cluster.api.late))
    def lost_write_lands(self, data: st.DataObject) -> None:
        self.judge.cause = "hand"  # judged when it was sent
        self.cluster.api.land(data.draw(st.sampled_from(self.cluster.api.late)))

    # What happens: everybody else

    def hand(self) -> None:
        self.judge.cause = "hand"

    def by_rule(self) -> list[Record]:
        return sorted(
            (one for one in self.backend.records() if not isinstance(one.target, NodeTarget)), key=lambda one: one.key
        )

    @rule(data=st.data(), minutes=st.sampled_from([1, 30]))
    @precondition(lambda self: bool(self.cluster.api.in_force()))
    def operator_releases(self, data: st.DataObject, minutes: int) -> None:
        held = self.backend.record(data.draw(st.sampled_from(sorted(one.key for one in self.cluster.api.in_force()))))
        assert held is not None
        until = self.cluster.now + timedelta(minutes=minutes)
        self.judge.cause = "operator"
        self.cluster.put(release(held, until=until, by="alice", why="cable").record, held)

    @rule(data=st.data(), effect=st.none() | st.sampled_from(Effect))
    @precondition(lambda self: bool(self.by_rule()))
    def hand_changes_or_deletes(self, data: st.DataObject, effect: Effect | None) -> None:
        held = data.draw(st.sampled_from(self.by_rule()))
        changed = None if effect is None else replace(held, taint=replace(held.taint, effect=effect))
        self.hand()
        self.cluster.put(changed, held)
        if effect is None:
            self.judge.forget(held.key)

    @rule(
        node=nodes,
        how=st.sampled_from(
            ["taint off", "taint altered", "annotation off", "annotation broken", "annotation of another"]
        ),
        swept=st.booleans(),
    )
    def hand_meddles_with_node(self, node: str, how: Mischief, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.hand()
        lost = [*self.cluster.api.on_node(node)]
        self.cluster.meddle(node, how)
        self.judge.forget(*(key for key in lost if key not in self.cluster.api.on_node(node)))
        self.seen(swept)

    @rule(
        node=nodes,
        key=st.sampled_from([TAINT_KEY, TAINT_KEY, OTHER_KEY]),
        effect=st.sampled_from([None, "PreferNoSchedule", "NoSchedule", "NoExecute"]),
        swept=st.booleans(),
    )
    def others_taint_node(self, node: str, key: str, effect: str | None, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.hand()
        self.cluster.node_taint(node, key, effect)
        self.seen(swept)

    @rule(node=nodes)
    def kubelet_tells_of_node(self, node: str) -> None:
        self.cluster.heartbeat(node)

    @rule(swept=st.booleans())
    @precondition(lambda self: not self.cluster.api.served)
    def rules_are_served(self, swept: bool) -> None:  # noqa: FBT001 - drawn
        """With all that were stored when they were last."""
        self.cluster.serve(True)
        self.seen(swept)

    @rule(
        swept=st.booleans(),
        then=st.sampled_from(["nothing", "they fire", "they latch", "another machine"]),
        back=st.booleans(),
    )
    @precondition(lambda self: self.cluster.api.served)
    def rules_are_served_no_more(self, swept: bool, then: str, back: bool) -> None:  # noqa: FBT001 - drawn
        """What was on rules is out of force, and the faults that nothing holds then fire soon.

        While one API server of several is ahead of the others, rules come and go.
        """
        free = [one.key for one in self.by_rule()]
        self.cluster.serve(False)
        self.seen(swept)
        if then == "another machine" and free:
            self.node_is_recycled(free[0].node)
        for key in free:
            if then == "they latch":
                self.latch(key)
            elif then != "nothing":
                self.fault_fires(key, "new", late=False)
        if back:
            self.rules_are_served(swept)

    @rule(node=nodes)
    def node_is_recycled(self, node: str) -> None:
        self.hand()
        self.cluster.recycle(node)
        for key in KEYS:
            if key.node == node:
                self.present.pop(key, None)
                self.judge.forget(key)

    @rule()
    def garbage_is_collected(self) -> None:
        self.judge.cause = "garbage collector"
        for record in self.by_rule():
            if record.node_uid != self.cluster.api.node(record.key.node).metadata.uid:
                self.cluster.put(None, record)

    @rule(node=nodes, out=st.booleans(), swept=st.booleans())
    def opt_out(self, node: str, out: bool, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.hand()
        self.cluster.opt_out(node, out=out)
        self.seen(swept)

    @rule(
        place=st.sampled_from(PLACES),
        effect=st.sampled_from([None, *Effect]),
        key=st.sampled_from([TAINT_KEY, OTHER_KEY]),
        swept=st.booleans(),
    )
    def driver_taints(self, place: Place, effect: Effect | None, key: str, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.driver_taint(place, effect, key)
        self.seen(swept)

    @rule(node=nodes, shape=shapes, swept=st.booleans())
    def slices_change(self, node: str, shape: Shape, swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.slice(node, shape)
        self.seen(swept)

    @rule(node=nodes, claimed=st.sets(st.sampled_from(DEVICE_NAMES), max_size=2), swept=st.booleans())
    def claims_change(self, node: str, claimed: set[str], swept: bool) -> None:  # noqa: FBT001 - drawn
        self.cluster.claimed[node] = tuple(sorted(claimed))
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
        assert self.budget.used(Limit.UNAVAILABLE, self.cluster.now) >= len(self.judge.exposed())

    @invariant()
    def what_others_put_on_nodes_stays(self) -> None:
        self.judge.judge_foreign()

    @invariant()
    def a_fault_that_is_there_and_was_told_is_held(self) -> None:
        """Whatever was cleared, repeated, reordered or restarted meanwhile. Starts from the future aside."""
        for key, started in self.present.items():
            if self.judge.taken_in.get(key, NEVER) == started:
                held = self.backend.record(key)
                assert held is not None, key
                assert held.last_fired >= started


def test_no_sequence_of_events_breaks_an_invariant() -> None:
    DecisionMachine.executed.clear()
    run_state_machine_as_test(DecisionMachine, settings=MACHINE)

    assert DecisionMachine.executed["steps"] >= STEPS_AT_LEAST


# Order and number


@dataclass(frozen=True)
class Around:
    """What surrounds the firings, and stays as it is meanwhile."""

    choice: Choice
    served: bool
    listed: tuple[Shape, Shape]
    on_nodes: bool
    more: list[tuple[str, bool, Place, Effect, str | None]]


def end_of(messages: Iterable[Fired], around: Around) -> tuple[set[Record], list[list[Json]]]:
    """The records and taints that firings leave, budget aside, but for what tells one write from another."""
    machine = DecisionMachine()
    machine.limits = Limits(max_unavailable=None, max_new=None)
    machine.policy = Policy(taint_key=TAINT_KEY, node_no_execute=around.on_nodes)
    cluster = machine.cluster
    cluster.choice, cluster.api.served = around.choice, around.served
    for node, shape in zip(NODES, around.listed, strict=True):
        cluster.slice(node, shape)
    for node, out, place, effect, theirs in around.more:
        cluster.opt_out(node, out=out)
        cluster.driver_taint(place, effect)
        cluster.node_taint(node, TAINT_KEY, theirs)
    machine.start()
    for message in messages:
        machine.deliver(message)
    machine.teardown()
    records = {replace(one, stored=None, tainted_since=NEVER) for one in machine.backend.records()}
    return records, [[{**one, "timeAdded": ""} for one in cluster.taints_on(node)] for node in NODES]


past_firings = st.builds(
    Fired,
    key=st.sampled_from(KEYS[2:7]),
    started=st.integers(0, 5).map(lambda minutes: NOW - timedelta(minutes=minutes)),
    latched=st.booleans(),
)
surroundings = st.builds(
    Around,
    choice=st.sampled_from(Choice),
    served=st.booleans(),
    listed=st.tuples(shapes, shapes),
    on_nodes=st.booleans(),
    more=st.lists(
        st.tuples(
            nodes,
            st.booleans(),
            st.sampled_from(PLACES),
            st.sampled_from(Effect),
            st.sampled_from([None, "NoSchedule", "NoExecute"]),
        ),
        max_size=3,
    ),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(some=st.lists(past_firings, min_size=1, max_size=8), around=surroundings, data=st.data())
def test_the_same_firings_in_any_order_and_number_end_the_same(
    some: list[Fired], around: Around, data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(some), max_size=8))
    shuffled = data.draw(st.permutations(some + again))

    assert end_of(shuffled, around) == end_of(some, around)
