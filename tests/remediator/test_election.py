"""Never two leaders: replicas with clocks of their own, on a network that loses, delays and keeps requests.

The server here is a model of the one thing that matters of a real one: a write that names an old version is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remediator.election import LONGEST, VALID, AlwaysLeads, Election, Sight, Step

DURATION = 15.0

WHO = st.sampled_from([0, 0, 1, 2])
"""Number 0 is who leads, if anybody does."""

PAUSE = st.sampled_from([0.1, 2.0, 5.5])


@dataclass
class Server:
    """Holds the one Lease."""

    version: int = 0
    lease: Sight | None = None

    def write(self, holder: str, base: str | None, duration: float) -> Sight | None:
        """Carry a write out if it is based on what is stored; None when it is refused."""
        if base != (self.lease.version if self.lease else None):
            return None
        self.version += 1
        self.lease = Sight(version=str(self.version), holder=holder, duration=duration)
        return self.lease


@dataclass
class Replica:
    """A process with its own monotonic clock, which goes `rate` times as fast as the true time."""

    name: str
    offset: float
    rate: float
    election: Election
    seen: Sight | None = None
    looked: bool = False
    ready: bool = True
    left: bool = False
    writes_until: float = -math.inf

    def clock(self, now: float) -> float:
        """What its clock shows."""
        return self.offset + self.rate * now


@dataclass(eq=False)
class Request:
    """One look or write on its way; `answer` is there once the server has seen it."""

    by: Election
    step: Step | None
    holder: str
    base: str | None
    sent: float
    arrived: bool = False
    awaited: bool = True
    answer: Sight | None = None


@dataclass
class Network:
    """What is on its way to the server or back."""

    requests: list[Request] = field(default_factory=list)

    def of(self, election: Election) -> Request | None:
        """The request that a replica waits for."""
        return next((one for one in self.requests if one.by is election and one.awaited), None)


class Elections(RuleBasedStateMachine):
    """Three replicas. Each has one request at a time, gives up on it at any time, and may stall at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.server = Server()
        self.network = Network()
        self.replicas: list[Replica] = []
        self.born = 0

    @initialize(
        clocks=st.lists(
            st.tuples(st.floats(-1e6, 1e6), st.floats(0.9, 1.1)),
            min_size=3,
            max_size=3,
        )
    )
    def begin(self, clocks: list[tuple[float, float]]) -> None:
        """Start three."""
        self.replicas = [self._process(offset, rate) for offset, rate in clocks]

    def _ranked(self) -> list[Replica]:
        """The replicas, who leads first, so that trouble meets the leader as often as it is drawn for number 0."""
        return sorted(self.replicas, key=lambda one: -one.election.remaining(one.clock(self.now)))

    def _process(self, offset: float, rate: float) -> Replica:
        self.born += 1
        name = f"pod_{self.born}"
        return Replica(name, offset, rate, Election(name, DURATION))

    @rule(seconds=st.sampled_from([2.0, 5.0, 17.0]))
    def time_passes(self, seconds: float) -> None:
        """Everybody is held up."""
        self.now += seconds

    @rule(number=WHO, arrives=st.sampled_from([True, True, False]))
    def asks(self, number: int, arrives: bool) -> None:  # noqa: FBT001 - drawn by name
        """A replica does what is next, and its request may well arrive, but its answer takes its time."""
        one = self._ranked()[number]
        self._ask(one)
        request = self.network.of(one.election)
        if arrives and request and not request.arrived:
            self._arrive(request)

    def _ask(self, one: Replica) -> None:
        """Look, or write, unless it waits for an answer."""
        if self.network.of(one.election):
            return
        if not one.looked:
            self._send(one, None)
            return
        # A candidate looks before each write, the holder goes by what it knows.
        step = one.election.step(ready=one.ready, now=one.clock(self.now))
        if not one.election.holds:
            one.looked = False
        if step is not Step.WAIT:
            self._send(one, step)

    def _send(self, one: Replica, step: Step | None) -> None:
        base = one.seen.version if one.seen else None
        holder = "" if step is Step.RELEASE else one.name
        self.network.requests.append(Request(one.election, step, holder, base, one.clock(self.now)))

    @rule(choice=st.integers(0, 20))
    @precondition(lambda self: any(not one.arrived for one in self.network.requests))
    def arrives(self, choice: int) -> None:
        """Requests arrive in any order, also those that nobody waits for any more."""
        waiting = [one for one in self.network.requests if not one.arrived]
        self._arrive(waiting[choice % len(waiting)])

    def _arrive(self, request: Request) -> None:
        request.arrived = True
        if request.step is None:
            request.answer = self.server.lease
        else:
            request.answer = self.server.write(request.holder, request.base, DURATION)

    @rule(number=WHO)
    def is_answered(self, number: int) -> None:
        """The answer comes, if the request has arrived."""
        self._answer(self._ranked()[number])

    def _answer(self, one: Replica) -> None:
        request = self.network.of(one.election)
        if request is None or not request.arrived:
            return
        self.network.requests.remove(request)
        now = one.clock(self.now)
        if request.step is None:
            one.seen, one.looked = request.answer, True
            one.election.saw(request.answer, now)
        elif request.answer is None:
            one.looked = False  # refused
        elif request.step is Step.RELEASE:
            one.seen = request.answer
            one.election.saw(request.answer, now)
        else:
            one.seen, one.looked = request.answer, True
            one.election.won(request.answer, sent=request.sent, now=now)

    @rule(numbers=st.sampled_from([(0, 1, 2), (2, 0)]), rounds=st.integers(1, 4), pause=PAUSE)
    def all_go_on(self, numbers: tuple[int, ...], rounds: int, pause: float) -> None:
        """In good order."""
        self._go_on(numbers, rounds, pause)

    @rule(rounds=st.sampled_from([1, 4]), pause=PAUSE)
    def all_but_the_leader_go_on(self, rounds: int, pause: float) -> None:
        """The leader is held up, for long or for a moment."""
        self._go_on((1, 2), rounds, pause)

    def _go_on(self, numbers: tuple[int, ...], rounds: int, pause: float) -> None:
        """The usual course of things, which chance alone would hardly ever make."""
        going_on = [self._ranked()[number] for number in numbers]
        for _ in range(rounds):
            self.now += pause
            for one in going_on * 2:  # a look, then a write
                self._ask(one)
                request = self.network.of(one.election)
                if request and not request.arrived:
                    self._arrive(request)
                self._answer(one)
                self.at_most_one_leads()

    @rule(number=WHO)
    def gives_up_waiting(self, number: int) -> None:
        """Its request may be lost, or carried out at any time later, or have been carried out."""
        one = self._ranked()[number]
        request = self.network.of(one.election)
        if request is not None:
            request.awaited = False
            one.looked = False

    @rule(number=WHO)
    def readiness_changes(self, number: int) -> None:
        """Its caches are in touch, or not any more."""
        one = self._ranked()[number]
        one.ready = not one.ready

    @rule(number=WHO, leaves=st.booleans())
    def ends(self, number: int, leaves: bool) -> None:  # noqa: FBT001 - drawn by name
        """As it was told to, or at once, and then the same Pod starts anew: no process must take itself for another."""
        one = self._ranked()[number]
        one.writes_until = -math.inf
        if leaves and not one.left:
            one.left = True
            one.election.leave()
            return
        request = self.network.of(one.election)
        if request is not None:
            request.awaited = False
        self.replicas[self.replicas.index(one)] = self._process(one.offset, one.rate)

    @rule(number=WHO)
    def writes(self, number: int) -> None:
        """A write to the cluster may take for as long as its replica leads for certain."""
        one = self._ranked()[number]
        now = one.clock(self.now)
        if (remaining := one.election.remaining(now)) > 0:
            one.writes_until = now + remaining

    @invariant()
    def at_most_one_leads(self) -> None:
        """What all of it is for."""
        clocks = [(one, one.clock(self.now)) for one in self.replicas]
        leading = {one.name for one, now in clocks if one.election.remaining(now) > 0}
        writing = {one.name for one, now in clocks if one.writes_until > now}
        assert len(leading | writing) <= 1, f"leading: {leading}, writing: {writing}"


TestElections = pytest.mark.filterwarnings("default")(Elections.TestCase)
TestElections.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def lease(version: int, holder: str, duration: float = DURATION) -> Sight:
    return Sight(version=str(version), holder=holder, duration=duration)


def leader(sent: float = 100.0, now: float = 100.5) -> Election:
    election = Election("a", DURATION)
    election.saw(None, now)
    assert election.step(ready=True, now=now) is Step.CREATE
    election.won(lease(1, "a"), sent=sent, now=now)
    return election


def test_a_renewal_counts_from_before_it_was_sent_and_ends_by_the_clock_alone() -> None:
    election = leader(sent=100.0, now=104.0)

    assert election.remaining(104.0) == pytest.approx(VALID * DURATION - 4.0)
    assert election.remaining(100.0 + VALID * DURATION) == 0


def test_an_answer_that_comes_too_late_makes_no_leader() -> None:
    assert leader(sent=100.0, now=111.0).remaining(111.0) == 0


def test_a_lease_is_taken_when_it_has_been_seen_unchanged_for_its_duration_and_not_before() -> None:
    election = Election("b", DURATION)
    election.saw(lease(1, "a", duration=20), 50.0)
    for now in (50.0, 60.0, 69.9):
        election.saw(lease(1, "a", duration=20), now)
        assert election.step(ready=True, now=now) is Step.WAIT
    election.saw(lease(2, "a", duration=20), 69.95)
    assert election.step(ready=True, now=89.9) is Step.WAIT
    assert election.step(ready=True, now=90.0) is Step.TAKE


def test_a_duration_that_was_edited_away_makes_nobody_hasty() -> None:
    election = Election("b", DURATION)
    election.saw(lease(1, "a", duration=0), 50.0)
    assert election.step(ready=True, now=64.9) is Step.WAIT
    assert election.step(ready=True, now=65.0) is Step.TAKE


def test_a_released_lease_is_taken_at_once() -> None:
    election = Election("b", DURATION)
    election.saw(lease(1, "a"), 50.0)
    election.saw(lease(2, ""), 51.0)
    assert election.step(ready=True, now=51.0) is Step.TAKE


def test_who_is_not_ready_neither_creates_nor_takes() -> None:
    election = Election("b", DURATION)
    election.saw(None, 50.0)
    assert election.step(ready=False, now=50.0) is Step.WAIT
    election.saw(lease(1, ""), 51.0)
    assert election.step(ready=False, now=51.0) is Step.WAIT
    assert election.step(ready=True, now=52.0) is Step.TAKE


def test_a_deleted_lease_is_put_back_by_its_leader_while_the_others_wait() -> None:
    led, waits = leader(), Election("b", DURATION)
    waits.saw(lease(1, "a"), 100.0)
    led.saw(None, 102.0)
    waits.saw(None, 102.0)

    assert led.step(ready=True, now=102.0) is Step.CREATE
    assert waits.step(ready=True, now=116.9) is Step.WAIT
    assert waits.step(ready=True, now=117.0) is Step.CREATE


def test_a_deleted_lease_is_no_leaders_once_its_time_is_over() -> None:
    election = leader()
    election.saw(None, 111.0)
    assert election.step(ready=True, now=111.0) is Step.WAIT


def test_who_sees_another_holder_leads_no_more() -> None:
    election = leader()
    election.saw(lease(2, "b"), 101.0)
    assert election.remaining(101.0) == 0


def test_a_leader_that_is_not_ready_gives_way_after_a_duration_and_not_while_its_writes_may_be_under_way() -> None:
    election = leader(sent=100.0)
    assert election.step(ready=False, now=101.0) is Step.RENEW
    election.won(lease(2, "a"), sent=115.9, now=116.0)
    assert election.step(ready=False, now=116.0) is Step.RENEW

    assert election.step(ready=False, now=116.1) is Step.WAIT
    assert election.remaining(116.1) == 0
    assert election.step(ready=False, now=125.8) is Step.WAIT
    assert election.step(ready=False, now=125.9) is Step.RELEASE


def test_a_leader_that_is_ready_again_in_time_goes_on() -> None:
    election = leader(sent=100.0)
    assert election.step(ready=False, now=101.0) is Step.RENEW
    assert election.step(ready=True, now=115.0) is Step.RENEW
    assert election.step(ready=False, now=120.0) is Step.RENEW


def test_who_leaves_leads_no_more_releases_and_does_not_come_back() -> None:
    election = leader()
    election.leave()
    assert election.remaining(101.0) == 0
    assert election.step(ready=True, now=101.0) is Step.RELEASE
    election.saw(lease(2, ""), 101.0)
    assert election.step(ready=True, now=200.0) is Step.WAIT


def test_without_a_lease_there_is_no_end() -> None:
    assert AlwaysLeads().not_leading() is None
    assert AlwaysLeads().remaining() == math.inf


def test_a_lease_that_a_hand_has_made_endless_is_taken_after_the_longest_one() -> None:
    election = Election("me", DURATION)
    election.saw(Sight(version="1", holder="nobody-there", duration=2.0**31 - 1), 0.0)

    assert election.step(ready=True, now=LONGEST - 0.001) is Step.WAIT
    assert election.step(ready=True, now=float(LONGEST)) is Step.TAKE
