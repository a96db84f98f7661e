"""Deciding: what is done about a firing or a clear, and what no sequence of them may ever bring about."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
from remediator.budget import Limit
from remediator.decide import (
    YOUNG_NODE,
    Action,
    Cleared,
    Create,
    Delete,
    Fired,
    Outcome,
    Replace,
    Update,
    decide_cleared,
    decide_fired,
    release,
    relevel,
    standing,
)
from remediator.records import EMPTIED, NEVER, Key, Record, State, Stored, episode_of
from remediator.rule_records import to_object
from remediator.targets import Target
from tests.remediator.samples import DRIVER, NODE, NOW, STARTED, fired, node, record, view
from tests.remediator.strategies import faults, firings, records, starts, views

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from remediator.inventory import Node
    from remediator.level import View

STORED = Stored("neuron-health.x", "rule-uid", "7")
EPISODE = episode_of(STARTED)


# What is done about a firing


def answer(firing: Fired, held: Record | None, *, on: Node | None = None, seen: View | None = None) -> Action | Outcome:
    return decide_fired(firing, node=on or node(), record=held, view=seen or view())


def released(held: Record, until: datetime) -> Record:
    """The record after an operator has released it."""
    return release(held, until=until, by="alice@example.com", why="swapped the cable").record


@pytest.mark.parametrize("fault", FAULTS)
def test_a_first_firing_makes_exactly_the_record_of_the_fault_table(fault: str) -> None:
    made = answer(fired(fault), None)

    assert made == Create(record(fault))
    assert isinstance(made, Create)
    assert (made.record.taint.value, made.record.taint.effect) == (FAULTS[fault].value, FAULTS[fault].effect)
    assert made.record.latched is FAULTS[fault].latched
    assert made.record.stored is None


def test_a_node_that_is_not_there_gets_no_record() -> None:
    absent = decide_fired(fired(), node=None, record=None, view=view())

    assert absent is Outcome.IGNORED_UNKNOWN_NODE


def test_the_same_firing_again_changes_nothing() -> None:
    assert answer(fired(), record(stored=STORED)) is Outcome.UNCHANGED


def test_an_older_firing_changes_no_spell() -> None:
    older = STARTED - timedelta(seconds=30)
    taken_in = answer(fired(started=older), record(stored=STORED))

    assert taken_in == Update(replace(record(stored=STORED), first_fired=older))


def test_a_newer_firing_is_a_new_spell_of_the_same_record() -> None:
    newer = STARTED + timedelta(microseconds=1)
    taken_in = answer(fired(started=newer), record(stored=STORED))

    assert taken_in == Update(replace(record(stored=STORED), last_fired=newer, episode=episode_of(newer)))
    assert episode_of(newer) != EPISODE


def test_a_latch_alert_sets_the_sticky_mark_and_makes_the_record_if_need_be() -> None:
    latch = fired("link_efa", latched=True)

    assert answer(latch, None) == Create(record("link_efa", latched=True))
    assert answer(latch, record("link_efa")) == Update(record("link_efa", latched=True))


def test_an_effect_that_a_hand_has_weakened_is_raised_again() -> None:
    standing = record(stored=STORED)
    weakened = replace(standing, taint=replace(standing.taint, effect=Effect.NONE), state=State.WITHHELD)

    assert answer(fired(), weakened) == Update(standing)


def test_an_effect_that_a_hand_has_strengthened_is_lowered_again() -> None:
    intact = record("link_efa", stored=STORED)
    strengthened = replace(intact, taint=replace(intact.taint, effect=Effect.NO_EXECUTE))

    assert answer(fired("link_efa"), strengthened) == Update(intact)


OTHERS_WORD = [
    pytest.param(State.OPTED_OUT, view(opted_out=True), id="opted-out"),
    pytest.param(State.COVERED, view(driver=Effect.NO_SCHEDULE), id="covered"),
    pytest.param(State.RELEASED, view(), id="released"),
]


def under_others_word(state: State, seen: View) -> Record:
    if state is State.RELEASED:
        return released(record("link_efa", stored=STORED), NOW + timedelta(hours=1))
    settled = relevel(record("link_efa", stored=STORED), node=node(), view=seen)
    assert settled is not None
    return settled.record


@pytest.mark.parametrize(("state", "seen"), OTHERS_WORD)
def test_somebody_elses_word_stands_above_a_firing(state: State, seen: View) -> None:
    held = under_others_word(state, seen)
    newer = STARTED + timedelta(seconds=1)

    taken_in = replace(held, episode=episode_of(newer), last_fired=newer)
    assert (held.state, held.taint.effect) == (state, Effect.NONE)
    assert answer(fired("link_efa"), held, seen=seen) is standing(held, Outcome.APPLIED)
    assert answer(fired("link_efa", started=newer), held, seen=seen) == Update(taken_in)


@pytest.mark.parametrize(("state", "seen"), OTHERS_WORD)
def test_only_an_operator_stands_above_the_sticky_mark(state: State, seen: View) -> None:
    held = under_others_word(state, seen)
    latched = answer(fired("link_efa", latched=True), held, seen=seen)

    if state is State.RELEASED:
        assert latched is Outcome.RELEASED
    else:
        assert latched == Update(replace(held, latched=True))


@pytest.mark.parametrize(
    ("seen", "state", "outcome"),
    [
        pytest.param(view(refusal=Limit.NEW), State.WITHHELD, Outcome.WITHHELD, id="no-room"),
        pytest.param(view(opted_out=True), State.OPTED_OUT, Outcome.OPTED_OUT, id="opted-out"),
        pytest.param(view(driver=Effect.NO_EXECUTE), State.COVERED, Outcome.COVERED, id="covered"),
        pytest.param(view(max_effect=Effect.NONE), State.ACTIVE, Outcome.APPLIED, id="preview"),
    ],
)
def test_a_first_firing_makes_the_record_also_where_it_may_do_nothing(
    seen: View, state: State, outcome: Outcome
) -> None:
    """What is held must be seen to be held, or the rules would ask for a firing for ever."""
    made = answer(fired(), None, seen=seen)

    assert isinstance(made, Create)
    assert (made.record.state, made.record.taint.effect) == (state, Effect.NONE)
    assert (made.record.episode, made.record.latched) == (EPISODE, True)
    assert standing(made.record, Outcome.APPLIED) is outcome
    again = answer(fired(), replace(made.record, stored=STORED), seen=seen)
    assert again is (Outcome.UNCHANGED if outcome is Outcome.APPLIED else outcome)


# Release, by an operator's word


@pytest.mark.parametrize("fault", FAULTS)
def test_a_release_takes_effect_and_latch_off_and_a_clear_then_removes_it(fault: str) -> None:
    lifted = released(record(fault, stored=STORED), NOW + timedelta(hours=1))

    assert (lifted.taint.effect, lifted.latched, lifted.state) == (Effect.NONE, False, State.RELEASED)
    assert (lifted.released_by, lifted.reason) == ("alice@example.com", "swapped the cable")
    assert decide_cleared(Cleared(lifted.key, EPISODE), record=lifted) == Delete(lifted)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_release_that_ends_is_withheld_until_a_firing_comes(fault: str) -> None:
    until = NOW + timedelta(hours=1)
    lifted = released(record(fault, stored=STORED), until)
    at_the_end = view(now=until)

    assert relevel(lifted, node=node(), view=view(now=until - timedelta(microseconds=1))) is None
    ended = relevel(lifted, node=node(), view=at_the_end)
    assert ended is not None
    assert (ended.record.state, ended.record.taint.effect) == (State.WITHHELD, Effect.NONE)
    assert (ended.record.released_until, ended.record.released_by, ended.record.latched) == (NEVER, "", False)
    # A table-latched fault is latched again by its firing.
    assert answer(fired(fault), ended.record, seen=at_the_end) == Update(record(fault, stored=STORED))
    assert answer(fired(fault), lifted, seen=at_the_end) == Update(record(fault, stored=STORED))


def test_a_late_copy_from_a_sender_ahead_does_not_bring_an_old_episode_back() -> None:
    """Proof about the first spell is still about; named by it again, the record would be cleared in the second."""
    first, second = NOW + timedelta(hours=1), NOW + timedelta(hours=1, minutes=5)
    held = record("link_efa", started=second, stored=STORED)
    late = answer(fired("link_efa", started=first), held)

    assert isinstance(late, Update)
    assert late.record.episode == held.episode
    assert late.record.first_fired == first


def test_a_start_from_the_future_yields_to_a_true_one() -> None:
    """A hand or a wrong clock put it there: every firing would look old, and no new spell would get a name."""
    held = record("link_efa", started=NOW + timedelta(days=365), stored=STORED)
    true = answer(fired("link_efa"), held)

    assert isinstance(true, Update)
    assert (true.record.last_fired, true.record.episode) == (STARTED, episode_of(STARTED))


def test_what_has_no_readable_time_gets_one() -> None:
    damaged = replace(record("link_efa", stored=STORED), first_fired=NEVER, last_fired=NEVER)

    assert answer(fired("link_efa"), damaged) == Update(record("link_efa", stored=STORED))


def test_a_slice_that_moved_the_device_moves_the_record() -> None:
    moved = Target(DRIVER, "pool-2", "neuron-node")

    assert answer(fired(), record(stored=STORED), seen=view(target=moved)) == Update(
        record(stored=STORED, target=moved)
    )


def test_a_slice_that_is_gone_moves_nothing() -> None:
    """The kubelet wipes the slices of its node at every start (dra-driver-nvidia-gpu#330)."""
    placed = record(stored=STORED, target=Target(DRIVER, "pool-2", "neuron-node"))
    convention = Target(DRIVER, NODE, "neuron-device-3", placed=False)

    assert answer(fired(), placed, seen=view(target=convention)) is Outcome.UNCHANGED


def test_a_guess_takes_the_place_of_what_is_no_target_at_all() -> None:
    """Without a slice, a selector that a hand has emptied is mended by the driver's naming convention."""
    emptied = record(stored=STORED, state=State.WITHHELD, target=Target(DRIVER, "?", "?", placed=False))
    convention = Target(DRIVER, NODE, "neuron-device-3", placed=False)

    assert answer(fired(), emptied, seen=view(target=convention)) == Update(record(stored=STORED, target=convention))


def test_a_record_of_the_machine_before_is_replaced_never_written_over() -> None:
    """Applied over, the rule would keep the time at which the old machine was tainted."""
    void = record("link_efa", node_uid="uid-0", latched=True, stored=STORED)
    replaced = answer(fired("link_efa"), void)

    assert replaced == Replace(void, record("link_efa"))
    assert isinstance(replaced, Replace)
    assert not replaced.record.latched
    assert replaced.record.stored is None


@pytest.mark.parametrize(
    ("age", "started_before", "heard"),
    [
        (timedelta(minutes=1), timedelta(seconds=1), False),
        (YOUNG_NODE - timedelta(seconds=1), timedelta(days=3), False),
        (timedelta(minutes=1), timedelta(0), True),
        (timedelta(minutes=1), timedelta(seconds=-30), True),
        (YOUNG_NODE, timedelta(seconds=1), True),
        (timedelta(days=300), timedelta(days=1), True),
        (timedelta(seconds=-20), timedelta(seconds=1), False),
    ],
)
def test_an_alert_older_than_a_young_node_speaks_of_the_machine_before(
    age: timedelta, started_before: timedelta, *, heard: bool
) -> None:
    """A negative age is an API server whose clock is ahead of ours."""
    created = NOW - age
    firing = fired(started=created - started_before)
    young = node(created=created)

    for held in (None, record(node_uid="uid-0", stored=STORED), record(stored=STORED)):
        ignored = answer(firing, held, on=young) is Outcome.IGNORED_BEFORE_NODE
        assert ignored is not heard


# What is done about a clear


@pytest.mark.parametrize(
    ("held", "episode", "decision"),
    [
        pytest.param(None, EPISODE, Outcome.IGNORED_NO_RECORD, id="nothing-there"),
        pytest.param(record(stored=STORED), EPISODE, Outcome.IGNORED_LATCHED, id="latched-by-the-table"),
        pytest.param(record("link_efa", latched=True), EPISODE, Outcome.IGNORED_LATCHED, id="latched-by-the-source"),
        pytest.param(record("link_efa"), "other", Outcome.IGNORED_STALE_EPISODE, id="another-spell"),
        pytest.param(record("link_efa"), EPISODE.upper(), Outcome.IGNORED_STALE_EPISODE, id="spelled-otherwise"),
        pytest.param(
            record("link_efa", stored=STORED), EPISODE, Delete(record("link_efa", stored=STORED)), id="the-very-spell"
        ),
    ],
)
def test_only_the_very_spell_is_cleared(held: Record | None, episode: str, decision: Action | Outcome) -> None:
    assert decide_cleared(Cleared(Key(NODE, 3, "link_efa"), episode), record=held) == decision


# What no sequence may bring about


def after(decision: Action | Outcome, held: Record | None) -> Record | None:
    """The record that is there once a decision is carried out."""
    match decision:
        case Create(made) | Update(made) | Replace(_, made):
            return made
        case Delete():
            return None
        case _:
            return held


def end_of(sequence: Sequence[Fired | Cleared], *, seen: View | None = None) -> Record | None:
    held: Record | None = None
    for one in sequence:
        decided = answer(one, held, seen=seen) if isinstance(one, Fired) else decide_cleared(one, record=held)
        held = after(decided, held)
    return held


@given(st.data(), faults)
def test_the_same_firings_in_any_order_and_number_end_the_same(data: st.DataObject, fault: str) -> None:
    """Starts from the future aside: those have no order that two clocks agree on."""
    some = data.draw(st.lists(firings(fault), min_size=1, max_size=6))
    again = data.draw(st.lists(st.sampled_from(some), max_size=6))
    shuffled = data.draw(st.permutations(some + again))
    seen = data.draw(views.filter(lambda one: one.refusal(some[0].key, one.target, Effect.NO_EXECUTE) is None))

    assert end_of(shuffled, seen=seen) == end_of(some, seen=seen)


@given(faults.flatmap(firings), records(started=starts), views)
def test_a_firing_takes_nothing_back(firing: Fired, held: Record, seen: View) -> None:
    """What it does to the effect is `remediator.level`'s."""
    held = replace(held, key=firing.key, node_uid="uid-1")
    taken_in = after(answer(firing, held, seen=seen), held)

    assert taken_in is not None
    assert taken_in.latched >= held.latched
    assert taken_in.last_fired >= held.last_fired
    assert taken_in.first_fired <= held.first_fired
    assert (taken_in.key, taken_in.node_uid, taken_in.stored) == (held.key, held.node_uid, held.stored)


@given(faults.flatmap(firings), records(started=starts), views)
def test_a_firing_decided_twice_is_carried_out_once(firing: Fired, held: Record, seen: View) -> None:
    held = replace(held, key=firing.key, node_uid="uid-1")
    taken_in = after(answer(firing, held, seen=seen), held)

    assert taken_in is not None
    assert answer(firing, taken_in, seen=seen) is standing(taken_in, Outcome.UNCHANGED)


@given(records(started=starts), starts | st.just(NOW))
def test_a_clear_removes_at_most_its_own_spell(held: Record, spell: datetime) -> None:
    decided = decide_cleared(Cleared(held.key, episode_of(spell)), record=held)

    assert (decided == Delete(held)) == (not held.latched and spell == held.last_fired)


@given(st.lists(starts, min_size=1, max_size=5), st.data())
def test_clears_of_earlier_spells_never_remove_the_newest_whatever_the_order(
    spells: list[datetime], data: st.DataObject
) -> None:
    """A cancel of an old recovery must not cancel a fresh fault (NVSentinel#1451)."""
    newest = max(spells)
    key = Key(NODE, 3, "link_efa")
    late = [Cleared(key, episode_of(spell)) for spell in spells if spell != newest]
    inputs = [fired("link_efa", started=spell) for spell in spells]
    end = end_of(data.draw(st.permutations([*inputs, *late])))

    assert end is not None
    # An older firing may come last, after its own clear: the record stands all the same.
    assert end.taint.effect is FAULTS["link_efa"].effect
    assert end.last_fired == newest


@given(records(started=starts), starts)
def test_a_void_record_is_replaced_never_updated(held: Record, started: datetime) -> None:
    held = replace(held, node_uid="uid-of-the-machine-before", stored=STORED)
    decided = answer(replace(fired(started=started), key=held.key), held)

    assert isinstance(decided, Replace)
    assert decided.void == held
    assert decided.record.node_uid == "uid-1"
    assert decided.record.stored is None


# Bringing records up to what surrounds them


@given(records(started=starts), views)
def test_without_a_firing_nothing_is_said_of_the_fault_itself(held: Record, seen: View) -> None:
    held = replace(held, node_uid="uid-1")
    settled = relevel(held, node=node(), view=seen)

    if settled is not None:
        said = ("key", "node_uid", "latched", "episode", "first_fired", "last_fired", "stored")
        assert [getattr(settled.record, name) for name in said] == [getattr(held, name) for name in said]
        assert settled.record != held
        assert relevel(settled.record, node=node(), view=seen) is None


@given(records(started=starts), views)
def test_a_record_that_no_node_of_today_answers_for_is_left_alone(held: Record, seen: View) -> None:
    assert relevel(held, node=None, view=seen) is None
    assert relevel(held, node=node(uid="another"), view=seen) is None


@given(records(started=starts), views)
def test_a_record_of_a_fault_that_the_table_does_not_have_is_left_alone(held: Record, seen: View) -> None:
    foreign = replace(held, key=replace(held.key, fault="tensor_core"), node_uid="uid-1")

    assert relevel(foreign, node=node(), view=seen) is None


@pytest.mark.parametrize("held", [record(), record("link_efa"), record(node_uid="another")])
def test_a_rule_whose_end_a_finalizer_holds_up_is_left_alone(held: Record) -> None:
    """Whatever is written to it changes nothing: it would be written at every look, for ever."""
    ending = replace(held, ending=True, state=State.WITHHELD, target=replace(held.target, placed=False), stored=STORED)

    assert decide_fired(fired(held.key.fault), node=node(), record=ending, view=view()) is Outcome.WITHHELD
    assert relevel(ending, node=node(), view=view()) is None


@pytest.mark.parametrize("why", ["void", "no-node", "no-uid", "unknown-fault"])
def test_a_rule_that_taints_every_device_is_lowered_whatever_else_is_wrong_with_it(why: str) -> None:
    """A hand has emptied its selector: left alone, it keeps work off the whole cluster, or evicts it."""
    fault = "link_optical" if why == "unknown-fault" else "hbm"
    emptied = Target(DRIVER, EMPTIED, EMPTIED, placed=False)
    sample = record("hbm", stored=STORED)
    held = replace(sample, key=replace(sample.key, fault=fault), target=emptied)
    held = replace(held, node_uid={"void": "of-another", "no-uid": ""}.get(why, held.node_uid))
    update = relevel(held, node=None if why == "no-node" else node(), view=view())

    assert isinstance(update, Update)
    after = update.record
    assert (after.taint.effect, after.state, after.target) == (Effect.NONE, State.WITHHELD, view().target)
    written = to_object(after, "resource.k8s.io/v1")
    assert all(written["spec"]["deviceSelector"].values())
    assert ("ownerReferences" in written["metadata"]) is (why != "no-uid"), "an owner without a UID is refused"
