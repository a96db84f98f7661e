"""The cache of our peer rules, under any interleaving of our writes, other people's, late events and late lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remediator.backends.device_taint_rule import RecordCache
from remediator.foreign_rules import ForeignRules, Sorting
from remediator.peer_rules import PeerRules
from tests.remediator.samples import DRIVER
from tests.remediator.test_peers import peer_rule, stored

if TYPE_CHECKING:
    from remediator.rules import Rule

NAME = peer_rule().name


def made(version: int, uid: str = "uid-1") -> Rule:
    """The rule as the API server stores it in that version, a little different in each."""
    return stored(peer_rule(), version, uid, value=f"v{version}")


def unmarked(rule_: Rule, version: int) -> Rule:
    """The rule after somebody has taken our mark away."""
    metadata = msgspec.structs.replace(rule_.metadata, labels={}, resource_version=str(version))
    return msgspec.structs.replace(rule_, metadata=metadata)


class Told:
    """A cache, and how often it has told of a change."""

    def __init__(self) -> None:
        self.times = 0
        self.cache = PeerRules(self._told)
        self.foreign = ForeignRules(DRIVER)
        self.sorting = Sorting(RecordCache(), self.foreign, self.cache)

    def _told(self) -> None:
        self.times += 1

    def told(self) -> int:
        """How often since the last look."""
        times, self.times = self.times, 0
        return times


def test_what_others_do_is_told_and_what_we_do_is_not() -> None:
    subject = Told()
    subject.cache.answered(made(1))
    subject.sorting.put(made(1))
    assert subject.told() == 0

    subject.sorting.put(made(2))
    assert subject.told() == 1
    subject.sorting.replace([made(2)], "3")
    assert subject.told() == 0
    subject.sorting.remove(made(4))
    assert subject.told() == 1

    subject.cache.answered(made(5, "uid-2"))
    subject.cache.forget(made(5, "uid-2"))
    subject.sorting.put(made(5, "uid-2"))
    subject.sorting.remove(made(6, "uid-2"))
    assert subject.told() == 0
    assert not subject.cache.all()


def test_a_rule_whose_mark_is_taken_away_is_somebody_elses() -> None:
    subject = Told()
    subject.sorting.put(made(1))
    subject.told()
    subject.sorting.put(unmarked(made(1), 2))
    assert not subject.cache.all()
    assert [one.name for one in subject.foreign.all()] == [NAME]
    assert subject.told() == 1


def test_an_answer_that_comes_after_the_watch_has_told_of_the_end_is_old_news() -> None:
    """Whatever rule the watch has told of: versions are of the whole cluster."""
    subject = Told()
    subject.sorting.remove(stored(peer_rule("u3", "u4"), 3))
    assert not subject.cache.answered(made(2))
    assert not subject.cache.all()


def test_a_list_that_was_made_before_our_write_does_not_undo_it() -> None:
    subject = Told()
    subject.cache.answered(made(4))
    subject.sorting.replace([], "3")
    assert list(subject.cache.all()) == [made(4)]
    subject.sorting.replace([], "4")
    assert not subject.cache.all()


def test_a_cluster_restored_from_a_backup_is_believed() -> None:
    subject = Told()
    subject.sorting.put(made(9))
    subject.sorting.replace([made(2, "uid-2")], "3")
    assert list(subject.cache.all()) == [made(2, "uid-2")]
    assert subject.told() == 2


class Interleavings(RuleBasedStateMachine):
    """One name on an API server, the events that are still under way, and the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PeerRules()
        self.sorting = Sorting(RecordCache(), ForeignRules(DRIVER), self.cache)
        self.sorting.replace([], "0")
        self.server: list[Rule | None] = [None]  # what the server holds at each version
        self.seen = 0  # the version up to which the watch has delivered
        self.deleted_by_us: set[str] = set()
        self.written_by_us: set[str] = set()
        self.answer: Rule | None = None  # to a write of ours, still under way

    @property
    def now(self) -> int:
        """The server's version."""
        return len(self.server) - 1

    @property
    def current(self) -> Rule | None:
        """What the server holds."""
        return self.server[-1]

    @property
    def held(self) -> Rule | None:
        """What the cache says."""
        return next(iter(self.cache.all()), None)

    @rule()
    def something_else_happens(self) -> None:
        """The version of a whole cluster moves for many reasons."""
        self.server.append(self.current)

    @rule()
    def somebody_changes(self) -> None:
        """The eviction controller writes a status, or a hand edits."""
        if self.current is not None:
            self.server.append(made(self.now + 1, self.current.metadata.uid))

    @rule()
    def somebody_deletes(self) -> None:
        """A hand deletes, or the garbage collector."""
        self.server.append(None)

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_create(self) -> None:
        """The server takes it only if there is none."""
        if self.current is None and self.held is None:
            self.server.append(made(self.now + 1, f"uid-{self.now + 1}"))
            self.answer = self.current

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_mend(self) -> None:
        """The server takes it only over the very version."""
        if self.current is not None and self.held == self.current:
            self.server.append(made(self.now + 1, self.current.metadata.uid))
            self.answer = self.current

    @precondition(lambda self: self.answer is not None)
    @rule()
    def the_answer_arrives(self) -> None:
        """At once or late: much may have happened, and been told, since the server took the write."""
        assert self.answer is not None
        self.cache.answered(self.answer)
        self.written_by_us.add(self.answer.metadata.resource_version)
        self.answer = None

    @precondition(lambda self: self.answer is None)
    @rule(event_first=st.booleans())
    def we_delete(self, *, event_first: bool) -> None:
        """The watch may be faster than the answer."""
        held = self.held
        if held is not None and held == self.current:
            self.server.append(None)
            if event_first:
                self.catch_up()
            self.cache.forget(held)
            self.deleted_by_us.add(held.metadata.uid)

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_look_again(self) -> None:
        """The read after a conflict."""
        if self.current is not None:
            self.cache.answered(self.current)
        elif self.held is not None:
            self.cache.forget(self.held)

    @precondition(lambda self: self.seen < self.now)
    @rule()
    def an_event_arrives(self) -> None:
        """Each in its turn, however late."""
        before, self.seen = self.server[self.seen], self.seen + 1
        after = self.server[self.seen]
        if after is not None and after != before:
            self.sorting.put(after)
        elif after is None and before is not None:
            # The last state, in the version of its deletion.
            last = msgspec.structs.replace(before.metadata, resource_version=str(self.seen))
            self.sorting.remove(msgspec.structs.replace(before, metadata=last))

    @rule()
    def catch_up(self) -> None:
        """Everything under way arrives."""
        while self.seen < self.now:
            self.an_event_arrives()

    @rule(data=st.data())
    def a_list_arrives(self, data: st.DataObject) -> None:
        """It was made some time ago, after what the watch has delivered."""
        self.seen = data.draw(st.integers(self.seen, self.now))
        listed = self.server[self.seen]
        self.sorting.replace([] if listed is None else [listed], str(self.seen))

    @invariant()
    def what_we_deleted_never_comes_back(self) -> None:
        """Whatever is still under way."""
        assert self.held is None or self.held.metadata.uid not in self.deleted_by_us

    @invariant()
    def what_we_wrote_is_seen_until_somebody_changes_it(self) -> None:
        """What is wanted is compared with our own writes, whatever is still under way."""
        if self.current is not None and self.current.metadata.resource_version in self.written_by_us:
            assert self.held == self.current

    @invariant()
    def once_all_has_arrived_cache_and_server_agree(self) -> None:
        """And nothing is remembered that is no longer needed."""
        if self.seen == self.now and self.answer is None:
            assert self.held == self.current
            assert not self.cache._deleted


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=30, max_examples=200, deadline=None)
