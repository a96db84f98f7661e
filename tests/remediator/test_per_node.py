"""Two ways to keep records as one: where a record is, that it is never nowhere, and what is told of it outside.

Two memory backends stand for rules and Nodes; each write may be cut, before it is done or before it is answered.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator.backends.memory import MemoryBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.records import NEVER, Key, Record, State, episode_of
from remediator.targets import NodeTarget
from tests.remediator.samples import LONG_AGO, NODE, NOW, STARTED, on_node, record

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from remediator.targets import AnyTarget

BY_RULE = record("link_efa")
BY_NODE = replace(BY_RULE, target=on_node())
KEY = BY_RULE.key


def done(writing: Coroutine[Any, Any, None]) -> None:
    """Run what never waits to its end."""
    with pytest.raises(StopIteration):
        writing.send(None)


class Cut(UnavailableError):  # noqa: N818 - not an error but a kind of trouble
    """The connection is gone, or the process."""


class Store(MemoryBackend):
    """A memory backend in which one write to come is cut: before it is done, or after, with its answer lost."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda: NOW)
        self.names = (name,)
        # As in a cluster, no object of the one is ever taken for one of the other.
        self._writes = {"rules": 0, "nodes": 1000}[name]
        self.cut_before: int | None = None
        self.cut_after: int | None = None
        self.steps = 0

    def arm(self, *, before: int | None = None, after: int | None = None) -> None:
        """Cut the write of that number from here, counted from 0."""
        self.steps, self.cut_before, self.cut_after = 0, before, after

    async def create(self, record: Record) -> None:
        """Create, unless cut."""
        self._cut(self.cut_before)
        await super().create(record)
        self._done()

    async def update(self, record: Record) -> None:
        """Update, unless cut."""
        self._cut(self.cut_before)
        await super().update(record)
        self._done()

    async def delete(self, record: Record) -> None:
        """Delete, unless cut."""
        self._cut(self.cut_before)
        await super().delete(record)
        self._done()

    def _cut(self, at: int | None) -> None:
        if self.steps == at:
            self.cut_before = self.cut_after = None
            raise Cut(Refusal.UNREACHABLE, "cut")

    def _done(self) -> None:
        self._cut(self.cut_after)
        self.steps += 1


@dataclass
class Both:
    """The backend, its two stores, and what is told outside, which must agree with what is read there at any time."""

    rules: Store = field(default_factory=lambda: Store("rules"))
    nodes: Store = field(default_factory=lambda: Store("nodes"))
    known: dict[Key, Record] = field(default_factory=dict)
    moments_without: int = 0

    def __post_init__(self) -> None:
        self.backend = PerNodeBackend(self.rules, self.nodes)
        self.backend.on_change = self.told

    def told(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: ARG002, FBT001 - `OnChange`
        """Take note, as the budget does."""
        key = (before or after or BY_RULE).key
        assert before == self.known.get(key), "it was something else before"
        assert after == self.backend.record(key), "it is something else now"
        assert before != after, "nothing has happened"
        if after is None:
            del self.known[key]
            self.moments_without += 1
        else:
            self.known[key] = after

    def held(self) -> Record:
        """The one record, which must be there."""
        found = self.backend.record(KEY)
        assert found is not None
        assert self.known == {KEY: found}
        assert list(self.backend.records()) == [found]
        return found

    def put(self, one: Record) -> Record:
        """Create it; returns it as stored."""
        done(self.backend.create(one))
        return self.held()

    def where(self) -> str:
        """The names of the stores that have it."""
        return "+".join(store.names[0] for store in (self.rules, self.nodes) if store.record(KEY))


def content(one: Record) -> Record:
    return replace(one, stored=None, tainted_since=NEVER)


@pytest.fixture
def both() -> Both:
    return Both()


def test_a_record_is_kept_where_its_target_is(both: Both) -> None:
    assert both.backend.names == ("rules", "nodes")
    both.put(BY_RULE)
    other = replace(BY_NODE, key=Key(NODE, 4, "link_efa"), target=on_node(4))
    done(both.backend.create(other))

    assert (both.rules.record(KEY), both.nodes.record(KEY)) == (both.backend.record(KEY), None)
    assert (both.rules.record(other.key), both.nodes.record(other.key)) == (None, both.backend.record(other.key))
    assert {both.backend.name_of(one): one.key for one in both.backend.records()} == {"rules": KEY, "nodes": other.key}


@pytest.mark.parametrize(("start", "end"), [(BY_RULE, BY_NODE), (BY_NODE, BY_RULE)])
def test_a_move_changes_the_place_and_what_else_was_decided(both: Both, start: Record, end: Record) -> None:
    before = both.put(start)
    wanted = replace(end, state=State.WITHHELD, taint=replace(end.taint, effect=Effect.NONE), stored=before.stored)
    done(both.backend.update(wanted))

    assert content(both.held()) == content(wanted)
    assert both.where() == ("nodes" if isinstance(end.target, NodeTarget) else "rules")
    assert both.moments_without == 0
    assert not both.backend.untidy(KEY)


CONTINUATIONS = ("tidy", "again", "back", "delete")
CUTS = [
    pytest.param({store: {when: 0}}, id=f"{when}-{store}")
    for store, when in product(("rules", "nodes"), ("before", "after"))
]


@pytest.mark.parametrize("then", CONTINUATIONS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("start", "end"), [(BY_RULE, BY_NODE), (BY_NODE, BY_RULE)], ids=["to-node", "to-rule"])
def test_whatever_cuts_a_move_short_the_next_write_ends_it(
    both: Both, start: Record, end: Record, cut: dict[str, dict[str, int]], then: str
) -> None:
    """And at no moment there is no record. A replica that comes up after it sees the same."""
    before = both.put(start)
    for store in (both.rules, both.nodes):
        store.arm(**cut.get(store.names[0], {}))
    with pytest.raises(Cut):
        done(both.backend.update(replace(end, stored=before.stored)))
    assert both.moments_without == 0
    seen = both.held()
    assert both.backend.untidy(KEY) == (both.where() == "rules+nodes")
    assert seen == (both.rules.record(KEY) or both.nodes.record(KEY))

    goal = {"tidy": seen, "again": end, "back": start}.get(then)
    if goal is None:
        done(both.backend.delete(seen))
        assert (both.where(), both.known) == ("", {})
        return
    done(both.backend.update(replace(goal, stored=seen.stored)))
    assert content(both.held()) == content(goal)
    assert both.where() == ("nodes" if isinstance(goal.target, NodeTarget) else "rules")
    assert both.moments_without == 0
    assert not both.backend.untidy(KEY)


def twice(both: Both) -> Record:
    """Have the record in both places, as a crash in the middle of a move leaves it."""
    before = both.put(BY_RULE)
    both.rules.arm(before=0)
    with pytest.raises(Cut):
        done(both.backend.update(replace(BY_NODE, stored=before.stored)))
    assert both.where() == "rules+nodes"
    return both.held()


def test_where_both_are_there_the_rule_is_the_record(both: Both) -> None:
    """It taints the device alone, and it is what the eviction controller sees."""
    assert twice(both) == both.rules.record(KEY)


def served_again(rule: Record, node: Record) -> Both:
    """Rules that were stored while they were not served, and what the Node has got meanwhile."""
    both = Both()
    done(both.backend.create(node))
    done(both.rules.create(rule))
    return both


def test_what_the_node_knows_better_of_the_fault_counts() -> None:
    """Faults fire and are latched also while rules are not served."""
    later = STARTED + timedelta(seconds=9)
    newer = replace(BY_NODE, latched=True, last_fired=later, episode=episode_of(later))
    both = served_again(replace(BY_RULE, first_fired=LONG_AGO), newer)
    seen = both.held()
    assert content(seen) == replace(
        BY_RULE, latched=True, first_fired=LONG_AGO, last_fired=later, episode=newer.episode
    )
    assert both.backend.untidy(KEY)
    done(both.backend.update(seen))

    assert both.where() == "rules"
    assert content(both.held()) == content(seen)
    assert both.moments_without == 0


def test_what_the_rule_knows_better_counts_as_well() -> None:
    later = STARTED + timedelta(seconds=9)
    newer = replace(BY_RULE, latched=True, last_fired=later, episode=episode_of(later))
    both = served_again(newer, replace(BY_NODE, first_fired=LONG_AGO))

    assert content(both.held()) == replace(newer, first_fired=LONG_AGO)


def test_a_latch_that_an_operator_has_lifted_on_the_rule_stays_lifted() -> None:
    released = replace(BY_RULE, state=State.RELEASED, latched=False, released_until=NOW, released_by="ann")

    assert content(served_again(released, replace(BY_NODE, latched=True)).held()) == released


@pytest.mark.parametrize("end", [BY_RULE, BY_NODE])
def test_a_rule_of_the_machine_before_counts_for_nothing_and_is_not_applied_over(end: Record) -> None:
    """The new machine would inherit the time at which the old one was tainted."""
    void = replace(BY_RULE, node_uid="uid-0", latched=True)
    both = served_again(void, BY_NODE)
    old = both.rules.record(KEY)
    seen = both.held()
    assert content(seen) == BY_NODE
    assert both.backend.untidy(KEY)
    done(both.backend.update(replace(end, stored=seen.stored)))

    assert content(both.held()) == end
    assert both.where() == ("nodes" if end is BY_NODE else "rules")
    assert both.moments_without == 0
    now = both.rules.record(KEY)
    assert old is not None
    assert old.stored is not None
    assert now is None or (now.stored is not None and now.stored.uid != old.stored.uid)


def test_a_clear_removes_both() -> None:
    for node_uid in ("uid-1", "uid-0"):
        both = served_again(replace(BY_RULE, node_uid=node_uid), BY_NODE)
        done(both.backend.delete(both.held()))
        assert (both.where(), both.known, both.moments_without) == ("", {}, 1)


def test_a_hand_that_deletes_the_rule_of_two_leaves_the_other(both: Both) -> None:
    held = twice(both)
    done(both.rules.delete(held))

    assert both.held() == both.nodes.record(KEY)
    assert both.moments_without == 0
    assert not both.backend.untidy(KEY)


def test_what_happens_to_the_hidden_one_is_not_told(both: Both) -> None:
    held = twice(both)
    hidden = both.nodes.record(KEY)
    assert hidden is not None
    done(both.nodes.update(replace(hidden, reason="another")))
    hidden = both.nodes.record(KEY)
    assert hidden is not None
    done(both.nodes.delete(hidden))

    assert both.held() == held


@pytest.mark.parametrize("end", [BY_RULE, BY_NODE])
@pytest.mark.parametrize("start", [BY_RULE, BY_NODE])
def test_what_has_changed_since_it_was_read_is_neither_written_nor_moved(
    both: Both, start: Record, end: Record
) -> None:
    stale = both.put(start)
    store = both.nodes if isinstance(start.target, NodeTarget) else both.rules
    done(store.update(replace(stale, latched=True)))
    newer = both.held()

    with pytest.raises(ConflictError):
        done(both.backend.update(replace(end, stored=stale.stored)))
    with pytest.raises(ConflictError):
        done(both.backend.delete(stale))
    assert both.held() == newer
    assert both.where() == store.names[0]


def test_of_two_neither_is_written_by_who_has_read_an_older_one(both: Both) -> None:
    stale = twice(both)
    done(both.rules.update(replace(stale, latched=True)))
    newer = both.held()

    hidden = both.nodes.record(KEY)
    assert hidden is not None
    for end, read in product((BY_RULE, BY_NODE), (stale, hidden)):
        with pytest.raises(ConflictError):
            done(both.backend.update(replace(end, stored=read.stored)))
    assert both.held() == newer


# Anything, in any order

STEPS = st.tuples(
    st.sampled_from(
        [
            "create",
            "update",
            "tidy",
            "delete",
            "hand-deletes-rule",
            "hand-deletes-node",
            "hand-changes-rule",
            "hand-latches-node",
        ]
    ),
    st.sampled_from([BY_RULE.target, BY_NODE.target]),
    st.none() | st.tuples(st.sampled_from(["rules", "nodes"]), st.sampled_from(["before", "after"]), st.integers(0, 1)),
)


def step(both: Both, what: str, target: AnyTarget) -> None:
    """One write of ours, based on what is read, or of somebody else's hand."""
    seen, rule, hidden = both.backend.record(KEY), both.rules.record(KEY), both.nodes.record(KEY)
    if what == "create":
        done(both.backend.create(replace(BY_RULE, target=target)))
    elif what == "hand-deletes-rule" and rule:
        done(both.rules.delete(rule))
    elif what == "hand-changes-rule" and rule:
        done(both.rules.update(replace(rule, reason=rule.reason + "!")))
    elif what == "hand-deletes-node" and hidden:
        done(both.nodes.delete(hidden))
    elif what == "hand-latches-node" and hidden:
        done(both.nodes.update(replace(hidden, latched=True)))
    elif what == "update" and seen:
        done(both.backend.update(replace(seen, target=target)))
    elif what == "tidy" and seen:
        done(both.backend.update(seen))
    elif what == "delete" and seen:
        done(both.backend.delete(seen))


@given(st.lists(STEPS, max_size=12))
def test_after_anything_it_is_told_as_it_is_and_one_write_tidies(steps: list[tuple[str, AnyTarget, Any]]) -> None:
    both = Both()
    for what, target, cut in steps:
        for store in (both.rules, both.nodes):
            store.arm(**({cut[1]: cut[2]} if cut and cut[0] == store.names[0] else {}))
        before, gone = both.backend.record(KEY), both.moments_without
        with suppress(Cut, ConflictError):
            step(both, what, target)
        after = both.backend.record(KEY)
        assert both.known == ({KEY: after} if after else {})
        assert list(both.backend.records()) == ([after] if after else [])
        if "delete" not in what:
            assert both.moments_without == gone, "no write but a delete takes a record away, for however short a time"
            assert after is not None or before is None
    for store in (both.rules, both.nodes):
        store.arm()
    if (seen := both.backend.record(KEY)) is not None:
        done(both.backend.update(seen))
        assert both.where() == both.backend.name_of(both.held())
        assert content(both.held()) == content(seen)


# Rules that are there and are none to rely on


def becomes(both: Both, **changes: Any) -> None:
    """Have others change the rule."""
    before = both.rules.record(KEY)
    assert before is not None
    after = both.rules._records[KEY] = replace(before, **changes)
    both.rules.on_change(before, after, True)


def ending(both: Both) -> None:
    """Have a finalizer hold up the deletion of the rule."""
    becomes(both, ending=True, state=State.WITHHELD)


def test_a_rule_that_is_being_deleted_is_never_taken_for_the_record(both: Both) -> None:
    """Tidied up in its favour, the record would go with it as soon as its finalizer does."""
    both.put(BY_RULE)
    ending(both)
    done(both.backend.create(BY_NODE))

    assert both.where() == "rules+nodes"
    assert content(both.held()) == content(BY_NODE)
    assert not both.backend.untidy(KEY)
    done(both.backend.update(replace(both.held(), latched=True)))
    assert both.where() == "rules+nodes", "it is not deleted again at every look"
    assert both.held().latched


def test_nothing_moves_to_a_rule_that_is_being_deleted(both: Both) -> None:
    both.put(BY_RULE)
    ending(both)
    done(both.backend.create(BY_NODE))

    with pytest.raises(UnavailableError, match="still being deleted"):
        both.backend.update(replace(both.held(), target=BY_RULE.target)).send(None)
    assert content(both.held()) == content(BY_NODE)


def test_a_rule_that_is_not_served_is_never_taken_for_the_record(both: Both) -> None:
    both.put(BY_RULE)
    becomes(both, target=on_node(), taint=replace(BY_RULE.taint, effect=Effect.NONE))
    done(both.backend.create(BY_NODE))

    assert content(both.held()) == content(BY_NODE)


def test_an_operators_word_on_the_node_stands_when_the_rule_is_back(both: Both) -> None:
    """The latched rule in the store would evict whoever was let onto the device since."""
    both.put(replace(BY_RULE, latched=True))
    released = replace(
        BY_NODE,
        latched=False,
        taint=replace(BY_NODE.taint, effect=Effect.NONE),
        state=State.RELEASED,
        released_until=NOW + timedelta(hours=1),
        released_by="ann",
        reason="new board",
    )
    done(both.nodes.create(released))

    held = both.held()
    assert (held.state, held.latched, held.released_by) == (State.RELEASED, False, "ann")
    assert (held.released_until, held.reason) == (released.released_until, "new board")
    assert held.taint.effect is BY_RULE.taint.effect, "as it is, until that is lowered"
