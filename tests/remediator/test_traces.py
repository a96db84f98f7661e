"""What people and machines are told of a change: any pair of records, and the sentences word for word."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator.records import State, Stored
from remediator.rule_records import object_name
from remediator.targets import NodeTarget, Target
from remediator.traces import MESSAGE_LIMIT, Change, Level, Reason, audit_of, event_of
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, on_node, record
from tests.remediator.strategies import hostile_texts, instants, records

if TYPE_CHECKING:
    from remediator.records import Record
    from remediator.targets import AnyTarget

_long_name = st.just("n" * 253)
_devices = st.builds(
    Target,
    driver=st.just("d" * 253) | st.just(DRIVER),
    pool=_long_name | st.just(NODE),
    device=st.sampled_from(["neuron-device-3", "neuron-node", "x" * 63]),
    placed=st.booleans(),
)
_targets: st.SearchStrategy[AnyTarget] = _devices | st.builds(
    NodeTarget, node=_long_name | st.just(NODE), device=_devices
)
_words = hostile_texts | st.text(min_size=1000, max_size=3000)


@st.composite
def _changes(draw: st.DrawFn) -> Change:
    """Draw any change of one record, as hands and machines may have left it."""

    def any_record(base: Record) -> Record:
        return replace(
            base,
            target=draw(_targets),
            state=draw(st.sampled_from(State)),
            latched=draw(st.booleans()),
            taint=replace(base.taint, effect=draw(st.sampled_from(Effect))),
            reason=draw(_words),
            released_until=draw(instants),
            released_by=draw(_words),
        )

    base = draw(records())
    before, after = any_record(base), any_record(base)
    action = draw(st.sampled_from(["create", "update", "delete", "void", "retire", "rename", "removed"]))
    if action == "create":
        return Change(action, None, after)
    return Change(action, before, after if action == "update" else None)


def _effects(change: Change) -> tuple[Effect, Effect]:
    before, after = (one.taint.effect if one else Effect.NONE for one in (change.before, change.after))
    return before, after


@given(_changes())
def test_any_change_has_a_well_formed_event_or_none(change: Change) -> None:
    told = event_of(change)
    if told is None:
        return
    assert told.reason in Reason
    assert told.level in Level
    assert len(told.message.encode()) <= MESSAGE_LIMIT
    assert told.message.isprintable()
    key = change.record.key
    assert told.message.startswith(f"Neuron device {key.device}, fault {key.fault}: its ")
    assert told.message.split(": its ")[1].startswith(("taint ", "record "))
    target = change.record.target
    assert (target.node if isinstance(target, NodeTarget) else target.device) in told.message


@given(_changes())
def test_no_raised_or_lowered_effect_goes_untold(change: Change) -> None:
    before, after = _effects(change)
    told = event_of(change)
    if change.action in {"void", "rename"}:
        assert told is None  # its successor is told of: the new machine's, or the one of the fault's new name
    elif after.rank > before.rank:
        assert told is not None
        assert (told.reason, told.level) == (Reason.TAINTED, Level.WARNING)
    elif after.rank < before.rank:
        assert told is not None
        assert told.reason is not Reason.TAINTED
        assert f"was {before}" in told.message


@given(_changes())
def test_a_state_that_begins_is_told(change: Change) -> None:
    if change.after is not None and (change.before is None or change.before.state is not change.after.state):
        assert event_of(change) is not None


@given(_changes())
def test_any_change_is_one_flat_line_of_json(change: Change) -> None:
    fields = audit_of(change)
    line = json.dumps(fields)
    assert "\n" not in line
    assert json.loads(line) == fields
    assert all(value is None or isinstance(value, str | int | bool) for value in fields.values())
    assert len(line) < 20_000


@given(records(), instants)
def test_a_new_episode_is_for_the_audit_line_only(held: Record, fired: Any) -> None:
    newer = replace(held, episode="other", last_fired=fired, stored=Stored("a", "b", "2"), tainted_since=fired)
    assert event_of(Change("update", held, newer)) is None
    assert audit_of(Change("update", held, newer))["episode"] == "other"


HBM, EFA = record(), record("link_efa")
PLACE = f"{DRIVER}/{NODE}/neuron-device-3"
ELSEWHERE = Target(DRIVER, "pool-2", "neuron-device-3")
ON_NODE = replace(EFA, target=on_node())
WHOLE = f"the whole Node {NODE}"
ONLY = "it ends with a new node or an operator's release only"
CLEAN = "it ends with clean readings"


def _with(held: Record, effect: Effect, state: State = State.ACTIVE, **changes: Any) -> Record:
    return replace(held, taint=replace(held.taint, effect=effect), state=state, **changes)


RELEASED = _with(
    HBM,
    Effect.NONE,
    State.RELEASED,
    latched=False,
    released_until=NOW + timedelta(hours=2),
    released_by="alice",
    reason="swapped the\ncarrier \x1b[31mboard",
)
WITHHELD = _with(HBM, Effect.NONE, State.WITHHELD, reason="withheld by the budget: new")
COVERED = _with(EFA, Effect.NONE, State.COVERED)
LONGER = replace(RELEASED, released_until=NOW + timedelta(hours=4))

SENTENCES: list[tuple[Change, Reason, str]] = [
    (
        Change("create", None, HBM),
        Reason.TAINTED,
        f"its taint on {PLACE} is NoExecute, by alert NeuronDeviceHBMUncorrectableError; {ONLY}",
    ),
    (
        Change("update", WITHHELD, HBM),
        Reason.TAINTED,
        f"its taint on {PLACE} is NoExecute now, was None, by alert NeuronDeviceHBMUncorrectableError; {ONLY}",
    ),
    (
        Change("update", HBM, _with(HBM, Effect.NO_SCHEDULE)),
        Reason.LOWERED,
        (
            f"its taint on {PLACE} is NoSchedule now, was NoExecute, by alert NeuronDeviceHBMUncorrectableError, "
            f"as --max-effect allows no more; {ONLY}"
        ),
    ),
    (
        Change("create", None, _with(EFA, Effect.NONE)),
        Reason.RECORDED,
        f"its taint on {PLACE} is None, by alert NeuronDeviceEFALinkError, as --max-effect allows no more; {CLEAN}",
    ),
    (
        Change("create", None, WITHHELD),
        Reason.WITHHELD,
        (
            f"its taint on {PLACE} is None, withheld by the budget: new; it is latched, so it rises by itself when "
            f"there is room; {ONLY}"
        ),
    ),
    (
        Change("update", EFA, COVERED),
        Reason.COVERED,
        (
            f"its taint on {PLACE} is None now, was NoSchedule: the driver's own taint there is at least as strong; "
            "when that one is gone, a firing raises it"
        ),
    ),
    (
        Change("update", HBM, RELEASED),
        Reason.RELEASED,
        (
            f'its taint on {PLACE} is None now, was NoExecute: released by "alice" until 2026-11-30T14:00:00Z, '
            '"swapped the carrier [31mboard"; clean readings end it before'
        ),
    ),
    (
        Change("create", None, _with(EFA, Effect.NONE, State.WITHHELD, reason="withheld by the budget: unavailable")),
        Reason.WITHHELD,
        (
            f"its taint on {PLACE} is None, withheld by the budget: unavailable; a firing raises it when there is "
            f"room; {CLEAN}"
        ),
    ),
    (
        Change("update", EFA, _with(EFA, Effect.NONE, State.WITHHELD, reason="withheld until the fault fires again")),
        Reason.WITHHELD,
        (
            f"its taint on {PLACE} is None now, was NoSchedule, withheld until the fault fires again; a firing raises "
            f"it; {CLEAN}"
        ),
    ),
    (
        Change("update", EFA, _with(EFA, Effect.NONE, State.OPTED_OUT)),
        Reason.OPTED_OUT,
        (
            f"its taint on {PLACE} is None now, was NoSchedule: its Node is labelled neuron-remediator/opt-out=true; "
            "once the label is gone, a firing taints it again"
        ),
    ),
    (
        Change("update", RELEASED, LONGER),
        Reason.RELEASED,
        (
            f'its taint on {PLACE} is None as before: released by "alice" until 2026-11-30T16:00:00Z, '
            '"swapped the carrier [31mboard"; clean readings end it before'
        ),
    ),
    (
        Change("update", HBM, _with(HBM, Effect.NONE, State.OPTED_OUT)),
        Reason.OPTED_OUT,
        (
            f"its taint on {PLACE} is None now, was NoExecute: its Node is labelled neuron-remediator/opt-out=true; "
            "once the label is gone, it is tainted again at once"
        ),
    ),
    (
        Change("update", EFA, replace(EFA, latched=True)),
        Reason.LATCHED,
        f"its taint on {PLACE}, NoSchedule as before, is latched now, by alert NeuronDeviceEFALinkError; {ONLY}",
    ),
    (
        Change("update", EFA, replace(EFA, target=ELSEWHERE)),
        Reason.MOVED,
        (
            f"its taint is NoSchedule on {DRIVER}/pool-2/neuron-device-3 now, was NoSchedule on {PLACE}, "
            f"by alert NeuronDeviceEFALinkError; {CLEAN}"
        ),
    ),
    (
        Change("delete", EFA, None),
        Reason.CLEARED,
        f"its taint on {PLACE} is gone, was NoSchedule: clean readings ended it",
    ),
    (
        Change("removed", HBM, None),
        Reason.REMOVED,
        (
            f"its taint on {PLACE} is gone, was NoExecute: somebody else deleted rule {object_name(HBM.key)}, "
            "by hand or with its Node; a firing brings it back while the fault is there"
        ),
    ),
    (
        Change("retire", HBM, None),
        Reason.RETIRED,
        f"its taint on {PLACE} is gone, was NoExecute: this release knows no such fault any more",
    ),
    (
        Change("create", None, ON_NODE),
        Reason.TAINTED,
        f"its taint on {WHOLE} is NoSchedule, by alert NeuronDeviceEFALinkError; {CLEAN}",
    ),
    (
        Change("update", ON_NODE, EFA),
        Reason.MOVED,
        (
            f"its taint is NoSchedule on {PLACE} now, was NoSchedule on {WHOLE}, "
            f"by alert NeuronDeviceEFALinkError; {CLEAN}"
        ),
    ),
    (
        Change("removed", ON_NODE, None),
        Reason.REMOVED,
        (
            f"its record on {WHOLE} is gone, was NoSchedule: somebody else deleted annotation "
            "neuron-remediator/records, by hand or with its Node; a taint that is still there is not known to be ours, "
            "and stays; a firing brings it back while the fault is there"
        ),
    ),
    (
        Change(
            "create", None, replace(HBM, target=ON_NODE.target, taint=replace(HBM.taint, effect=Effect.NO_SCHEDULE))
        ),
        Reason.TAINTED,
        (
            f"its taint on {WHOLE} is NoSchedule, by alert NeuronDeviceHBMUncorrectableError, "
            f"as --node-taint.allow-no-execute or --max-effect allows no more; {ONLY}"
        ),
    ),
    (
        Change("update", HBM, replace(COVERED, key=HBM.key, latched=True, target=ON_NODE.target)),
        Reason.COVERED,
        (
            f"its taint is None on {WHOLE} now, was NoExecute on {PLACE}: a taint of somebody else there is at least "
            "as strong; when that one is gone, it rises at once"
        ),
    ),
]


@pytest.mark.parametrize(("change", "reason", "sentence"), SENTENCES, ids=lambda value: str(value)[:30])
def test_a_sentence_says_what_is_what_was_why_and_what_ends_it(change: Change, reason: Reason, sentence: str) -> None:
    told = event_of(change)
    assert told is not None
    assert told.reason is reason
    assert told.message == f"Neuron device 3, fault {change.record.key.fault}: {sentence}"


def test_each_reason_has_its_sentence_and_its_level() -> None:
    """A warning is about a fault that is there or a taint that is not."""
    told = [one for change, _, _ in SENTENCES if (one := event_of(change))]
    assert {one.reason: str(one.level) for one in told} == {
        "NeuronDeviceTainted": "Warning",
        "NeuronDeviceTaintLowered": "Normal",
        "NeuronDeviceTaintMoved": "Warning",
        "NeuronDeviceTaintLatched": "Warning",
        "NeuronDeviceTaintWithheld": "Warning",
        "NeuronDeviceTaintCovered": "Normal",
        "NeuronDeviceTaintReleased": "Normal",
        "NeuronDeviceTaintOptedOut": "Normal",
        "NeuronDeviceFaultRecorded": "Normal",
        "NeuronDeviceTaintCleared": "Normal",
        "NeuronDeviceTaintRetired": "Normal",
        "NeuronDeviceTaintRemoved": "Warning",
    }
    assert {str(one.reason) for one in told} == {str(reason) for reason in Reason}


def test_what_an_operator_wrote_at_length_does_not_push_out_the_end() -> None:
    long = replace(RELEASED, reason="é" * 5000, released_by="b" * 5000)
    told = event_of(Change("update", HBM, long))
    assert told is not None
    assert "until 2026-11-30T14:00:00Z" in told.message
    assert told.message.endswith("clean readings end it before")


def test_the_longest_names_there_are_fit() -> None:
    """The limit is one of bytes; what is and what was stand first."""
    places = [Target("d" * 253, pool * 253, "x" * 63) for pool in "pq"]
    old, new = (replace(HBM, target=place, reason="é" * 200) for place in places)
    told = event_of(Change("update", old, new))
    assert told is not None
    assert told.reason is Reason.MOVED
    assert MESSAGE_LIMIT - 3 < len(told.message.encode()) <= MESSAGE_LIMIT
    assert "now, was NoExecute on d" in told.message


def test_a_record_of_another_machine_is_no_effect_of_this_one() -> None:
    told = event_of(Change("update", HBM, replace(HBM, node_uid="uid-2")))
    assert told is not None
    assert "is NoExecute, by alert" in told.message


def test_the_audit_line_has_both_sides() -> None:
    held = replace(HBM, stored=Stored("rule-1", "uid-9", "7"))
    assert audit_of(Change("update", held, RELEASED)) == {
        "action": "update",
        "node": NODE,
        "node_uid": "uid-1",
        "device": 3,
        "fault": "hbm",
        "target": PLACE,
        "target_before": PLACE,
        "taint": f"{TAINT_KEY}=hbm-uncorrectable-error",
        "effect": "None",
        "effect_before": "NoExecute",
        "state": "released",
        "state_before": "active",
        "latched": False,
        "episode": HBM.episode,
        "reason": RELEASED.reason,
        "released_until": "2026-11-30T14:00:00Z",
        "released_by": "alice",
        "rule": "rule-1",
        "rule_uid": "uid-9",
    }
    gone = audit_of(Change("delete", HBM, None))
    assert (gone["effect"], gone["effect_before"], gone["state"]) == (None, "NoExecute", None)
    assert (gone["released_by"], gone["rule"], gone["rule_uid"]) == (None, object_name(HBM.key), None)


def test_the_audit_line_of_a_record_on_a_node_names_no_rule() -> None:
    """What it is stored as is the Node, which the line names anyway."""
    fields = audit_of(Change("create", None, replace(ON_NODE, stored=Stored(NODE, "uid-1", "7"))))

    assert (fields["target"], fields["rule"], fields["rule_uid"]) == (WHOLE, None, None)
    assert (fields["node"], fields["node_uid"], fields["device"]) == (NODE, "uid-1", 3)


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("create", None, None),
        ("update", HBM, None),
        ("delete", None, None),
        ("delete", HBM, HBM),
        ("removed", None, HBM),
        ("erase", HBM, HBM),
    ],
)
def test_a_change_that_cannot_be_is_none(action: str, before: Record | None, after: Record | None) -> None:
    with pytest.raises(ValueError, match="telling of a change"):
        Change(action, before, after)
