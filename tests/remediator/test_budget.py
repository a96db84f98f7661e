"""The budget: what it counts, what it refuses, and that no order of writes and answers lets it be exceeded."""

# ruff: noqa: D102 - the names of rules and invariants say what happens and what must hold

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alerts.faults import Effect
from remediator.budget import DEFAULT, LANDED_BY, WINDOW, Budget, Limit, Limits, Share
from remediator.records import NEVER, Key, Record
from remediator.targets import Place, Target
from tests.remediator.samples import DRIVER, NODE, NOW, record

NONE, NO_SCHEDULE, NO_EXECUTE = Effect
A, B, C = (Place(NODE, f"neuron-device-{index}") for index in range(3))
INSTANT = timedelta(microseconds=1)


@dataclass
class Fleet:
    """Places, and what the driver itself keeps work off."""

    count: int = 100
    driver: set[Place] = field(default_factory=set)

    def targets(self) -> int:
        """How many there are."""
        return self.count

    def unavailable(self) -> set[Place]:
        """Where the driver keeps work off."""
        return self.driver


def key(index: int) -> Key:
    return Key(NODE, index, "hbm")


def standing(which: Key, place: Place, effect: Effect = NO_EXECUTE, *, since: datetime = NOW) -> Record:
    """A record as the cluster holds it."""
    sample = record(target=Target(DRIVER, *place))
    return replace(sample, key=which, taint=replace(sample.taint, effect=effect), tainted_since=since)


def used(budget: Budget, now: datetime = NOW) -> tuple[int, int]:
    return budget.used(Limit.UNAVAILABLE, now), budget.used(Limit.NEW, now)


def write(budget: Budget, which: Key, place: Place, effect: Effect = NO_EXECUTE, now: datetime = NOW) -> Record:
    """A write of a new record, reserved, landed and acknowledged."""
    after = standing(which, place, effect, since=now)
    budget.reserve(which, place, effect, now)
    budget.changed(None, after)
    budget.written(which)
    return after


# Limits


@pytest.mark.parametrize(
    ("percent", "targets", "most"),
    [(20, 0, 1), (20, 1, 1), (20, 4, 1), (20, 9, 1), (20, 10, 2), (20, 160, 32), (0, 160, 1), (100, 7, 7), (50, 7, 3)],
)
def test_a_share_is_rounded_down_but_is_one_at_least(percent: int, targets: int, most: int) -> None:
    assert Budget(Limits(max_unavailable=Share(percent)), Fleet(targets)).limit(Limit.UNAVAILABLE) == most


def test_limits_are_what_the_operator_says() -> None:
    lifted = Budget(Limits(max_unavailable=None, max_new=None), Fleet())
    fixed = Budget(Limits(max_unavailable=7, max_new=3), Fleet())

    assert [lifted.limit(which) for which in Limit] == [None, None]
    assert [fixed.limit(which) for which in Limit] == [7, 3]
    assert (DEFAULT.max_unavailable, DEFAULT.max_new) == (Share(20), 10)


# What is refused


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (Limits(max_unavailable=1, max_new=None), Limit.UNAVAILABLE),
        (Limits(max_unavailable=Share(1), max_new=None), Limit.UNAVAILABLE),
        (Limits(max_unavailable=None, max_new=1), Limit.NEW),
        (Limits(max_unavailable=2, max_new=1), Limit.NEW),
        (Limits(max_unavailable=1, max_new=1), Limit.UNAVAILABLE),
        (Limits(max_unavailable=2, max_new=2), None),
        (Limits(max_unavailable=None, max_new=None), None),
    ],
)
def test_a_second_place_needs_room_in_both_limits(limits: Limits, refusal: Limit | None) -> None:
    budget = Budget(limits, Fleet())
    write(budget, key(0), A)

    assert budget.refusal(key(1), B, NO_SCHEDULE, NOW) is refusal


@pytest.mark.parametrize("limits", [Limits(max_unavailable=0, max_new=0), Limits(max_unavailable=1, max_new=1)])
def test_what_disrupts_nobody_further_needs_no_room(limits: Limits) -> None:
    budget = Budget(limits, Fleet())
    write(budget, key(0), A)

    assert budget.refusal(key(1), A, NO_EXECUTE, NOW) is None
    assert budget.refusal(key(0), A, NO_SCHEDULE, NOW) is None
    assert budget.refusal(key(1), B, NONE, NOW) is None


def test_from_no_schedule_to_no_execute_disturbs_anew() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=1), Fleet())
    write(budget, key(0), A, NO_SCHEDULE)

    assert budget.refusal(key(0), A, NO_EXECUTE, NOW) is None  # it is one of the newly disrupted already
    assert budget.refusal(key(0), A, NO_EXECUTE, NOW + WINDOW) is None
    write(budget, key(1), B, NO_SCHEDULE, NOW + WINDOW)
    assert budget.refusal(key(0), A, NO_EXECUTE, NOW + WINDOW) is Limit.NEW


def test_what_the_driver_keeps_work_off_counts_once_and_costs_nothing_more() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=5), Fleet(driver={A}))

    assert used(budget) == (1, 0)
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is Limit.UNAVAILABLE
    assert budget.refusal(key(0), A, NO_EXECUTE, NOW) is None
    write(budget, key(0), A)
    assert used(budget) == (1, 1)


def test_a_record_that_moves_leaves_a_place_only_if_it_was_alone_on_it() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=None), Fleet())
    write(budget, key(0), A)

    assert budget.refusal(key(0), B, NO_EXECUTE, NOW) is None
    write(budget, key(1), A)
    assert budget.refusal(key(0), B, NO_EXECUTE, NOW) is Limit.UNAVAILABLE


@pytest.mark.parametrize(("age", "refusal"), [(WINDOW - INSTANT, Limit.NEW), (WINDOW, None)])
def test_newly_disrupted_places_are_new_for_ten_minutes(age: timedelta, refusal: Limit | None) -> None:
    budget = Budget(Limits(max_unavailable=None, max_new=1), Fleet())
    write(budget, key(0), A)

    assert budget.refusal(key(1), B, NO_EXECUTE, NOW + age) is refusal


def test_a_place_that_was_freed_stays_newly_disrupted() -> None:
    """Else a flapping fleet would be drained ten at a time, without end."""
    budget = Budget(Limits(max_unavailable=None, max_new=1), Fleet())
    budget.changed(write(budget, key(0), A), None)

    assert used(budget) == (0, 1)
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is Limit.NEW
    assert budget.refusal(key(1), A, NO_EXECUTE, NOW) is None


def test_lowering_is_not_newly_disrupting() -> None:
    """The server sets a taint's time anew at each change of its effect, also of a cap lowered for a whole fleet."""
    budget = Budget(Limits(max_unavailable=None, max_new=1), Fleet())
    before = write(budget, key(0), A, NO_EXECUTE, NOW - 2 * WINDOW)
    budget.reserve(key(0), A, NO_SCHEDULE, NOW)
    budget.changed(before, standing(key(0), A, NO_SCHEDULE, since=NOW))
    budget.written(key(0))

    assert used(budget) == (1, 0)
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is None


def test_times_of_a_server_that_is_ahead_count_from_when_they_are_seen() -> None:
    budget = Budget(Limits(max_unavailable=None, max_new=1), Fleet())
    budget.changed(None, standing(key(0), A, since=NOW + timedelta(days=1)))

    assert used(budget) == (1, 1)
    assert used(budget, NOW + WINDOW) == (1, 0)


# Writes under way, and their answers


def test_a_raise_counts_before_it_is_written() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=1), Fleet())
    budget.reserve(key(0), A, NO_EXECUTE, NOW)

    assert used(budget) == (1, 1)
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is Limit.UNAVAILABLE


def test_what_was_certainly_not_written_is_free_again() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=1), Fleet())
    budget.reserve(key(0), A, NO_EXECUTE, NOW)
    budget.refused(key(0))

    assert used(budget) == (0, 0)
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is None


def test_a_refused_second_raise_leaves_the_time_of_the_first() -> None:
    budget = Budget(Limits(max_unavailable=None, max_new=5), Fleet())
    budget.changed(write(budget, key(0), A), None)
    later = NOW + timedelta(minutes=9)
    budget.reserve(key(0), A, NO_EXECUTE, later)
    budget.refused(key(0))

    assert used(budget, later) == (0, 1)
    assert used(budget, NOW + WINDOW) == (0, 0)


@pytest.mark.parametrize(("age", "count"), [(LANDED_BY - INSTANT, 1), (LANDED_BY, 0)])
def test_a_raise_whose_answer_was_lost_counts_until_it_can_have_landed_no_more(age: timedelta, count: int) -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=None), Fleet())
    budget.reserve(key(0), A, NO_EXECUTE, NOW)

    assert budget.used(Limit.UNAVAILABLE, NOW + age) == count


def test_room_that_a_lost_write_held_is_not_used_after_its_time() -> None:
    fleet = Fleet()
    budget = Budget(Limits(max_unavailable=1, max_new=None), fleet)
    budget.reserve(key(0), A, NO_EXECUTE, NOW)
    fleet.driver.add(B)

    assert budget.refusal(key(0), A, NO_EXECUTE, NOW + LANDED_BY) is Limit.UNAVAILABLE


def test_a_refused_repeat_does_not_free_what_the_lost_first_may_still_take() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=1), Fleet())
    budget.reserve(key(0), A, NO_EXECUTE, NOW)  # the answer is lost
    budget.reserve(key(0), A, NO_EXECUTE, NOW + INSTANT)
    budget.refused(key(0))

    assert used(budget, NOW + INSTANT) == (1, 1)


def test_a_refused_raise_does_not_free_what_another_record_takes_there() -> None:
    """Two faults of one device at once: the first is throttled, the second is written."""
    budget = Budget(Limits(max_unavailable=None, max_new=1), Fleet())
    budget.reserve(key(0), A, NO_EXECUTE, NOW)
    budget.reserve(key(1), A, NO_EXECUTE, NOW + INSTANT)
    budget.refused(key(0))

    assert budget.refusal(key(2), B, NO_EXECUTE, NOW + INSTANT) is Limit.NEW


# Any sequence at all

Answer = Literal["acknowledged", "refused", "lost, landed", "lost"]
ANSWERS: tuple[Answer, ...] = ("acknowledged", "refused", "lost, landed", "lost")
KEYS = tuple(key(index) for index in range(5))
PLACES = (A, B, C)


@dataclass(frozen=True)
class Write:
    """A write of which it is not certain what became of it."""

    place: Place
    effect: Effect
    made: datetime
    raises: bool


class Ledger(RuleBasedStateMachine):
    """The ledger beside a naive account of the same: records, and all writes that have landed or may yet land."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.fleet = Fleet(count=5)
        self.limits = Limits(max_unavailable=2, max_new=2)
        self.budget = Budget(self.limits, self.fleet)
        self.records: dict[Key, Record] = {}
        self.under_way: dict[Key, Write] = {}
        self.lost: dict[Key, list[Write]] = {which: [] for which in KEYS}
        self.raised: dict[Place, datetime] = {}
        self.in_doubt: datetime = NOW

    # The naive account

    def may_land(self, which: Key) -> list[Write]:
        lost = [one for one in self.lost[which] if self.now - one.made < LANDED_BY]
        return [*lost, *([self.under_way[which]] if which in self.under_way else [])]

    def effects_on(self, place: Place) -> list[int]:
        ranks = [one.taint.effect.rank for one in self.records.values() if one.target.place == place]
        ranks += [one.effect.rank for which in KEYS for one in self.may_land(which) if one.place == place]
        return ranks

    def disrupted(self) -> set[Place]:
        return {place for place in PLACES if any(self.effects_on(place))} | self.fleet.driver

    def new(self) -> set[Place]:
        landed = {place for place, when in self.raised.items() if self.now - when < WINDOW}
        return landed | {one.place for which in KEYS for one in self.may_land(which) if one.raises}

    def land(self, which: Key, one: Write) -> None:
        before = self.records.get(which)
        place_before = before.target.place if before else None
        as_before = before is not None and before.taint.effect is one.effect
        since = before.tainted_since if before and as_before else self.now.replace(microsecond=0)
        if one.raises or (one.effect.rank and place_before != one.place and not any(self.effects_on(one.place))):
            self.raised[one.place] = max(one.made, self.raised.get(one.place, NEVER))
        self.records[which] = standing(which, one.place, one.effect, since=since)
        self.lost[which].clear()  # what was based on the record before can land no more
        self.budget.changed(before, self.records[which])

    # Steps

    @rule(which=st.sampled_from(KEYS), place=st.sampled_from(PLACES), effect=st.sampled_from(Effect))
    def begin(self, which: Key, place: Place, effect: Effect) -> None:
        if which in self.under_way:
            return  # one writer a record
        if self.lost[which]:
            place = self.lost[which][-1].place  # a repeat
        strongest = max(self.effects_on(place), default=0)
        room, refusal = self.room(which, place), self.budget.refusal(which, place, effect, self.now)
        if refusal is not None:
            assert effect.rank > strongest
            assert refusal is not Limit.UNAVAILABLE or self.budget.used(refusal, self.now) >= 2
            assert refusal is not Limit.NEW or self.budget.used(refusal, self.now) >= 2
            return
        raises = effect.rank > strongest
        if raises and place not in self.disrupted():
            assert room > 0
        self.budget.reserve(which, place, effect, self.now)
        self.under_way[which] = Write(place, effect, self.now, raises)
        if raises:
            assert len(self.new()) <= 2

    def room(self, which: Key, place: Place) -> int:
        """Places that may still be disrupted; those that moves under way are leaving count as left."""
        held = self.records.get(which)
        leaves = held is not None and held.disrupts and held.target.place != place
        return 2 - len(self.disrupted()) + int(leaves)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), answer=st.sampled_from(ANSWERS))
    def end(self, data: st.DataObject, answer: Answer) -> None:
        which = data.draw(st.sampled_from(sorted(self.under_way)))
        one = self.under_way.pop(which)
        match answer:
            case "acknowledged":
                self.land(which, one)
                self.budget.written(which)
            case "lost, landed":
                self.land(which, one)
                self.in_doubt = self.now
            case "refused":
                self.budget.refused(which)
                self.in_doubt = self.now
            case _:
                self.lost[which].append(one)
                self.in_doubt = self.now

    @rule(which=st.sampled_from(KEYS))
    def land_late(self, which: Key) -> None:
        lost = [one for one in self.may_land(which) if one is not self.under_way.get(which)]
        if lost and which not in self.under_way:
            self.land(which, lost[-1])
            self.in_doubt = self.now

    @rule(which=st.sampled_from(KEYS))
    def removed(self, which: Key) -> None:
        if which in self.records and not self.may_land(which):
            self.budget.changed(self.records.pop(which), None)

    @rule(place=st.sampled_from(PLACES))
    def driver(self, place: Place) -> None:
        self.fleet.driver ^= {place}

    @rule(seconds=st.sampled_from([0.001, 1, 20, 61, 599, 601]))
    def time_passes(self, seconds: float) -> None:
        if seconds > 1:  # no write waits that long for its answer
            for which, one in self.under_way.items():
                self.lost[which].append(one)
            self.under_way.clear()
            self.in_doubt = self.now
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: not self.under_way and not any(self.may_land(which) for which in KEYS))
    @rule()
    def restart(self) -> None:
        before = self.standing_new()
        self.budget = Budget(self.limits, self.fleet)
        for one in self.records.values():
            self.budget.changed(None, one)
        self.lost = {which: [] for which in KEYS}
        self.raised = {place: when for place, when in self.raised.items() if place in before}
        assert self.budget.used(Limit.NEW, self.now) == len(before)

    def standing_new(self) -> set[Place]:
        """Places newly disrupted by a record that stands, as the records' own times (whole seconds) say it."""
        young = (one for one in self.records.values() if self.now - one.tainted_since < WINDOW)
        return {one.target.place for one in young if one.disrupts}

    # What must hold

    @invariant()
    def the_ledger_counts_all_that_is_or_may_be(self) -> None:
        counted = self.budget.used(Limit.UNAVAILABLE, self.now)
        assert counted >= len(self.disrupted())
        if self.now - self.in_doubt >= LANDED_BY:
            assert counted == len(self.disrupted())

    @invariant()
    def what_is_newly_disrupted_is_counted(self) -> None:
        assert self.budget.used(Limit.NEW, self.now) >= len(self.new())


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# What a review has found


def test_raises_that_never_landed_free_their_places_when_that_is_certain() -> None:
    """The API server was away for seconds; nobody may be withheld for ten minutes because of it."""
    budget = Budget(Limits(max_unavailable=None, max_new=10), Fleet())
    for index in range(10):
        budget.reserve(key(index), Place(NODE, f"neuron-device-{index}"), NO_EXECUTE, NOW)
    other = Place(NODE, "neuron-device-10")
    assert budget.refusal(key(10), other, NO_EXECUTE, NOW + LANDED_BY - INSTANT) is Limit.NEW

    assert budget.refusal(key(10), other, NO_EXECUTE, NOW + LANDED_BY) is None
    assert used(budget, NOW + LANDED_BY) == (0, 0)


def test_a_move_gives_no_credit_for_a_place_that_another_write_is_about_to_take() -> None:
    budget = Budget(Limits(max_unavailable=1, max_new=None), Fleet())
    write(budget, key(1), A)
    budget.reserve(key(2), A, NO_EXECUTE, NOW)

    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is Limit.UNAVAILABLE
    budget.refused(key(2))
    assert budget.refusal(key(1), B, NO_EXECUTE, NOW) is None
