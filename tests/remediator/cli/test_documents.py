"""What is said about a look at the cluster: explanations, lists, plans of releases."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from alerts.faults import FAULTS, Effect
from remediator.claims import Claim, Claims, Holding
from remediator.cli.address import Address
from remediator.cli.explanation import Explanation, explain
from remediator.cli.listing import document, entries, table
from remediator.cli.picture import Held
from remediator.cli.plan import Intent, remarks, step
from remediator.cli.rendering import show_explanation, show_table
from remediator.cli.words import plain, span
from remediator.inventory import NEURON_NODE, DeviceTaint, Inventory, Node, NodeLabels, NodeMetadata
from remediator.level import NO_EVIDENCE, NO_ROOM
from remediator.records import Key, State
from tests.remediator.cli.pictures import SINCE, UNTIL, held, inventory, picture, released
from tests.remediator.cli.test_leftovers import other_rule
from tests.remediator.samples import DRIVER, LONG_AGO, NODE, NOW, TAINT_KEY, device, node

if TYPE_CHECKING:
    from remediator.cli.picture import Picture
    from remediator.records import Record

HERE = Address(NODE, 3)


def text_of(document: Explanation) -> dict[str, str]:
    """The statements of a document by their words."""
    return {line.word: line.text for section in document.sections for line in section.lines}


def commands_of(document: Explanation) -> list[str]:
    return [command.command for section in document.sections for command in section.commands]


@pytest.mark.parametrize(
    ("record", "why", "ends"),
    [
        (held(), "active: this is what NeuronDeviceHBMUncorrectableError leads to", "when the Node is replaced, or by"),
        (held("link_efa"), "active: this is what NeuronDeviceEFALinkError", "when the device has read clean for the"),
        (
            held(taint=replace(held().taint, effect=Effect.NO_SCHEDULE)),
            "leads to NoExecute, and the remediator's --max-effect allows NoSchedule at most",
            "when the Node is replaced",
        ),
        (held("link_efa", latched=True), "active", "(the source said that this one does not)"),
        (
            held("link_efa", State.WITHHELD, reason=f"{NO_ROOM}unavailable"),
            (
                "withheld: when it last fired, 2026-11-30 11:59:55Z (5s ago), as many targets were out of use as the "
                "remediator's --budget.max-unavailable allows. Whether there is room now: "
                "neuron_remediator_budget_used against neuron_remediator_budget_limit. With room, "
                "Alertmanager's next repeat of its firing raises it (up to 5m with the shipped route)"
            ),
            "read clean for the hold time (15s with the shipped rules; NeuronDeviceFaultCleared, episode",
        ),
        (
            held(state=State.WITHHELD, reason=f"{NO_ROOM}unavailable"),
            "neuron_remediator_budget_limit. It is latched: it rises by itself as soon as there is room",
            "when the Node is replaced",
        ),
        (held("link_efa", State.WITHHELD, reason=f"{NO_ROOM}new"), "within 10m as its --budget.max-new", "read clean"),
        (held("link_efa", State.WITHHELD, reason=f"{NO_ROOM}cosmic"), "the limit 'cosmic' of its budget", "read clean"),
        (held("link_efa", State.WITHHELD, reason=NO_EVIDENCE), "the fault has not fired since;", "read clean"),
        (held("link_efa", State.WITHHELD, reason="?"), "changed by hand or is being deleted", "read clean"),
        (
            held(state=State.WITHHELD, reason=f"{NO_ROOM}new", taint=replace(held().taint, effect=Effect.NO_SCHEDULE)),
            "it keeps the weaker effect NoSchedule meanwhile",
            "when the Node is replaced",
        ),
        (held(state=State.COVERED), "covered: the driver's own taint on this target is at least", "Node is replaced"),
        (held(state=State.OPTED_OUT), "carries the label neuron-remediator/opt-out=true", "Node is replaced"),
        (
            released(),
            "released: by alice until 2026-11-30 16:00:00Z (in 4h); the reason given: 'burn-in'",
            "if it still stands when the release ends, the next firing raises it to NoExecute again",
        ),
        (released(SINCE), "(over), which the remediator has yet to notice", "the next firing raises it"),
        (held(node_uid="another"), "void: it belongs to a machine that is gone", "the garbage collector removes it"),
    ],
)
def test_each_state_is_explained(record: Record, why: str, ends: str) -> None:
    said = text_of(explain(HERE, picture(record)))
    assert why in said["why"]
    assert ends in said["ends"]


def test_what_was_done_is_said_with_its_target_and_time() -> None:
    others = held("sram")
    said = text_of(explain(Address(NODE, 3, "hbm"), picture(held(), others)))
    assert said["wrong"] == f"the device {FAULTS['hbm'].finding}"
    assert said["done"] == (
        f"tainted NoExecute since 2026-11-30 09:00:00Z (3h ago) on neuron-device-3 of pool {NODE}: no new work is "
        "placed on it, and pods that use it are evicted unless they tolerate the taint; also held there by "
        f"{others.key}"
    )


@pytest.mark.parametrize(
    ("placed", "there", "said"),
    [
        # What the slices say now counts; where there are none, what the record says.
        (True, inventory(), False),
        (False, inventory(), False),
        (True, inventory(device("neuron-device-4", 4)), True),
        (False, inventory(device("neuron-device-4", 4)), True),
        (True, None, False),
        (False, None, True),
    ],
)
def test_a_taint_that_meets_nothing_is_said_to(placed: bool, there: Inventory | None, *, said: bool) -> None:  # noqa: FBT001
    unlisted = held(target=replace(held().target, placed=placed))
    told = text_of(explain(HERE, picture(unlisted, inventory=there)))
    assert ("no slice lists this device: the taint meets nothing" in told["done"]) is said


def test_an_ultraserver_is_one_target() -> None:
    whole = inventory(device(NEURON_NODE, 0))
    target = whole.locate(NODE, 3)
    said = text_of(explain(HERE, picture(held(target=target), held(number=5, target=target), inventory=whole)))
    assert "(the whole node: on an UltraServer it is one device)" in said["done"]
    assert f"also held there by {NODE}/5/hbm" in said["done"]
    assert said["slices"] == "list the node as one device (UltraServer)"


def test_a_fault_that_is_not_in_the_table_is_explained_as_far_as_it_goes() -> None:
    stranger = held(key=Key(NODE, 3, "new_kind"))
    said = text_of(explain(HERE, picture(stranger)))
    assert said["wrong"] == "a fault that this version does not know"
    assert "runbook" not in said


@pytest.mark.parametrize("state", [State.ACTIVE, State.RELEASED])
def test_a_fault_that_is_not_in_the_table_ends_by_somebodys_hand_alone(state: State) -> None:
    stranger = held("link_efa", state, key=Key(NODE, 3, "new_kind"), released_until=SINCE, released_by="alice")
    told = explain(HERE, picture(stranger), kubeconfig="x")
    assert text_of(told)["ends"].startswith("when somebody takes it away, or with the Node")
    assert "yet to notice" not in text_of(told)["why"]
    assert "neuron-remediator uninstall --fault new_kind --kubeconfig x" in commands_of(told)
    offered = [one for section in told.sections for one in section.commands if "neuron-taints release" in one.command]
    assert [one.purpose for one in offered] == (
        ["lifts it by your word, at your risk: nothing raises it again"] if state is State.ACTIVE else []
    )
    for other in (held(), held(key=Key(NODE, 3, "new_kind"), node_uid="gone"), held(key=Key(NODE, 3, "$(x)"))):
        assert not any("uninstall" in command for command in commands_of(explain(HERE, picture(other))))


def test_what_keeps_the_device_of_a_withheld_record_tainted_is_named() -> None:
    waiting, other = held("link_efa", State.WITHHELD, reason=NO_EVIDENCE), held("sram")
    theirs = other_rule(driver=DRIVER, pool=NODE)
    looked = picture(held=Held((waiting, other), (theirs, other_rule(pool="elsewhere"))))
    done = text_of(explain(Address(NODE, 3, "link_efa"), looked))["done"]
    assert done.endswith(f"; also held there by {other.key}; see `other rule` below")
    assert "no effect of its own on neuron-device-3" in done
    alone = text_of(explain(HERE, picture(waiting)))["done"]
    assert alone.endswith(": nothing is kept off it and nothing is evicted")


def test_consumers_are_told_and_their_absence_too() -> None:
    claims = Claims()
    claims.replace([Claim("team", "train", (Holding(NODE, ("neuron-device-3",)),), ("train-0", "train-1"))], "")
    lines = [
        line.text
        for section in explain(HERE, picture(held(), claims=claims)).sections
        for line in section.lines
        if section.title == "In use now"
    ]
    assert lines == [f"pod team/train-{number}, by claim team/train" for number in (0, 1)]
    said = text_of(explain(Address(NODE, 4), picture(held(), claims=claims)))
    assert said["neuron-device-4"] == "nobody: no allocated claim holds it"


def opted_out(said: str = "true") -> Node:
    return Node(NodeMetadata(NODE, "uid-1", LONG_AGO, NodeLabels(opt_out=said, instance_type="trn2.48xlarge")))


@pytest.mark.parametrize(
    ("looked", "word", "text"),
    [
        (picture(held(), node=opted_out()), "opted out", "yes: no taint of ours has an effect on it"),
        (
            picture(held(), node=opted_out("yes")),
            "opted out",
            "no: the label neuron-remediator/opt-out is 'yes'; expected 'true'",
        ),
        (picture(held(), node=opted_out()), "node", "there since 2026-10-31 12:00:00Z (30d ago), trn2.48xlarge"),
        (picture(held(), node=None), "node", "there is no Node of that name"),
        (
            picture(inventory=inventory(device("neuron-device-4", 4))),
            "target",
            "neuron-device-3 of pool ip-10-1-1-200.ec2.internal is the name it would have",
        ),
        (picture(held()), "slices", "list 16 devices"),
        (picture(held(), inventory=type(inventory())(DRIVER)), "slices", "none of driver neuron.aws.com"),
        (
            picture(inventory=inventory(device("neuron-device-3", 3, DeviceTaint(TAINT_KEY, "x", Effect.NO_SCHEDULE)))),
            "driver",
            f"taints neuron-device-3 itself: {TAINT_KEY}=x:NoSchedule",
        ),
        (picture(), "held", f"no fault of {NODE}/3 is on record"),
        (picture(held(number=7)), "but", "held on this node: 7/hbm"),
        (picture(held(), unread=("reading claims: 403",)), "unread", "reading claims: 403"),
    ],
)
def test_what_is_around_is_told(looked: Picture, word: str, text: str) -> None:
    assert text in text_of(explain(HERE, looked))[word]


@pytest.mark.parametrize(
    ("address", "looked", "found"),
    [
        (HERE, picture(held()), True),
        (HERE, picture(), True),
        (Address(NODE, 99), picture(), False),
        (Address(NODE, 99), picture(held(number=99)), True),
        (Address(NODE, 99), picture(inventory=None), True),
        (HERE, picture(node=None), False),
        (HERE, picture(node=None, node_read=False), True),
        (HERE, picture(held(), node=None), True),
        (Address(NODE, 99), picture(inventory=inventory(device(NEURON_NODE, 0))), True),
    ],
)
def test_only_what_is_known_to_be_missing_is_called_missing(address: Address, looked: Picture, *, found: bool) -> None:
    assert explain(address, looked).found is found


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (held(), f"neuron-taints release {NODE}/3/hbm --for 4h --reason 'WHY'"),
        (held(), f"kubectl cordon {NODE}"),
        (released(), f"neuron-taints release {NODE}/3/hbm --end"),
        (held(state=State.OPTED_OUT), f"kubectl label node {NODE} neuron-remediator/opt-out-"),
        (held(state=State.WITHHELD, reason=f"{NO_ROOM}new"), "neuron-taints list --state active"),
    ],
)
def test_the_next_commands_fit_the_state(record: Record, expected: str) -> None:
    assert expected in commands_of(explain(HERE, picture(record)))


@pytest.mark.parametrize(
    ("record", "offered"),
    [
        (held(), True),
        (held("link_efa"), True),
        (held(state=State.WITHHELD, reason=f"{NO_ROOM}new"), True),
        (held("link_efa", State.WITHHELD, reason=f"{NO_ROOM}new"), False),
        (held("link_efa", State.COVERED), False),
    ],
)
def test_a_release_is_offered_where_there_is_something_to_lift(record: Record, *, offered: bool) -> None:
    commands = commands_of(explain(HERE, picture(record)))
    assert any("release" in command for command in commands) is offered


EVICTED = "kubectl get events -A --field-selector reason=DeviceTaintManagerEviction"


@pytest.mark.parametrize(
    ("records", "offered"), [([held("link_efa")], False), ([held()], True), ([held(number=9)] * 5, True)]
)
def test_who_was_evicted_can_be_found_out(records: list[Record], *, offered: bool) -> None:
    several = [replace(one, key=replace(one.key, device=one.key.device + more)) for more, one in enumerate(records)]
    assert (EVICTED in commands_of(explain(Address(NODE), picture(*several)))) is offered


def test_the_runbooks_of_a_record_are_named_where_they_are() -> None:
    def runbooks(record: Record, **options: Any) -> list[str]:
        told = explain(HERE, picture(record), **options)
        return [line.text for section in told.sections for line in section.lines if line.word == "runbook"]

    own = "NeuronDeviceHBMUncorrectableError.md"
    assert runbooks(held()) == [f"alerts/runbooks/{own}"]
    withheld = held(state=State.WITHHELD, reason=f"{NO_ROOM}new")
    address = "https://runbooks.example.com"
    assert runbooks(withheld, runbooks=address) == [f"{address}/{own}", f"{address}/NeuronDeviceFaultWithheld.md"]


def test_a_node_that_is_not_there_is_said_so_first() -> None:
    looked = picture(node=None, nodes=frozenset({NODE, "other"}))
    mistyped = f"{NODE[:-1]}"
    assert explain(Address(mistyped, 3), looked).title == (
        f"{mistyped}, device 3: there is no Node of that name; did you mean {NODE}?"
    )
    assert explain(Address("zzz"), looked).title == "zzz: there is no Node of that name"
    assert explain(Address("zzz"), replace(looked, node_read=False)).title == "zzz"
    assert not any("get pods" in command for command in commands_of(explain(Address("zzz"), looked)))
    assert any("get pods" in command for command in commands_of(explain(Address(NODE), picture())))


def test_the_commands_name_the_kubeconfig_that_was_named() -> None:
    commands = commands_of(explain(HERE, picture(held()), kubeconfig="/tmp/my file"))
    assert commands
    for command in commands:
        words = shlex.split(command)
        assert words[words.index("--kubeconfig") + 1] == "/tmp/my file"


def test_a_void_record_is_not_offered_for_release() -> None:
    assert not any("release" in command for command in commands_of(explain(HERE, picture(held(node_uid="other")))))


def test_a_node_with_many_records_is_explained_device_by_device() -> None:
    told = explain(Address(NODE), picture(*(held(number=number) for number in range(16))))
    assert f"neuron-taints explain {NODE}/15" in commands_of(told)
    assert len(commands_of(told)) <= 20


@pytest.mark.parametrize(("number", "drawn"), [(3, False), (4, True)])
def test_many_records_of_a_node_are_one_table(number: int, *, drawn: bool) -> None:
    withheld = held("link_efa", State.WITHHELD, number=9, reason=f"{NO_ROOM}new")
    told = explain(Address(NODE), picture(withheld, *(held(number=one) for one in range(1, number))))
    tables = [section.table for section in told.sections if section.table]
    assert bool(tables) is drawn
    assert ("why" in text_of(told)) is not drawn
    for one in tables:
        assert [row[1:3] for row in one.rows] == [("1", "hbm"), ("2", "hbm"), ("3", "hbm"), ("9", "link_efa")]
        assert [row[-1] for row in one.rows] == ["-", "-", "-", "budget: new"]


def test_many_records_of_a_device_are_each_explained() -> None:
    faults = sorted(FAULTS)[:5]
    told = explain(HERE, picture(*(held(fault) for fault in faults)))
    assert len([line for section in told.sections for line in section.lines if line.word == "why"]) == len(faults)


# Lists


def test_a_list_is_sorted_by_number_and_filtered() -> None:
    records = [held(number=10), held("sram"), held("link_efa", number=2), released(number=1)]
    rules = Held(tuple(records), ())

    def listed(about: Address | None = None, *states: State) -> list[str]:
        found = entries(rules, None, driver=DRIVER, about=about, states=states)
        return [str(entry.record.key).removeprefix(f"{NODE}/") for entry in found if entry.record]

    assert listed() == ["1/hbm", "2/link_efa", "3/sram", "10/hbm"]
    assert listed(Address(NODE, 3)) == ["3/sram"]
    assert listed(Address("elsewhere")) == []
    assert listed(None, State.RELEASED) == ["1/hbm"]


def test_a_released_record_says_until_when() -> None:
    (entry,) = entries(Held((released(),), ()), None, driver=DRIVER, about=None, states=())
    told = document(entry)
    assert (told["released_until"], told["released_by"]) == ("2026-11-30T16:00:00Z", "alice")
    assert (told["effect"], told["latched"], told["tainted_since"]) == ("None", False, "2026-11-30T09:00:00Z")
    drawn = table([entry], now=NOW, wide=True, sources=False)
    row = dict(zip(drawn.headings, drawn.rows[0], strict=True))
    assert (row["AGE"], row["UNTIL"], row["BY"], row["REASON"]) == ("3h", "2026-11-30 16:00:00Z", "alice", "burn-in")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (held(state=State.WITHHELD, reason=f"{NO_ROOM}unavailable"), "budget: unavailable"),
        (held(state=State.WITHHELD, reason=NO_EVIDENCE), "not fired since"),
        (held(state=State.WITHHELD, reason="?"), "changed by hand"),
        (held(), "-"),
    ],
)
def test_why_a_record_is_withheld_is_a_word_in_the_table(record: Record, why: str) -> None:
    listed = entries(Held((record,), ()), None, driver=DRIVER, about=None, states=())
    drawn = table(listed, now=NOW, wide=False, sources=False, why=True)
    assert (drawn.headings[-1], drawn.rows[0][-1]) == ("WHY", why)


def test_a_target_that_no_slice_lists_is_said_to_be_one() -> None:
    records = held(number=1), held(target=replace(held().target, placed=False))
    listed = entries(Held(records, ()), None, driver=DRIVER, about=None, states=())
    drawn = table(listed, now=NOW, wide=True, sources=False)
    assert [row[drawn.headings.index("TARGET")] for row in drawn.rows] == [
        f"{NODE}/neuron-device-1",
        f"{NODE}/neuron-device-3 (no slice lists this device: the taint meets nothing)",
    ]


@given(st.integers(1, 120), st.booleans(), st.text(max_size=80), st.sampled_from(State))
def test_any_width_shows_every_word_and_no_escape(width: int, wide: bool, reason: str, state: State) -> None:  # noqa: FBT001
    record = replace(held("firmware_service_processor"), state=state, reason=reason, released_by=reason)
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    listed = entries(Held((record,), ()), None, driver=DRIVER, about=None, states=())
    show_table(console, table(listed, now=NOW, wide=wide, sources=False))
    show_explanation(console, explain(HERE, picture(record)))
    shown = out.getvalue()
    assert all(line.isprintable() and line == line.rstrip() for line in shown.split("\n"))
    assert NODE in shown
    if width >= len("firmware_service_processor") + 14:
        assert "firmware_service_processor" in shown


# Plans of releases

INTENT = Intent(now=NOW, until=UNTIL, by="bob", why="test")
END = replace(INTENT, until=None, why="")


def test_a_release_lifts_effect_and_latch() -> None:
    planned = step(held(), INTENT, node())
    assert planned.update is not None
    after = planned.update.record
    assert (after.state, after.taint.effect, after.latched) == (State.RELEASED, Effect.NONE, False)
    assert (after.released_until, after.released_by, after.reason) == (UNTIL, "bob", "test")
    assert planned.says == "is active with effect NoExecute, latched; will have no effect and no latch"


@pytest.mark.parametrize(
    ("record", "intent", "there", "says"),
    [
        (held(), INTENT, None, "is void"),
        (held(), INTENT, node(uid="other"), "is void"),
        (held(), END, node(), "is not released (it is active): nothing to end"),
        (released(SINCE), END, node(), "was released by alice until 2026-11-30 09:00:00Z (over), which the remediator"),
        (released(SINCE), END, node(), "has yet to notice: nothing to end"),
    ],
)
def test_what_is_not_done_is_said(record: Record, intent: Intent, there: Node | None, says: str) -> None:
    planned = step(record, intent, there)
    assert planned.refused
    assert says in planned.says


def test_an_end_keeps_the_words_of_the_release() -> None:
    planned = step(released(), END, node())
    assert planned.update is not None
    after = planned.update.record
    assert (after.released_until, after.reason, after.released_by) == (NOW, "burn-in", "bob")


def test_a_release_that_is_replaced_is_named() -> None:
    assert "is released by alice until 2026-11-30 16:00:00Z" in step(released(), INTENT, node()).says
    assert step(released(SINCE), INTENT, node()).says == (
        "was released by alice until 2026-11-30 09:00:00Z (over); will have no effect and no latch"
    )


def test_what_stays_tainted_is_remarked() -> None:
    own = inventory(device("neuron-device-3", 3, DeviceTaint(TAINT_KEY, "x", Effect.NO_EXECUTE)))
    both = [held(), held("sram")]
    looked = picture(*both, inventory=own)
    driver = "neuron-device-3 stays tainted by the driver itself, which no release lifts"
    assert remarks([step(both[0], INTENT, node())], looked) == [
        f"neuron-device-3 stays tainted by {both[1].key}",
        driver,
    ]
    assert remarks([step(one, INTENT, node()) for one in both], looked) == [driver]


@pytest.mark.parametrize(
    ("waiting", "named"),
    [
        (held(state=State.WITHHELD, number=5, reason=f"{NO_ROOM}unavailable"), True),
        # These need a firing, or no room, to rise.
        (held("link_efa", State.WITHHELD, number=5, reason=f"{NO_ROOM}unavailable"), False),
        (held(state=State.WITHHELD, number=5, reason=NO_EVIDENCE), False),
        (held(state=State.COVERED, number=5), False),
    ],
)
def test_who_gets_the_room_that_a_release_makes_is_remarked(waiting: Record, *, named: bool) -> None:
    said = remarks([step(held(), INTENT, node())], picture(held(), waiting))
    room = "room in the budget goes to withheld records, latched ones at once, and effect NoExecute evicts"
    assert said == ([f"{room}: {NODE}/5/hbm"] if named else [])


def test_a_release_that_makes_no_room_is_not_said_to() -> None:
    waiting = [held(state=State.WITHHELD, number=number, reason=f"{NO_ROOM}new") for number in range(4, 16)]
    looked = picture(held(), held("sram"), *waiting)
    assert remarks([step(held(), INTENT, node())], looked) == [f"neuron-device-3 stays tainted by {NODE}/3/sram"]
    assert remarks([step(one, INTENT, node()) for one in waiting], looked) == []
    (said,) = remarks([step(one, INTENT, node()) for one in (held(), held("sram"))], looked)
    assert said.endswith(f"{NODE}/13/hbm and 2 more")


def test_a_device_is_one_whether_or_not_a_slice_has_confirmed_it() -> None:
    """A record made while the slice was away says "unplaced"; one made later does not, and taints the same device."""
    placed = held()
    unplaced = held("sram", target=replace(placed.target, placed=False))
    looked = picture(placed, unplaced, claims=Claims())
    for one, other in ((placed, unplaced), (unplaced, placed)):
        assert remarks([step(one, INTENT, node())], looked) == [f"neuron-device-3 stays tainted by {other.key}"]
        alone = Address(NODE, 3, one.key.fault)
        assert f"also held there by {other.key}" in text_of(explain(alone, looked))["done"]
    (uses,) = (section for section in explain(HERE, looked).sections if section.title == "In use now")
    assert [line.text for line in uses.lines] == ["nobody: no allocated claim holds it"]
    both = [step(one, INTENT, node()) for one in (placed, unplaced)]
    driver = inventory(device("neuron-device-3", 3, DeviceTaint(TAINT_KEY, "x", Effect.NO_EXECUTE)))
    assert len(remarks(both, replace(looked, inventory=driver))) == 1


# Words


@given(st.text())
def test_texts_of_others_cannot_drive_a_terminal(text: str) -> None:
    assert plain(text).isprintable()
    assert plain("burn-in, Ticket 4711: müde") == "burn-in, Ticket 4711: müde"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h"), (3660, "1h1m"), (36_060, "10h"), (90_000, "1d1h")],
)
def test_spans_are_short(seconds: int, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_fields_of_the_document_are_all_there() -> None:
    found: list[dict[str, Any]] = [
        document(entry) for entry in entries(Held((held(), released()), ()), None, driver=DRIVER, about=None, states=())
    ]
    assert found[0].keys() == found[1].keys()
