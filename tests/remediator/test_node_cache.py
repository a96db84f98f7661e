"""The cache of Nodes: sees our own writes at once, and nothing under way, in whatever order, takes it back.

What it asks of the API server, and how seldom, is in test_caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remediator.inventory import Node, NodeAnnotations, NodeLabels, NodeMetadata
from remediator.node_cache import NodeCache
from tests.remediator.samples import LONG_AGO, NODE

if TYPE_CHECKING:
    from remediator.cluster import Api


def node(version: int, records: str = "", *, uid: str = "uid-1", name: str = NODE) -> Node:
    return Node(NodeMetadata(name, uid, LONG_AGO, NodeLabels(), str(version), NodeAnnotations(records)))


class Told:
    """A cache that asks nobody, and what it tells, which must be what it says at that very moment."""

    def __init__(self) -> None:
        self.cache = NodeCache(cast("Api", None), elapsed=lambda: 0.0, on_change=self._changed)
        self.cache.on_node = self._on_node
        self.nodes: list[Node | None] = []
        self.changes = 0

    def _on_node(self, name: str, now: Node | None) -> None:
        assert self.cache.get(name) == now
        self.nodes.append(now)

    def _changed(self) -> None:
        assert self.nodes, "nothing has changed"
        self.changes += 1

    def told(self) -> list[Node | None]:
        """What was told since the last look."""
        told = list(self.nodes)
        self.nodes.clear()
        return told


def test_an_older_event_changes_nothing() -> None:
    subject = Told()
    subject.cache.answered(node(7, "ours"))
    assert subject.told() == [node(7, "ours")]
    subject.cache.put(node(5, "before"))
    subject.cache.put(node(7, "ours"))

    assert subject.cache.get(NODE) == node(7, "ours")
    assert subject.told() == []


def test_an_answer_that_comes_after_what_the_watch_has_told_is_old_news() -> None:
    """The Node may be gone by now, or be another."""
    subject = Told()
    subject.cache.put(node(5))
    subject.cache.remove(node(9))
    subject.told()
    subject.cache.answered(node(8, "late"))
    assert subject.cache.get(NODE) is None
    subject.cache.answered(node(10, "new", uid="uid-2"))

    assert subject.cache.get(NODE) == node(10, "new", uid="uid-2")
    assert subject.told() == [node(10, "new", uid="uid-2")]


def test_a_list_older_than_our_write_does_not_take_it_back() -> None:
    subject = Told()
    subject.cache.replace([node(5, "before")], "5")
    subject.cache.answered(node(8, "ours"))
    subject.told()
    subject.cache.replace([node(5, "before")], "7")

    assert subject.cache.get(NODE) == node(8, "ours")
    assert subject.told() == []


def test_a_list_older_than_the_node_does_not_take_it_away() -> None:
    """It was read live, or written to, before its event came; its records must not be gone for a moment."""
    subject = Told()
    subject.cache.answered(node(8, "ours"))
    subject.told()
    subject.cache.replace([], "7")
    assert subject.cache.get(NODE) == node(8, "ours")
    assert subject.told() == []
    subject.cache.replace([], "9")

    assert subject.cache.get(NODE) is None
    assert subject.told() == [None]


def test_the_end_of_a_machine_does_not_take_its_successor_away() -> None:
    """It may have been read live before the event of that end."""
    subject = Told()
    subject.cache.put(node(5))
    subject.cache.answered(node(8, uid="uid-2"))
    subject.told()
    subject.cache.remove(node(7))
    assert subject.cache.get(NODE) == node(8, uid="uid-2")
    assert subject.told() == []
    subject.cache.remove(node(9, uid="uid-2"))

    assert subject.cache.get(NODE) is None


def test_a_list_from_before_what_was_told_is_of_a_cluster_whose_history_went_back() -> None:
    """An etcd that was restored from a backup: what is newer than that has never been."""
    subject = Told()
    subject.cache.replace([node(50, "lost"), node(40, name="gone")], "60")
    subject.told()
    subject.cache.replace([node(20, "restored")], "30")
    assert [one.metadata.resource_version for one in subject.cache.all()] == ["20"]
    assert sorted(subject.told(), key=str) == sorted([None, node(20, "restored")], key=str)

    subject.cache.put(node(31, "goes on"))
    assert subject.cache.get(NODE) == node(31, "goes on")


def test_a_heartbeat_moves_the_version_and_nothing_else() -> None:
    """The next write is based on the newest."""
    subject = Told()
    subject.cache.put(node(5, "same"))
    assert (len(subject.told()), subject.changes) == (1, 1)
    subject.cache.put(node(6, "same"))

    assert subject.cache.get(NODE) == node(6, "same")
    assert (subject.told(), subject.changes) == ([], 1)


class Interleavings(RuleBasedStateMachine):
    """One Node on a server, the events about it that are still under way, and the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = Told()
        self.cache = self.subject.cache
        self.cache.replace([], "0")
        self.stored: list[Node | None] = [None]  # what the server holds at each version
        self.seen = 0  # the version up to which the watch has delivered
        self.answers: list[Node] = []  # to writes and reads of ours, still under way
        self.taken: set[str] = set()  # versions of answers that have arrived
        self.newest = 0

    @property
    def now(self) -> int:
        """The server's version."""
        return len(self.stored) - 1

    @rule()
    def something_else_happens(self) -> None:
        """The version of a whole cluster moves for many reasons."""
        self.stored.append(self.stored[-1])

    @rule(records=st.sampled_from("ab"))
    def it_changes(self, records: str) -> None:
        """It comes up, or somebody writes to it, or a heartbeat comes."""
        uid = held.metadata.uid if (held := self.stored[-1]) is not None else f"uid-{self.now + 1}"
        self.stored.append(node(self.now + 1, records, uid=uid))

    @rule()
    def it_is_deleted(self) -> None:
        """The machine is recycled."""
        self.stored.append(None)

    @rule()
    def we_are_answered(self) -> None:
        """A write or a live read, whose answer is under way."""
        if (current := self.stored[-1]) is not None:
            self.answers.append(current)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        """In any order: they are asked for on several connections."""
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.cache.answered(answer)
        self.taken.add(answer.metadata.resource_version)

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
            self.cache.remove(node(self.seen, before.metadata.annotations.records, uid=before.metadata.uid))

    @rule(data=st.data())
    def a_list_arrives(self, data: st.DataObject) -> None:
        """It was made some time ago, after what the watch has delivered."""
        self.seen = data.draw(st.integers(self.seen, self.now))
        listed = self.stored[self.seen]
        self.cache.replace([] if listed is None else [listed], str(self.seen))

    @invariant()
    def what_is_known_never_gets_older(self) -> None:
        """Whatever is still under way."""
        held = self.cache.get(NODE)
        version = self.newest if held is None else int(held.metadata.resource_version)
        assert version >= self.newest
        self.newest = version

    @invariant()
    def what_we_were_told_last_is_known(self) -> None:
        """Decisions see their own writes."""
        current = self.stored[-1]
        if current is not None and current.metadata.resource_version in self.taken:
            assert self.cache.get(NODE) == current

    @invariant()
    def once_all_has_arrived_cache_and_server_agree(self) -> None:
        """An answer that is still under way tells nothing that is not known by then."""
        if self.seen == self.now:
            for answer in self.answers:
                self.cache.answered(answer)
            self.answers.clear()
            assert self.cache.get(NODE) == self.stored[-1]

    @invariant()
    def what_was_told_last_is_what_is_held_but_for_heartbeats(self) -> None:
        """Whoever keeps the records by what is told has those of today."""
        told, held = self.subject.nodes[-1] if self.subject.nodes else None, self.cache.get(NODE)
        assert (told is None) == (held is None)
        if told is not None and held is not None:
            assert (told.metadata.uid, told.metadata.annotations) == (held.metadata.uid, held.metadata.annotations)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=30, max_examples=100, deadline=None)
