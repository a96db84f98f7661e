"""Records on a Node: what is written is read back, other people's taints stay as they are, damage costs itself only.

The patch is applied as the API server does it, by the ten lines of RFC 7386.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect, Severity
from remediator.inventory import Node
from remediator.node_records import ANNOTATION, DamagedRecordsError, foreign_taints, marked, patch, read
from remediator.records import NEVER, Key, Record, State, Stored
from tests.remediator.samples import DRIVER, NODE, NOW, STARTED, TAINT_KEY, Json, on_node, record
from tests.remediator.strategies import hostile_texts, records, starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NONE, NO_SCHEDULE, NO_EXECUTE = Effect
UID = "uid-1"
STORED = Stored(NODE, UID, "8")
LATER = NOW + timedelta(hours=1)
FORMER_KEY = "example.com/before"


def raw(taints: object = None, annotation: str | None = None, *, uid: str = UID, version: int = 7) -> Json:
    """A Node as the API server sends it, with what else it may have."""
    annotations = {} if annotation is None else {ANNOTATION: annotation}
    return {
        "metadata": {
            "name": NODE,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-30T11:00:00Z",
            "annotations": {"somebody": "else", **annotations},
        },
        "spec": {"podCIDR": "10.0.0.0/24", **({} if taints is None else {"taints": taints})},
    }


def typed(node: Json) -> Node:
    """The same as it is read."""
    return msgspec.json.decode(json.dumps(node), type=Node)


def merged(target: Any, change: Any) -> Any:
    """Apply a merge patch: RFC 7386, section 2."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def written(node: Json, *held: Record, now: datetime = NOW) -> Json:
    """The Node after its records were written, one version on."""
    change = patch(typed(node), held, now=now)
    assert change["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"], "else it is not guarded"
    after: Json = merged(node, change)
    after["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
    return after


def held_on(node: Json) -> dict[Key, Record]:
    """The records it has."""
    return read(typed(node), driver=DRIVER)


def on_the_node(fault: str, effect: Effect | None = None, *, device: int = 3, key: str = TAINT_KEY) -> Record:
    """A record of one device, with an effect that is the table's unless told otherwise, as the Node gives it back."""
    one = record(fault, target=on_node(device), stored=STORED)
    return replace(
        one,
        key=Key(NODE, device, fault),
        taint=replace(one.taint, key=key, effect=one.taint.effect if effect is None else effect),
    )


def taints_of(node: Json) -> list[Json]:
    """The taints it has."""
    taints: list[Json] = node["spec"].get("taints") or []
    return taints


def ours(node: Json) -> list[tuple[str, str, str]]:
    """Those with a key of ours: key, value, effect."""
    return [
        (one["key"], one.get("value", ""), one["effect"])
        for one in taints_of(node)
        if one["key"] in (TAINT_KEY, FORMER_KEY)
    ]


def book_of(node: Json) -> Json:
    """What the annotation says."""
    book: Json = json.loads(node["metadata"]["annotations"][ANNOTATION])
    return book


effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
unknown = st.dictionaries(
    st.sampled_from(["timeAdded", "reason", "x"]),
    st.none() | st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=2),
)
foreign = st.builds(
    lambda key, value, effect, more: {"key": key, "effect": effect, **value, **more},
    st.sampled_from([TAINT_KEY, FORMER_KEY, "node.kubernetes.io/unschedulable", "dedicated"]),
    st.sampled_from([{}, {"value": ""}, {"value": "ml"}, {"value": "hbm-uncorrectable-error"}]),
    effects,
    unknown,
)
foreign_lists = st.lists(foreign, max_size=5, unique_by=lambda one: (one["key"], one["effect"]))
taint_lists = st.none() | foreign_lists
"""What may be in a Node's spec: nothing at all, an empty list, anything. The API server lets no two be alike."""


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    """Draw the records of a Node, as they are given back by it."""
    drawn = draw(
        st.lists(
            records(
                started=starts,
                nodes=st.just(NODE),
                at=st.just(on_node()),
                taint_keys=st.sampled_from([TAINT_KEY, FORMER_KEY]),
            ),
            max_size=4,
            unique_by=lambda one: one.key,
        )
    )
    # What is released has no effect: else a hand has been there, and nothing holds of that here.
    return [replace(one, node_uid=UID, stored=STORED, tainted_since=draw(starts)) for one in drawn]


def collided(node: Json, held: Iterable[Record]) -> set[str]:
    """Keys of which somebody else's taint has the effect that ours would have."""
    strongest: dict[str, int] = {}
    for one in held:
        strongest[one.taint.key] = max(strongest.get(one.taint.key, 0), one.taint.effect.rank)
    there = {(one["key"], one["effect"]) for one in taints_of(node)}
    return {key for key, rank in strongest.items() if (key, str(list(Effect)[rank])) in there}


@given(taint_lists, some_records())
def test_what_is_written_is_read_back(taints: list[Json] | None, held: list[Record]) -> None:
    node = raw(taints)
    lost = collided(node, held)
    after = held_on(written(node, *held))

    assert after.keys() == {one.key for one in held}
    for one in held:
        if one.taint.key not in lost:
            assert after[one.key] == one


@given(taint_lists, some_records(), some_records())
def test_taints_of_others_stay_as_they_are_and_in_order(
    taints: list[Json] | None, first: list[Record], second: list[Record]
) -> None:
    """Whatever we write, and then write over that, and take away again."""
    node = raw(taints)
    for held in (first, second, [], second, first, []):
        node = written(node, *held)
        there = foreign_taints(typed(node))
        assert json.dumps(there) == json.dumps(taints or [])
        assert [one for one in taints_of(node) if one in there] == there
        pairs = [(one["key"], one["effect"]) for one in taints_of(node)]
        assert len(set(pairs)) == len(pairs), "the API server refuses such a list"
    assert not marked(typed(node))
    assert node["metadata"]["annotations"] == {"somebody": "else"}
    assert node["spec"]["podCIDR"] == "10.0.0.0/24"


@given(taint_lists, some_records())
def test_nothing_is_written_to_the_spec_when_its_taints_stay(taints: list[Json] | None, held: list[Record]) -> None:
    node = written(raw(taints), *held)
    lowered = [replace(one, last_fired=LATER, state=State.WITHHELD, reason="another") for one in held]

    assert "spec" not in patch(typed(node), held, now=LATER)
    assert "spec" not in patch(typed(node), lowered, now=LATER)


@given(some_records())
def test_records_without_an_effect_touch_no_taint(held: list[Record]) -> None:
    node = raw([{"key": "dedicated", "effect": "NoSchedule"}])
    informing = [replace(one, taint=replace(one.taint, effect=NONE)) for one in held]

    assert "spec" not in patch(typed(node), informing, now=NOW)


@pytest.mark.parametrize("before", [None, []])
def test_when_ours_was_the_only_one_no_list_is_left(before: list[Json] | None) -> None:
    """A field that was absent, null or empty is absent again: the API server makes no difference."""
    node = raw(before)
    tainted = written(node, on_the_node("link_efa"))
    assert ours(tainted) == [(TAINT_KEY, "link-efa-error", "NoSchedule")]

    change = patch(typed(tainted), [], now=NOW)
    assert change["spec"] == {"taints": None}
    assert change["metadata"]["annotations"] == {ANNOTATION: None}


def test_a_null_list_is_an_absent_one() -> None:
    node = raw()
    node["spec"]["taints"] = None

    assert ours(written(node, on_the_node("link_efa"))) == [(TAINT_KEY, "link-efa-error", "NoSchedule")]
    assert "spec" not in patch(typed(node), [], now=NOW)


def test_ours_keeps_its_place_among_the_others() -> None:
    one, other = {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute", "timeAdded": "x"}
    node = written(raw([one]), on_the_node("link_efa"))
    node["spec"]["taints"].append(other)
    stronger = written(node, on_the_node("hbm"))

    assert [taint["key"] for taint in taints_of(stronger)] == ["a", TAINT_KEY, "b"]
    assert (taints_of(stronger)[0], taints_of(stronger)[2]) == (one, other)


@pytest.mark.parametrize("value", ["hbm-uncorrectable-error", "by-hand", None])
def test_a_taint_of_somebody_else_with_our_key_and_effect_is_left_alone(value: str | None) -> None:
    """The API server would refuse a second one, and ours would take the other over."""
    theirs = {"key": TAINT_KEY, "effect": "NoSchedule"} | ({} if value is None else {"value": value})
    after = written(raw([theirs]), on_the_node("link_efa"))

    assert taints_of(after) == [theirs]
    assert book_of(after)["taints"] == []
    (held,) = held_on(after).values()
    assert (held.taint.effect, held.state) == (NONE, State.WITHHELD)


def test_another_effect_under_our_key_does_not_stand_in_the_way() -> None:
    theirs = {"key": TAINT_KEY, "value": "by-hand", "effect": "NoSchedule"}
    after = written(raw([theirs]), on_the_node("hbm"))

    assert taints_of(after)[0] == theirs
    assert ours(after)[1:] == [(TAINT_KEY, "hbm-uncorrectable-error", "NoExecute")]
    lowered = written(after, on_the_node("hbm", NO_SCHEDULE))
    assert taints_of(lowered) == [theirs]


_GRAVEST_FIRST = sorted(FAULTS, key=lambda fault: FAULTS[fault].severity is not Severity.CRITICAL)


@given(st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 3), st.sampled_from(Effect)), max_size=6))
def test_the_taint_is_for_the_gravest_fault_of_the_strongest_effect(drawn: list[tuple[str, int, Effect]]) -> None:
    """By severity, then in the order of the table: `sorted` keeps that."""
    held = {one.key: one for one in (on_the_node(fault, effect, device=number) for fault, number, effect in drawn)}
    taints = ours(written(raw(), *held.values()))

    strongest = max((one.taint.effect for one in held.values()), key=lambda effect: effect.rank, default=NONE)
    if strongest is NONE:
        assert taints == []
    else:
        faults = {one.key.fault for one in held.values() if one.taint.effect is strongest}
        gravest = min(faults, key=_GRAVEST_FIRST.index)
        assert taints == [(TAINT_KEY, FAULTS[gravest].value, str(strongest))]


def test_severity_stands_above_the_order_of_the_table() -> None:
    """A page above a ticket, whichever the table has first."""
    assert [*FAULTS].index("firmware_service_api") < [*FAULTS].index("link_host")
    held = on_the_node("firmware_service_api"), on_the_node("link_host", NO_SCHEDULE)

    assert ours(written(raw(), *held)) == [(TAINT_KEY, "link-host-error", "NoSchedule")]


def test_the_time_is_whole_seconds_utc_as_kubernetes_writes_it() -> None:
    now = datetime(2026, 11, 30, 12, 0, 7, 654321, tzinfo=UTC)

    (taint,) = taints_of(written(raw(), on_the_node("link_efa"), now=now))
    assert taint["timeAdded"] == "2026-11-30T12:00:07Z"


def test_the_time_stays_while_key_and_effect_do() -> None:
    """It is where a pod's `tolerationSeconds` count from, and nothing has changed for the pod."""
    node = written(raw(), on_the_node("link_efa"))
    another_value = written(node, on_the_node("link_efa"), on_the_node("hbm", NO_SCHEDULE), now=LATER)
    assert ours(another_value) == [(TAINT_KEY, "hbm-uncorrectable-error", "NoSchedule")]
    assert taints_of(another_value)[0]["timeAdded"] == taints_of(node)[0]["timeAdded"]

    stronger = written(another_value, on_the_node("hbm"), now=LATER)
    assert taints_of(stronger)[0]["timeAdded"] == "2026-11-30T13:00:00Z"
    weaker = written(stronger, on_the_node("hbm", NO_SCHEDULE), now=LATER + timedelta(minutes=1))
    assert taints_of(weaker)[0]["timeAdded"] == "2026-11-30T13:01:00Z"


def test_while_the_key_is_being_changed_there_are_two() -> None:
    waiting, moved = on_the_node("link_efa", key=FORMER_KEY), on_the_node("hbm", NO_SCHEDULE)
    node = written(raw(), waiting)
    both = written(node, waiting, moved)

    assert ours(both) == [
        (FORMER_KEY, "link-efa-error", "NoSchedule"),
        (TAINT_KEY, "hbm-uncorrectable-error", "NoSchedule"),
    ]
    assert held_on(both) == {waiting.key: replace(waiting, stored=replace(STORED, resource_version="9"))} | {
        moved.key: replace(moved, stored=replace(STORED, resource_version="9"))
    }
    fired = written(both, replace(waiting, taint=replace(waiting.taint, key=TAINT_KEY)), moved)
    assert ours(fired) == [(TAINT_KEY, "hbm-uncorrectable-error", "NoSchedule")]


def test_an_annotation_that_was_copied_from_another_node_counts_for_nothing() -> None:
    """A restored backup, or a template: it speaks of another machine."""
    node = written(raw(), on_the_node("link_efa"))
    node["metadata"]["uid"] = "uid-2"

    assert held_on(node) == {}
    assert len(foreign_taints(typed(node))) == 1
    assert book_of(written(node, on_the_node("hbm", NONE)))["uid"] == "uid-2"


# What hands may do


@pytest.mark.parametrize("state", [State.ACTIVE, State.WITHHELD])
@pytest.mark.parametrize("damage", ["removed", "another value", "another effect"])
def test_a_taint_that_a_hand_took_away_or_changed_is_not_held_any_more(damage: str, state: State) -> None:
    """What is there now is theirs; the rules ask for a firing, which decides anew."""
    standing = replace(on_the_node("link_efa"), state=state)
    node = written(raw(), standing)
    taint = taints_of(node)[0]
    theirs: list[Json] = []
    if damage == "another value":
        theirs = [taint | {"value": "mine"}]
    elif damage == "another effect":
        theirs = [taint | {"effect": "NoExecute"}]
    node["spec"]["taints"] = theirs

    (held,) = held_on(node).values()
    assert (held.taint, held.state) == (replace(standing.taint, effect=NONE), State.WITHHELD)
    assert foreign_taints(typed(node)) == theirs
    assert taints_of(written(node, held)) == theirs
    again = written(node, standing)
    assert again["spec"]["taints"][: len(theirs)] == theirs
    # One of the same key and effect is left alone, see above.
    back = [] if damage == "another value" else [(TAINT_KEY, "link-efa-error", "NoSchedule")]
    assert ours(again)[len(theirs) :] == back


def test_a_time_that_a_hand_has_changed_leaves_the_taint_ours() -> None:
    """Controllers do so too; it is no reason to taint twice."""
    node = written(raw(), on_the_node("link_efa"))
    taints_of(node)[0].pop("timeAdded")

    assert foreign_taints(typed(node)) == []
    assert held_on(node)[Key(NODE, 3, "link_efa")].state is State.ACTIVE


@pytest.mark.parametrize("state", [State.RELEASED, State.COVERED, State.OPTED_OUT])
def test_without_its_taint_a_record_that_has_none_is_as_it_was(state: State) -> None:
    standing = replace(on_the_node("link_efa", NONE), state=state)

    assert held_on(written(raw(), standing))[standing.key].state is state


def test_an_effect_that_the_node_does_not_have_is_not_believed() -> None:
    node = written(raw(), on_the_node("hbm", NO_SCHEDULE))
    book = book_of(node)
    book["records"][0]["effect"] = "NoExecute"
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)

    (held,) = held_on(node).values()
    assert (held.taint.effect, held.state) == (NO_SCHEDULE, State.WITHHELD)


@pytest.mark.parametrize("value", ["a b", "x" * 64, "-", "é"])
def test_a_value_that_no_taint_can_have_is_not_written_back(value: str) -> None:
    """The API server would refuse it, and with it what any other record of that Node needs."""
    node = written(raw(), on_the_node("hbm"), on_the_node("link_efa"))
    book = book_of(node)
    next(one for one in book["records"] if one["fault"] == "hbm")["value"] = value
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)
    held = held_on(node)

    assert held[Key(NODE, 3, "hbm")].taint == replace(on_the_node("hbm").taint, value="")
    assert ours(written(node, *held.values())) == [(TAINT_KEY, "", "NoExecute")]
    healed = replace(held[Key(NODE, 3, "hbm")], taint=on_the_node("hbm").taint)
    assert ours(written(node, healed)) == [(TAINT_KEY, "hbm-uncorrectable-error", "NoExecute")]


def test_a_value_that_no_taint_can_have_makes_the_rules_ask_for_a_firing() -> None:
    node = written(raw(), on_the_node("hbm"))
    book = book_of(node)
    book["records"][0]["value"] = "a b"
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)

    assert held_on(node)[Key(NODE, 3, "hbm")].state is State.WITHHELD


DAMAGED_ENTRIES: Sequence[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"device": 3, "fault": "hbm"},
    {"device": "03", "fault": "hbm"},
    {"device": "-1", "fault": "hbm"},
    {"device": "3"},
    {"device": "3", "fault": ""},
    {"device": "3", "fault": ["hbm"]},
]


@pytest.mark.parametrize("entry", DAMAGED_ENTRIES, ids=json.dumps)
@pytest.mark.parametrize("part", ["records", "taints"])
def test_one_entry_that_is_none_costs_only_itself(entry: object, part: str) -> None:
    standing = on_the_node("link_efa")
    node = written(raw(), standing)
    book = book_of(node)
    book[part] = [entry, *book[part], entry]
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)

    assert held_on(node) == {standing.key: standing}
    assert ours(written(node, standing)) == ours(node)


@pytest.mark.parametrize("entry", DAMAGED_ENTRIES, ids=json.dumps)
def test_an_entry_that_is_not_understood_stays_with_its_taint(entry: object) -> None:
    """A newer release may have written it; only who takes everything away takes it away."""
    node = written(raw(), on_the_node("hbm"))
    book = book_of(node)
    book["records"].append(entry)
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)
    without_records = written(node)

    assert book_of(without_records)["records"] == [entry]
    assert ours(without_records) == ours(node)
    all_gone = merged(node, patch(typed(node), (), now=NOW, unread=False))
    assert ANNOTATION not in all_gone["metadata"]["annotations"]
    assert not all_gone["spec"].get("taints")


@pytest.mark.parametrize("part", ["records", "taints"])
def test_a_number_out_of_range_costs_only_the_entry_it_is_in(part: str) -> None:
    standing = on_the_node("link_efa")
    node = written(raw(), standing)
    annotations = node["metadata"]["annotations"]
    annotations[ANNOTATION] = annotations[ANNOTATION].replace(f'"{part}":[', f'"{part}":[{{"device":1e400}},')

    assert held_on(node) == {standing.key: standing}


def test_an_entry_that_says_only_which_fault_it_is_is_on_the_safe_side() -> None:
    """Latched, long ago, and withheld, so that a firing writes it anew."""
    text = json.dumps({"uid": UID, "records": [{"device": "3", "fault": "link_efa"}]})

    (held,) = held_on(raw(annotation=text)).values()
    assert (held.state, held.latched, held.taint.effect) == (State.WITHHELD, True, NONE)
    assert (held.first_fired, held.last_fired, held.target) == (NEVER, NEVER, on_node())
    assert held.episode


def test_fields_that_a_newer_release_may_add_are_no_damage() -> None:
    node = written(raw(), on_the_node("link_efa"))
    book = book_of(node) | {"peers": [1]}
    book["records"][0] |= {"seen-by": {"a": 1}}
    node["metadata"]["annotations"][ANNOTATION] = json.dumps(book)

    assert held_on(node) == {Key(NODE, 3, "link_efa"): on_the_node("link_efa")}


@pytest.mark.parametrize(
    "text",
    [" ", "no json", "{", "7", "[]", '"x"', "null", '{"uid": 7}', '{"records": {}}', '{"taints": "x"}', "\ud800"],
)
def test_what_is_no_book_is_damage(text: str) -> None:
    """And what is written then stands instead of it; the taint it knew of is somebody's now."""
    theirs = [{"key": TAINT_KEY, "value": "link-efa-error", "effect": "NoSchedule"}]
    damaged = msgspec.structs.replace(typed(raw(theirs)))
    metadata = msgspec.structs.replace(
        damaged.metadata, annotations=msgspec.structs.replace(damaged.metadata.annotations, records=text)
    )
    damaged = msgspec.structs.replace(damaged, metadata=metadata)

    with pytest.raises(DamagedRecordsError, match=f'^reading annotation "{ANNOTATION}" of Node "{NODE}": '):
        read(damaged, driver=DRIVER)
    assert marked(damaged)
    assert foreign_taints(damaged) == theirs
    change = patch(damaged, [on_the_node("hbm")], now=NOW)
    assert change["spec"]["taints"][0] == theirs[0]
    assert json.loads(change["metadata"]["annotations"][ANNOTATION])["uid"] == UID


scalars = st.none() | st.booleans() | st.integers() | st.floats() | hostile_texts
values = st.recursive(
    scalars, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3), max_leaves=5
)
entries = values | st.dictionaries(
    st.sampled_from(["device", "fault", "key", "value", "effect", "since", "state", "latched", "last-fired"]),
    st.sampled_from(["3", "hbm", TAINT_KEY, "NoExecute", "true", "released", "9999-12-31T23:59:59+99:99"]) | values,
)
books = st.fixed_dictionaries(
    {"uid": st.just(UID) | values, "records": st.lists(entries, max_size=3)}, optional={"taints": values}
)
texts = hostile_texts | st.binary(max_size=40).map(lambda raw_bytes: raw_bytes.decode(errors="surrogateescape"))


@given(texts | books.map(json.dumps) | values.map(json.dumps), taint_lists)
def test_whatever_is_in_the_annotation_only_that_error_comes_of_it(text: str, taints: list[Json] | None) -> None:
    node = typed(raw(taints))
    annotations = msgspec.structs.replace(node.metadata.annotations, records=text)
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations))
    try:
        held = read(node, driver=DRIVER)
    except DamagedRecordsError:
        held = {}
    change = patch(node, held.values(), now=NOW)

    assert all(key.node == NODE and one.node_uid == UID for key, one in held.items())
    kept = (change["spec"]["taints"] or []) if "spec" in change else (taints or [])
    assert [one for one in kept if one in foreign_taints(node)] == foreign_taints(node)


def test_nested_beyond_all_measure_is_damage_too() -> None:
    with pytest.raises(DamagedRecordsError):
        held_on(raw(annotation="[" * 100_000))


def test_the_records_of_one_device_say_since_when_they_have_their_effect() -> None:
    standing = replace(on_the_node("link_efa"), tainted_since=STARTED)

    assert held_on(written(raw(), standing))[standing.key].tainted_since == STARTED
