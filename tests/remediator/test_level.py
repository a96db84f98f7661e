"""Levelling: every path of the sentence that all others hang on.

Lowering is immediate. Raising needs a latched record, or a firing that is being processed now, and always passes the
budget.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
from remediator.budget import Limit
from remediator.level import NO_EVIDENCE, NO_ROOM, View, level
from remediator.records import NEVER, Record, State, Stored, Taint
from remediator.targets import NodeTarget, Target
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, on_node, record, view
from tests.remediator.strategies import any_targets, records, starts, views

if TYPE_CHECKING:
    from datetime import datetime

    from remediator.records import Key
    from remediator.targets import AnyTarget

NONE, NO_SCHEDULE, NO_EXECUTE = Effect
HERE = Target(DRIVER, NODE, "neuron-device-3")
THERE = Target(DRIVER, NODE, "neuron-node")
GUESS = Target(DRIVER, NODE, "neuron-device-3", placed=False)
STORED = Stored("neuron-health.x", "rule-uid", "7")

UNLATCHED, LATCHED = "link_host", "hbm"
"""Both are to have NoExecute."""


def held(
    effect: Effect,
    state: State,
    reason: str | None = None,
    *,
    latched: bool = False,
    target: AnyTarget = HERE,
) -> Record:
    """A record of a fault that is to have NoExecute."""
    standing = record(LATCHED if latched else UNLATCHED, state=state, target=target, stored=STORED)
    reason = standing.reason if reason is None else reason
    return replace(standing, taint=replace(standing.taint, effect=effect), reason=reason)


def is_lowered_to(before: Record, after: Record, seen: View) -> None:
    """The same comes out whether a firing is being processed or not, and whatever the budget says."""
    for refusal in (None, *Limit):
        tight = replace(seen, refusal=view(refusal=refusal).refusal)
        assert level(before, tight, firing=False) == after
        assert level(before, tight, firing=True) == after


# Lowering is immediate


@pytest.mark.parametrize("latched", [False, True])
@pytest.mark.parametrize("cap", [NONE, NO_SCHEDULE])
def test_a_lowered_cap_lowers_at_once(cap: Effect, *, latched: bool) -> None:
    active = held(NO_EXECUTE, State.ACTIVE, latched=latched)

    is_lowered_to(active, held(cap, State.ACTIVE, latched=latched), view(max_effect=cap))


@pytest.mark.parametrize("latched", [False, True])
def test_an_effect_stronger_than_decided_is_lowered_at_once_whatever_state_it_is_in(*, latched: bool) -> None:
    for state in State:
        strong = held(NO_EXECUTE, state, "made stronger by a hand", latched=latched)
        is_lowered_to(strong, held(NO_SCHEDULE, State.ACTIVE, latched=latched), view(max_effect=NO_SCHEDULE))


@pytest.mark.parametrize("latched", [False, True])
def test_an_opt_out_lowers_at_once(*, latched: bool) -> None:
    lowered = held(NONE, State.OPTED_OUT, "the Node is opted out", latched=latched)

    is_lowered_to(held(NO_EXECUTE, State.ACTIVE, latched=latched), lowered, view(opted_out=True))


@pytest.mark.parametrize("latched", [False, True])
def test_a_taint_of_the_driver_that_is_as_strong_lowers_at_once(*, latched: bool) -> None:
    lowered = held(NONE, State.COVERED, "another's taint there is at least as strong", latched=latched)

    is_lowered_to(held(NO_EXECUTE, State.ACTIVE, latched=latched), lowered, view(driver=NO_EXECUTE))


@pytest.mark.parametrize(
    ("wanted", "driver", "covered"),
    [
        (NONE, NONE, False),
        (NONE, NO_EXECUTE, False),
        (NO_SCHEDULE, NONE, False),
        (NO_SCHEDULE, NO_SCHEDULE, True),
        (NO_SCHEDULE, NO_EXECUTE, True),
        (NO_EXECUTE, NO_SCHEDULE, False),
        (NO_EXECUTE, NO_EXECUTE, True),
    ],
)
def test_only_a_taint_at_least_as_strong_covers_and_a_preview_is_not_covered(
    wanted: Effect, driver: Effect, *, covered: bool
) -> None:
    levelled = level(held(NONE, State.ACTIVE), view(max_effect=wanted, driver=driver), firing=True)

    assert (levelled.state, levelled.taint.effect) == ((State.COVERED, NONE) if covered else (State.ACTIVE, wanted))


def test_the_driver_is_asked_about_the_target_that_counts() -> None:
    """A taint on the whole node says nothing of a device that a slice lists by itself."""
    seen = replace(view(target=HERE), driver_effect=lambda target: NO_EXECUTE if target == THERE else NONE)

    assert level(held(NO_EXECUTE, State.ACTIVE), seen, firing=False).state is State.ACTIVE
    assert level(held(NO_EXECUTE, State.ACTIVE), replace(seen, target=THERE), firing=False).state is State.COVERED


# Raising needs a latched record, or a firing, and always passes the budget


WAYS_BACK = [
    pytest.param(State.OPTED_OUT, "the Node is opted out", id="the-opt-out-went"),
    pytest.param(State.COVERED, "another's taint there is at least as strong", id="the-driver-s-taint-went"),
    pytest.param(State.WITHHELD, f"{NO_ROOM}new", id="the-budget-has-room-again"),
    pytest.param(State.WITHHELD, NO_EVIDENCE, id="withheld-for-want-of-evidence"),
    pytest.param(State.ACTIVE, None, id="the-cap-was-lifted-or-a-hand-weakened-it"),
]


@pytest.mark.parametrize("weaker", [NONE, NO_SCHEDULE])
@pytest.mark.parametrize(("state", "reason"), WAYS_BACK)
def test_without_a_firing_an_unlatched_record_is_never_raised(state: State, reason: str | None, weaker: Effect) -> None:
    before = held(weaker, state, reason)
    stays = held(weaker, State.WITHHELD, reason if state is State.WITHHELD else NO_EVIDENCE)

    assert level(before, view(), firing=False) == stays


@pytest.mark.parametrize("weaker", [NONE, NO_SCHEDULE])
@pytest.mark.parametrize(("state", "reason"), WAYS_BACK)
@pytest.mark.parametrize(("latched", "firing"), [(True, False), (True, True), (False, True)])
def test_a_latched_record_or_a_firing_is_raised_if_there_is_room(
    state: State, reason: str | None, weaker: Effect, *, latched: bool, firing: bool
) -> None:
    before = held(weaker, state, reason, latched=latched)

    assert level(before, view(), firing=firing) == held(NO_EXECUTE, State.ACTIVE, latched=latched)


@pytest.mark.parametrize("limit", Limit)
@pytest.mark.parametrize("weaker", [NONE, NO_SCHEDULE])
@pytest.mark.parametrize(("state", "reason"), WAYS_BACK)
@pytest.mark.parametrize(("latched", "firing"), [(True, False), (True, True), (False, True)])
def test_without_room_neither_is_raised(
    state: State, reason: str | None, weaker: Effect, limit: Limit, *, latched: bool, firing: bool
) -> None:
    before = held(weaker, state, reason, latched=latched)
    withheld = level(before, view(refusal=limit), firing=firing)

    keeps = reason is not None and reason.startswith(NO_ROOM)
    assert withheld == held(weaker, State.WITHHELD, reason if keeps else f"{NO_ROOM}{limit}", latched=latched)


def test_the_budget_is_asked_exactly_what_is_to_be_written() -> None:
    asked: list[tuple[Key, AnyTarget, Effect]] = []

    def refusal(*question: object) -> Limit | None:
        asked.append(question)  # type: ignore[arg-type] # the three of the signature
        return None

    seen = replace(view(target=THERE, max_effect=NO_SCHEDULE), refusal=refusal)
    raised = level(held(NONE, State.ACTIVE), seen, firing=True)

    assert raised.target == THERE
    assert asked == [(raised.key, THERE, NO_SCHEDULE)]


@pytest.mark.parametrize("firing", [False, True])
def test_another_limit_that_stands_in_the_way_is_no_news(*, firing: bool) -> None:
    """Which of two limits refuses may alternate; a write for each repeated firing would be for nothing."""
    withheld = held(NONE, State.WITHHELD, f"{NO_ROOM}new", latched=True)

    assert level(withheld, view(refusal=Limit.UNAVAILABLE), firing=firing) == withheld


def test_a_withheld_record_in_a_preview_waits_for_its_firing() -> None:
    """Damage by a hand reads as withheld too, and only a firing writes it anew."""
    withheld = held(NONE, State.WITHHELD, NO_EVIDENCE)

    assert level(withheld, view(max_effect=NONE), firing=False) == withheld
    assert level(withheld, view(max_effect=NONE), firing=True) == held(NONE, State.ACTIVE)


@pytest.mark.parametrize(("latched", "firing"), [(True, False), (False, True)])
def test_damage_that_left_the_effect_is_mended(*, latched: bool, firing: bool) -> None:
    damaged = held(NO_EXECUTE, State.WITHHELD, latched=latched)

    assert level(damaged, view(refusal=Limit.NEW), firing=firing) == held(NO_EXECUTE, State.ACTIVE, latched=latched)
    assert level(held(NO_EXECUTE, State.WITHHELD), view(), firing=False) == held(NO_EXECUTE, State.WITHHELD)


# A release, and its end


@pytest.mark.parametrize("firing", [False, True])
@pytest.mark.parametrize("seen", [view(), view(opted_out=True), view(driver=NO_EXECUTE), view(refusal=Limit.NEW)])
def test_while_a_release_lasts_it_stands_above_all(seen: View, *, firing: bool) -> None:
    released = replace(
        held(NONE, State.RELEASED, "swapped the cable"), released_until=NOW + timedelta(hours=1), released_by="alice"
    )

    assert level(released, seen, firing=firing) == released


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        pytest.param(view(), State.WITHHELD, id="withheld"),
        pytest.param(view(opted_out=True), State.OPTED_OUT, id="opted-out"),
        pytest.param(view(driver=NO_EXECUTE), State.COVERED, id="covered"),
        pytest.param(view(max_effect=NONE), State.ACTIVE, id="preview"),
    ],
)
@pytest.mark.parametrize("until", [NOW, NOW - timedelta(days=1), NEVER])
def test_when_it_ends_nothing_of_it_is_left_and_nothing_rises(seen: View, state: State, until: datetime) -> None:
    released = replace(held(NONE, State.RELEASED, "swapped the cable"), released_until=until, released_by="alice")
    ended = level(released, seen, firing=False)

    assert (ended.state, ended.taint.effect, ended.released_until, ended.released_by) == (state, NONE, NEVER, "")
    assert ended.reason != "swapped the cable"


def test_an_effect_that_a_hand_gave_to_a_released_record_is_taken_off() -> None:
    released = replace(held(NO_EXECUTE, State.RELEASED, "swapped the cable"), released_until=NOW + timedelta(hours=1))

    assert level(released, view(), firing=True).taint.effect is NONE


# Where it lands


@pytest.mark.parametrize(("latched", "firing"), [(True, False), (False, True)])
def test_a_device_that_moved_takes_its_record_along_if_there_is_room(*, latched: bool, firing: bool) -> None:
    before = held(NO_EXECUTE, State.ACTIVE, latched=latched)

    assert level(before, view(target=THERE), firing=firing) == replace(before, target=THERE)
    assert level(before, view(target=THERE, refusal=Limit.NEW), firing=firing) == held(
        NO_EXECUTE, State.WITHHELD, f"{NO_ROOM}new", latched=latched
    )


def test_a_device_that_moved_is_not_disturbed_at_its_new_place_without_evidence() -> None:
    before = held(NO_EXECUTE, State.ACTIVE)
    waits = held(NO_EXECUTE, State.WITHHELD, NO_EVIDENCE)

    assert level(before, view(target=THERE), firing=False) == waits
    assert level(waits, view(target=THERE), firing=False) == waits
    assert level(waits, view(target=THERE), firing=True) == replace(before, target=THERE)


def test_what_informs_only_moves_freely() -> None:
    before = held(NONE, State.ACTIVE)

    assert level(before, view(target=THERE, max_effect=NONE), firing=False) == replace(before, target=THERE)


@pytest.mark.parametrize("cap", [NONE, NO_SCHEDULE])
def test_a_cap_lowers_also_what_waits_to_be_moved(cap: Effect) -> None:
    """Nothing at its new place, it is as strong as ever at its old one."""
    waits = held(NO_EXECUTE, State.WITHHELD, NO_EVIDENCE)

    lowered = level(waits, view(target=THERE, max_effect=cap), firing=False)
    assert lowered.taint.effect is cap


@pytest.mark.parametrize("firing", [False, True])
def test_a_slice_that_is_gone_moves_nothing(*, firing: bool) -> None:
    """The kubelet wipes the slices of its node at every start (dra-driver-nvidia-gpu#330)."""
    for seen in (view(target=GUESS), view(target=replace(GUESS, device="neuron-device-7"))):
        active = held(NO_EXECUTE, State.ACTIVE)
        opted_out = held(NONE, State.OPTED_OUT, "the Node is opted out")
        assert level(active, seen, firing=firing) == active
        assert level(opted_out, replace(seen, opted_out=True), firing=firing) == opted_out


@pytest.mark.parametrize("firing", [False, True])
def test_a_guess_that_a_slice_confirms_is_a_place(*, firing: bool) -> None:
    assert level(held(NO_EXECUTE, State.ACTIVE, target=GUESS), view(), firing=firing) == held(NO_EXECUTE, State.ACTIVE)


# On a Node as a whole, and from there to a device and back

WHOLE = on_node()
OTHER_POOL = Target(DRIVER, "pool-2", "neuron-device-3")


def with_key(one: Record, key: str) -> Record:
    """The record as it was written when the key of taints was another."""
    return replace(one, taint=replace(one.taint, key=key))


@pytest.mark.parametrize(("latched", "firing"), [(True, False), (False, True)])
def test_a_node_is_kept_free_of_new_work_only(*, latched: bool, firing: bool) -> None:
    """NoExecute would take the DRA driver off it too."""
    before = held(NONE, State.ACTIVE, latched=latched, target=WHOLE)

    assert level(before, view(target=WHOLE), firing=firing) == held(
        NO_SCHEDULE, State.ACTIVE, latched=latched, target=WHOLE
    )
    assert level(before, view(target=WHOLE, node_no_execute=True), firing=firing) == held(
        NO_EXECUTE, State.ACTIVE, latched=latched, target=WHOLE
    )


@pytest.mark.parametrize("latched", [False, True])
def test_what_a_node_may_no_longer_have_is_lowered_at_once(*, latched: bool) -> None:
    evicts = held(NO_EXECUTE, State.ACTIVE, latched=latched, target=WHOLE)

    is_lowered_to(evicts, held(NO_SCHEDULE, State.ACTIVE, latched=latched, target=WHOLE), view(target=WHOLE))


@pytest.mark.parametrize("firing", [False, True])
@pytest.mark.parametrize("device", [HERE, THERE])
@pytest.mark.parametrize("refusal", [None, *Limit])
def test_from_its_node_a_device_takes_the_effect_along_without_evidence_and_without_budget(
    device: Target, refusal: Limit | None, *, firing: bool
) -> None:
    """Whoever could use the device was kept off its Node: nobody is disturbed who was not."""
    standing = record("link_efa", target=WHOLE, stored=STORED)

    assert level(standing, view(target=device, refusal=refusal), firing=firing) == replace(standing, target=device)


def test_what_it_is_to_have_above_that_takes_both() -> None:
    standing = held(NO_SCHEDULE, State.ACTIVE, target=WHOLE)
    moved = held(NO_SCHEDULE, State.WITHHELD, NO_EVIDENCE)

    assert level(standing, view(), firing=False) == moved
    assert level(standing, view(refusal=Limit.NEW), firing=True) == held(NO_SCHEDULE, State.WITHHELD, f"{NO_ROOM}new")
    assert level(standing, view(), firing=True) == held(NO_EXECUTE, State.ACTIVE)
    assert level(moved, view(), firing=True) == held(NO_EXECUTE, State.ACTIVE)


def test_a_device_of_a_pool_that_is_not_its_node_s_is_another_place() -> None:
    """Nothing says that who is kept off the Node could have used it."""
    standing = record("link_efa", target=WHOLE)

    assert level(standing, view(target=OTHER_POOL), firing=False) == replace(
        standing, state=State.WITHHELD, reason=NO_EVIDENCE
    )
    assert level(standing, view(target=OTHER_POOL), firing=True) == replace(standing, target=OTHER_POOL)


@pytest.mark.parametrize("firing", [False, True])
def test_what_waits_on_its_node_for_a_device_is_no_stronger_than_a_node_may_have(*, firing: bool) -> None:
    evicts = held(NO_EXECUTE, State.ACTIVE, target=WHOLE)

    waits = level(evicts, view(target=OTHER_POOL, refusal=Limit.NEW), firing=firing)
    assert (waits.target, waits.taint.effect, waits.state) == (WHOLE, NO_SCHEDULE, State.WITHHELD)


@pytest.mark.parametrize(("latched", "firing"), [(True, False), (False, True)])
def test_from_a_device_to_its_node_it_takes_evidence_and_room(*, latched: bool, firing: bool) -> None:
    """The Node's other devices are free, and are not any more."""
    standing = replace(record("link_efa", stored=STORED), latched=latched)
    whole = on_node(placed=True)

    assert level(standing, view(target=whole), firing=firing) == replace(standing, target=whole)
    assert level(standing, view(target=whole, refusal=Limit.NEW), firing=firing) == replace(
        standing, state=State.WITHHELD, reason=f"{NO_ROOM}new"
    )
    assert level(record("link_efa"), view(target=whole), firing=False) == replace(
        record("link_efa"), state=State.WITHHELD, reason=NO_EVIDENCE
    )


@pytest.mark.parametrize("firing", [False, True])
def test_a_device_whose_slice_is_away_does_not_become_its_node(*, firing: bool) -> None:
    standing = held(NO_EXECUTE, State.ACTIVE)

    assert level(standing, view(target=on_node(placed=False)), firing=firing) == standing


@pytest.mark.parametrize("firing", [False, True])
def test_which_device_the_node_stands_for_is_no_other_target(*, firing: bool) -> None:
    """After a restart, the Node says less of it than before."""
    standing = held(NO_SCHEDULE, State.ACTIVE, target=WHOLE)
    seen = view(target=NodeTarget(NODE, THERE, placed=True))

    assert level(standing, seen, firing=firing) == standing


def test_another_key_is_another_taint_that_only_evidence_brings() -> None:
    """Whoever tolerates the one need not tolerate the other: for him the new one is a new taint."""
    standing = held(NO_EXECUTE, State.ACTIVE)
    seen = view(taint_key="example.com/other")
    waits = replace(standing, state=State.WITHHELD, reason=NO_EVIDENCE)

    assert level(standing, seen, firing=False) == waits
    assert level(waits, seen, firing=False) == waits
    assert level(waits, seen, firing=True) == with_key(standing, "example.com/other")
    assert level(standing, replace(seen, refusal=view(refusal=Limit.NEW).refusal), firing=True) == replace(
        standing, state=State.WITHHELD, reason=f"{NO_ROOM}new"
    )


def test_a_latched_record_has_the_new_key_at_once() -> None:
    standing = held(NO_EXECUTE, State.ACTIVE, latched=True)

    moved = level(standing, view(taint_key="example.com/other"), firing=False)
    assert moved == with_key(standing, "example.com/other")


def test_a_value_that_the_table_has_no_more_is_as_another_key() -> None:
    standing = held(NO_EXECUTE, State.ACTIVE)
    former = replace(standing, taint=replace(standing.taint, value="host-link"))
    waits = replace(former, state=State.WITHHELD, reason=NO_EVIDENCE)

    assert level(former, view(), firing=False) == waits
    assert level(waits, view(), firing=True) == standing
    assert level(replace(former, latched=True), view(), firing=False) == replace(standing, latched=True)


@pytest.mark.parametrize("firing", [False, True])
def test_what_only_informs_has_the_new_key_at_once(*, firing: bool) -> None:
    before = held(NONE, State.ACTIVE)

    levelled = level(before, view(max_effect=NONE, taint_key="example.com/other"), firing=firing)
    assert levelled == with_key(before, "example.com/other")


def test_a_cap_lowers_what_still_has_the_former_key() -> None:
    standing = held(NO_EXECUTE, State.ACTIVE)

    lowered = level(standing, view(max_effect=NO_SCHEDULE, taint_key="example.com/other"), firing=False)
    assert lowered == held(NO_SCHEDULE, State.WITHHELD, NO_EVIDENCE)


# What holds for any record in any surroundings

many = settings(max_examples=400, deadline=None)
"""The rare corner is one of state, cap, place and evidence at once."""

some_records = records(
    started=starts, nodes=st.just(NODE), at=any_targets, taint_keys=st.sampled_from([TAINT_KEY, "example.com/before"])
)


def wanted(one: Record, seen: View) -> Effect:
    """By the policy, for the target that counts: a place that is known is not left for one that is guessed."""
    target = seen.target if seen.target.placed or not one.target.placed else one.target
    return seen.policy.effect_of(one.key.fault, target)


@many
@given(some_records, views, st.booleans())
def test_levelling_is_done_once(one: Record, seen: View, firing: bool) -> None:  # noqa: FBT001 - drawn
    levelled = level(one, seen, firing=firing)

    assert level(levelled, seen, firing=firing) == levelled
    # And a sweep after a firing finds nothing to do.
    if firing:
        assert level(levelled, seen, firing=False) == levelled


@many
@given(some_records, views, st.booleans())
def test_nothing_is_stronger_than_policy_allows(one: Record, seen: View, firing: bool) -> None:  # noqa: FBT001 - drawn
    levelled = level(one, seen, firing=firing)

    assert levelled.taint.effect.rank <= wanted(one, seen).rank
    assert levelled.taint.effect.rank <= seen.policy.effect_of(one.key.fault, levelled.target).rank
    if levelled.state in {State.RELEASED, State.OPTED_OUT, State.COVERED}:
        assert levelled.taint.effect is NONE
    if levelled.state is State.ACTIVE:
        assert levelled.taint.effect is wanted(one, seen)


def kept_off_before(one: Record, levelled: Record) -> bool:
    """Whether who uses what is tainted now has met the very same taint there: on it, or on the Node it is part of."""
    same_taint = replace(one.taint, effect=NONE) == replace(levelled.taint, effect=NONE)
    before, now = one.target.place, levelled.target.place
    return same_taint and (before == now or (isinstance(one.target, NodeTarget) and before.pool == now.pool))


@many
@given(some_records, views, st.booleans())
def test_only_evidence_and_room_raise(one: Record, seen: View, firing: bool) -> None:  # noqa: FBT001 - drawn
    levelled = level(one, seen, firing=firing)

    before = one.taint.effect.rank if kept_off_before(one, levelled) else 0
    if levelled.taint.effect.rank > before:
        assert firing or one.latched
        assert seen.refusal(one.key, levelled.target, levelled.taint.effect) is None


@many
@given(some_records, views, st.booleans())
def test_all_else_that_the_record_says_stays(one: Record, seen: View, firing: bool) -> None:  # noqa: FBT001 - drawn
    levelled = level(one, seen, firing=firing)

    for name in ("key", "node_uid", "latched", "episode", "first_fired", "last_fired", "tainted_since", "stored"):
        assert getattr(levelled, name) == getattr(one, name)
    taint, today = replace(levelled.taint, effect=NONE), Taint(TAINT_KEY, FAULTS[one.key.fault].value, NONE)
    assert taint == today or (taint == replace(one.taint, effect=NONE) and levelled.state is State.WITHHELD)
    assert (levelled.released_until > NOW) == (levelled.state is State.RELEASED)


@pytest.mark.parametrize("part", ["driver", "pool", "device"])
def test_a_selector_that_a_hand_has_emptied_is_lowered_at_once_and_mended(part: str) -> None:
    """It taints every device of the pool, the driver or the cluster; no firing may come for long."""
    emptied = replace(HERE, **{part: "?"}, placed=False)
    held = replace(record("device_unreachable"), target=emptied, state=State.WITHHELD)

    settled = level(held, view(), firing=False)

    assert (settled.target, settled.taint.effect, settled.state) == (view().target, Effect.NONE, State.WITHHELD)
    assert level(settled, view(), firing=False) == settled
    assert level(held, view(), firing=True).taint.effect is Effect.NO_EXECUTE
    assert level(replace(held, latched=True), view(), firing=False).taint.effect is Effect.NO_EXECUTE


def test_a_rule_that_a_hand_has_pointed_at_another_driver_comes_back_by_a_firing_alone() -> None:
    elsewhere = replace(HERE, driver="other.example.com")
    held = replace(record("device_unreachable"), target=elsewhere)

    assert level(held, view(), firing=False).state is State.WITHHELD
    assert level(held, view(refusal=Limit.NEW), firing=True).target == elsewhere
    assert level(held, view(), firing=True).target == view().target


@pytest.mark.parametrize("fault", ["hbm", "device_unreachable"])
def test_a_slice_that_is_away_moves_no_rule_to_the_whole_node(fault: str) -> None:
    """Not even the rule of a device that the slice did not list: each restart of the kubelet would cost all others."""
    standing = replace(record(fault), target=GUESS)
    assert level(standing, view(target=on_node(placed=False)), firing=False) == standing


@pytest.mark.parametrize("fault", ["hbm", "device_unreachable"])
def test_a_firing_moves_a_rule_that_taints_nothing_to_the_node(fault: str) -> None:
    """Left where it is, it would be called active, with nothing tainted: no alert would ever tell."""
    standing = replace(record(fault), target=GUESS)
    moved = level(standing, view(target=on_node(placed=False)), firing=True)
    assert (moved.target, moved.taint.effect, moved.state) == (on_node(), NO_SCHEDULE, State.ACTIVE)
