"""Deciding: what is done about a firing or a clear, and what no sequence of them may ever bring about."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
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
)
from remediator.inventory import Target
from remediator.records import NEVER, Key, Record, State, Stored, episode_of
from tests.remediator.samples import DRIVER, NODE, NOW, STARTED, TAINT_KEY, fired, node, record
from tests.remediator.strategies import faults, firings, records, starts, targets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from remediator.inventory import Node

TARGET = Target(DRIVER, NODE, "neuron-device-3")
STORED = Stored("neuron-health.x", "rule-uid", "7")
EPISODE = episode_of(STARTED)


# What is done about a firing


def answer(
    firing: Fired,
    held: Record | None,
    *,
    on: Node | None = None,
    target: Target = TARGET,
    now: datetime = NOW,
) -> Action | Outcome:
    return decide_fired(firing, node=on or node(), record=held, target=target, taint_key=TAINT_KEY, now=now)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_first_firing_makes_exactly_the_record_of_the_fault_table(fault: str) -> None:
    made = answer(fired(fault), None)

    assert made == Create(record(fault))
    assert isinstance(made, Create)
    assert (made.record.taint.value, made.record.taint.effect) == (FAULTS[fault].value, FAULTS[fault].effect)
    assert made.record.latched is FAULTS[fault].latched
    assert made.record.stored is None


def test_a_node_that_is_not_there_gets_no_record() -> None:
    absent = decide_fired(fired(), node=None, record=None, target=TARGET, taint_key=TAINT_KEY, now=NOW)

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


def test_an_effect_that_a_hand_has_strengthened_stays() -> None:
    standing = record("link_efa", stored=STORED)
    strengthened = replace(standing, taint=replace(standing.taint, effect=Effect.NO_EXECUTE))

    assert answer(fired("link_efa"), strengthened) is Outcome.UNCHANGED


@pytest.mark.parametrize("state", [State.RELEASED, State.OPTED_OUT, State.COVERED])
def test_somebody_elses_word_stands_above_a_firing(state: State) -> None:
    lifted = record("link_efa", state=state, stored=STORED)
    lifted = replace(lifted, taint=replace(lifted.taint, effect=Effect.NONE))
    newer = STARTED + timedelta(seconds=1)

    taken_in = replace(lifted, episode=episode_of(newer), last_fired=newer)
    assert answer(fired("link_efa"), lifted) is Outcome.UNCHANGED
    assert answer(fired("link_efa", started=newer), lifted) == Update(taken_in)
    assert answer(fired("link_efa", started=newer, latched=True), lifted) == Update(replace(taken_in, latched=True))


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

    assert answer(fired(), record(stored=STORED), target=moved) == Update(record(stored=STORED, target=moved))


def test_a_slice_that_is_gone_moves_nothing() -> None:
    """The kubelet wipes the slices of its node at every start (dra-driver-nvidia-gpu#330)."""
    placed = record(stored=STORED, target=Target(DRIVER, "pool-2", "neuron-node"))
    convention = Target(DRIVER, NODE, "neuron-device-3", placed=False)

    assert answer(fired(), placed, target=convention) is Outcome.UNCHANGED


def test_a_guess_takes_the_place_of_what_is_no_target_at_all() -> None:
    """Without a slice, a selector that a hand has emptied is mended by the driver's naming convention."""
    emptied = record(stored=STORED, state=State.WITHHELD, target=Target(DRIVER, "?", "?", placed=False))
    convention = Target(DRIVER, NODE, "neuron-device-3", placed=False)

    assert answer(fired(), emptied, target=convention) == Update(record(stored=STORED, target=convention))


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


def end_of(sequence: Sequence[Fired | Cleared], held: Record | None = None) -> Record | None:
    for one in sequence:
        decided = answer(one, held) if isinstance(one, Fired) else decide_cleared(one, record=held)
        held = after(decided, held)
    return held


@given(st.data(), faults)
def test_the_same_firings_in_any_order_and_number_end_the_same(data: st.DataObject, fault: str) -> None:
    some = data.draw(st.lists(firings(fault), min_size=1, max_size=6))
    again = data.draw(st.lists(st.sampled_from(some), max_size=6))
    shuffled = data.draw(st.permutations(some + again))

    assert end_of(shuffled) == end_of(some)


@given(faults.flatmap(firings), records(started=starts), targets)
def test_a_firing_never_weakens_anything(firing: Fired, held: Record, target: Target) -> None:
    held = replace(held, key=firing.key, node_uid="uid-1")
    taken_in = after(answer(firing, held, target=target), held)

    assert taken_in is not None
    assert taken_in.taint.effect.rank >= held.taint.effect.rank
    assert taken_in.latched >= held.latched
    assert taken_in.last_fired >= held.last_fired
    assert taken_in.first_fired <= held.first_fired
    assert (taken_in.key, taken_in.node_uid, taken_in.stored) == (held.key, held.node_uid, held.stored)


@given(faults.flatmap(firings), records(started=starts))
def test_a_firing_decided_twice_is_carried_out_once(firing: Fired, held: Record) -> None:
    held = replace(held, key=firing.key, node_uid="uid-1")
    taken_in = after(answer(firing, held), held)

    assert answer(firing, taken_in) is Outcome.UNCHANGED


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
