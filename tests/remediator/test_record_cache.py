"""The cache of our rules, under any interleaving of our writes, other people's, late events and late lists."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remediator.backends.device_taint_rule import RecordCache
from remediator.records import State, Stored
from remediator.rule_records import from_object, object_name, to_object
from remediator.rules import Rule
from tests.remediator.samples import STARTED, record

if TYPE_CHECKING:
    from remediator.records import Record

KEY = record().key
NAME = object_name(KEY)


def served() -> RecordCache:
    """A cache of rules that are served."""
    cache = RecordCache()
    cache.served_as("v1")
    return cache


def made(version: int, uid: str) -> Rule:
    """The rule as the API server stores it in that version, a little different in each."""
    stored = Stored(NAME, uid, str(version))
    written = record(started=STARTED + timedelta(seconds=version), stored=stored)
    return msgspec.convert(to_object(written, "resource.k8s.io/v1"), Rule)


def damaged(rule_: Rule, version: int) -> Rule:
    """The rule after somebody has taken our mark away."""
    metadata = msgspec.structs.replace(rule_.metadata, labels={}, resource_version=str(version))
    return msgspec.structs.replace(rule_, metadata=metadata)


def test_a_list_older_than_the_rule_itself_does_not_bring_it_back() -> None:
    """A list begun before we created takes its time, and is taken in after we deleted."""
    cache, short_lived = served(), made(2, "uid-2")
    cache.answered(short_lived)
    cache.forget("uid-2", "2")
    cache.replace([], "1")
    cache.put(short_lived)

    assert cache.get(KEY) is None
    cache.remove(short_lived)
    assert not cache._deleted


def test_a_late_event_of_damage_long_repaired_drops_nothing() -> None:
    """Somebody damaged the rule and repaired it; the read after our conflict was faster than the watch."""
    cache, first = served(), made(1, "uid-1")
    cache.put(first)
    cache.put(made(3, "uid-1"))
    cache.put(damaged(first, 2))

    assert cache.get(KEY) == from_object(made(3, "uid-1"))
    cache.put(damaged(first, 4))
    assert cache.get(KEY) is None


def test_an_answer_that_comes_after_the_end_of_its_rule_brings_nothing_back() -> None:
    """The rule was made, deleted by a hand, and both events came before the answer to our create."""
    cache, short_lived = served(), made(2, "uid-2")
    cache.put(short_lived)
    cache.remove(made(3, "uid-2"))
    cache.answered(short_lived)

    assert cache.get(KEY) is None


def test_a_list_from_before_what_was_told_ends_what_was_held() -> None:
    """Etcd was restored from a backup: the rules made since then are gone, and no event will ever say so."""
    cache = served()
    cache.replace([], "5")
    cache.put(made(7, "uid-7"))
    cache.replace([], "3")

    assert cache.get(KEY) is None
    cache.put(made(4, "uid-4"))
    assert cache.get(KEY) == from_object(made(4, "uid-4"))


def test_a_rule_that_a_finalizer_holds_is_shown_though_we_deleted_it() -> None:
    """It taints until it is gone; withheld, so that the rules ask for a firing as long as the fault is there."""
    cache, rule_ = served(), made(2, "uid-2")
    cache.answered(rule_)
    cache.forget("uid-2", "2")
    dying = msgspec.structs.replace(rule_.metadata, resource_version="3", deletion_timestamp="2026-11-30T12:00:00Z")
    cache.put(msgspec.structs.replace(rule_, metadata=dying))

    held = cache.get(KEY)
    assert held is not None
    assert held.state is State.WITHHELD


class Interleavings(RuleBasedStateMachine):
    """One record's object on a server, the events about it that are still under way, and the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = served()
        self.cache.replace([], "0")
        self.stored: list[Rule | None] = [None]  # what the server holds at each version
        self.seen = 0  # the version up to which the watch has delivered
        self.deleted_by_us: set[str] = set()
        self.written_by_us: set[str] = set()
        self.answer: Rule | None = None  # to a write of ours, still under way

    @property
    def now(self) -> int:
        """The server's version."""
        return len(self.stored) - 1

    @property
    def current(self) -> Rule | None:
        """What the server holds."""
        return self.stored[-1]

    @property
    def held(self) -> Record | None:
        """What the cache says."""
        return self.cache.get(KEY)

    @rule()
    def something_else_happens(self) -> None:
        """The version of a whole cluster moves for many reasons."""
        self.stored.append(self.current)

    @rule()
    def somebody_changes(self) -> None:
        """The eviction controller writes a status, or a hand edits."""
        if self.current is not None:
            self.stored.append(made(self.now + 1, self.current.metadata.uid))

    @rule()
    def somebody_damages(self) -> None:
        """A hand takes the annotations away."""
        if self.current is not None:
            self.stored.append(damaged(self.current, self.now + 1))

    @rule()
    def somebody_deletes(self) -> None:
        """A hand deletes, or the garbage collector."""
        self.stored.append(None)

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_create(self) -> None:
        """The server takes it only if there is none."""
        if self.current is None and self.held is None:
            self.stored.append(made(self.now + 1, f"uid-{self.now + 1}"))
            self.answer = self.current

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_update(self) -> None:
        """The server takes it only over the very version."""
        if self.in_agreement():
            assert self.current is not None
            self.stored.append(made(self.now + 1, self.current.metadata.uid))
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
        if self.in_agreement() and held is not None and held.stored is not None:
            self.stored.append(None)
            if event_first:
                self.catch_up()
            self.cache.forget(held.stored.uid, held.stored.resource_version)
            self.deleted_by_us.add(held.stored.uid)

    @precondition(lambda self: self.answer is None)
    @rule()
    def we_look_again(self) -> None:
        """The read after a conflict."""
        if self.current is None:
            if self.held is not None and self.held.stored is not None:
                self.cache.forget(self.held.stored.uid, self.held.stored.resource_version)
        elif from_object(self.current) is not None:
            self.cache.answered(self.current)

    @precondition(lambda self: self.seen < self.now)
    @rule()
    def an_event_arrives(self) -> None:
        """Each in its turn, however late."""
        before, self.seen = self.stored[self.seen], self.seen + 1
        after = self.stored[self.seen]
        if after is not None and after != before:
            self.cache.put(after)
        elif after is None and before is not None:
            # The last state, in the version of its deletion.
            last = msgspec.structs.replace(before.metadata, resource_version=str(self.seen))
            self.cache.remove(msgspec.structs.replace(before, metadata=last))

    @rule()
    def catch_up(self) -> None:
        """Everything under way arrives."""
        while self.seen < self.now:
            self.an_event_arrives()

    @rule(data=st.data())
    def a_list_arrives(self, data: st.DataObject) -> None:
        """It was made some time ago, after what the watch has delivered."""
        self.seen = data.draw(st.integers(self.seen, self.now))
        listed = self.stored[self.seen]
        self.cache.replace([] if listed is None else [listed], str(self.seen))

    @invariant()
    def what_we_deleted_never_comes_back(self) -> None:
        """Whatever is still under way."""
        assert self.held is None or self.held.stored is None or self.held.stored.uid not in self.deleted_by_us

    @invariant()
    def what_we_wrote_is_seen_until_somebody_changes_it(self) -> None:
        """Decisions see their own writes, whatever is still under way."""
        if self.current is not None and self.current.metadata.resource_version in self.written_by_us:
            assert self.held == from_object(self.current)

    @invariant()
    def once_all_has_arrived_cache_and_server_agree(self) -> None:
        """And nothing is remembered that is no longer needed."""
        if self.seen == self.now and self.answer is None:
            assert self.held == (None if self.current is None else from_object(self.current))
            assert len(list(self.cache.all())) == (0 if self.held is None else 1)
            assert not self.cache._deleted
            assert len(self.cache._keys) == len(list(self.cache.all()))

    def in_agreement(self) -> bool:
        """Whether a guarded write would be taken."""
        held, current = self.held, self.current
        return (
            held is not None
            and held.stored is not None
            and current is not None
            and (held.stored.uid, held.stored.resource_version)
            == (current.metadata.uid, current.metadata.resource_version)
        )


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=30, max_examples=300, deadline=None)


def test_an_answer_that_comes_when_rules_are_not_served_any_more_counts_for_nothing() -> None:
    """It would stand for a rule that no list and no event would ever take away again."""
    cache = served()
    cache.served_as("")
    cache.answered(made(2, "uid-2"))

    assert cache.get(KEY) is None
