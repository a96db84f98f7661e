"""Rules of other people: each rule goes to the records or to the foreign ones, whatever a hand does to its mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator.backends.device_taint_rule import RecordCache
from remediator.foreign_rules import ForeignRule, ForeignRules, Sorting
from remediator.inventory import DeviceTaint
from remediator.peer_object import PeerRule
from remediator.peer_object import to_object as to_peer_object
from remediator.peer_rules import PeerRules
from remediator.records import MANAGED_BY, MANAGER
from remediator.rule_records import object_name, to_object
from remediator.rules import Rule
from remediator.targets import Target
from tests.remediator.samples import DRIVER, NODE, Json, record
from tests.stack import shapes

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "neuron-device-3"
OURS = object_name(record().key)


def theirs(name: str = "maintenance", effect: str = "NoSchedule", **selector: str | None) -> Json:
    """A rule that an operator has made; a part of the selector that is None is left out."""
    rule = shapes.taint_rule(name, pool=NODE, device=DEVICE, value="planned", effect=effect)
    chosen = rule["spec"]["deviceSelector"] | selector
    rule["spec"]["deviceSelector"] = {part: value for part, value in chosen.items() if value is not None}
    return rule


def ours() -> Json:
    """A record's rule."""
    return to_object(record(), "resource.k8s.io/v1")


def peers() -> Json:
    """The flag on a peer."""
    flag = PeerRule(source=NODE, source_uid="uid-1", peer="peer", target=Target(DRIVER, "peer", "neuron-node"))
    return to_peer_object(flag, "resource.k8s.io/v1")


def unmarked(rule: Json) -> Json:
    """The same after a hand has taken our mark away."""
    return rule | {"metadata": rule["metadata"] | {"labels": {"team": "ml"}}}


def unreadable(rule: Json) -> Json:
    """One with our mark that says nothing else."""
    metadata = {"name": "scratch", "labels": {MANAGED_BY: MANAGER}}
    return rule | {"metadata": metadata}


def stored(rule: Json, version: int, uid: str = "uid-1") -> Rule:
    """The rule as a watch tells it."""
    versioned = rule["metadata"] | {"uid": uid, "resourceVersion": str(version)}
    return msgspec.convert(rule | {"metadata": versioned}, Rule)


def names(foreign: ForeignRules) -> set[str]:
    """Which rules it holds."""
    return {rule.name for rule in foreign.all()}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        pytest.param(theirs(), (NODE, DEVICE, "NoSchedule"), id="one-device"),
        pytest.param(theirs(device=None), (NODE, "", "NoSchedule"), id="a-pool"),
        pytest.param(theirs(pool=None, device=None), ("", "", "NoSchedule"), id="the-driver"),
        pytest.param(theirs(pool=None), ("", DEVICE, "NoSchedule"), id="that-device-of-every-pool"),
        pytest.param(theirs(driver=None), (NODE, DEVICE, "NoSchedule"), id="any-driver"),
        pytest.param(theirs(driver="gpu.example"), None, id="another-driver"),
        pytest.param(theirs(effect="NoExecute"), (NODE, DEVICE, "NoExecute"), id="evicts"),
        pytest.param(theirs(effect="Sometimes"), (NODE, DEVICE, "None"), id="an-effect-of-the-future"),
    ],
)
def test_what_taints_devices_of_ours_is_kept(rule: Json, kept: tuple[str, str, str] | None) -> None:
    foreign = ForeignRules(DRIVER)
    foreign.put(stored(rule, 1))
    if kept is None:
        assert not foreign.all()
    else:
        pool, device, effect = kept
        taint = DeviceTaint("neuron.aws.com/device-unhealthy", "planned", Effect(effect))
        assert list(foreign.all()) == [ForeignRule("maintenance", pool, device, taint)]


def test_a_rule_that_leaves_our_driver_is_dropped() -> None:
    foreign = ForeignRules(DRIVER)
    foreign.put(stored(theirs(), 1))
    foreign.put(stored(theirs(driver="gpu.example"), 2))
    assert not foreign.all()


def test_a_record_whose_mark_is_taken_away_is_a_record_no_more() -> None:
    """It comes as a change without our label: the records are told that it is gone, by somebody else's doing."""
    records, foreign = RecordCache(), ForeignRules(DRIVER)
    gone: list[bool] = []
    records.on_change = lambda _before, after, by_us: gone.append(by_us) if after is None else None
    sorting = Sorting(records, foreign, PeerRules())
    sorting.put(stored(ours(), 1))
    assert records.get(record().key)
    assert not foreign.all()

    sorting.put(stored(unmarked(ours()), 2))
    assert records.get(record().key) is None
    assert gone == [False]
    assert names(foreign) == {OURS}

    sorting.put(stored(ours(), 3))
    assert records.get(record().key)
    assert not foreign.all()


def test_our_mark_on_a_rule_that_names_no_fault_makes_no_record_and_hides_no_taint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records, foreign = RecordCache(), ForeignRules(DRIVER)
    Sorting(records, foreign, PeerRules()).put(stored(unreadable(ours()), 1))
    assert not records.all()
    assert names(foreign) == {"scratch"}
    assert "do not say which fault" in caplog.text


def test_a_peer_rule_is_neither_a_record_nor_foreign(caplog: pytest.LogCaptureFixture) -> None:
    records, foreign, peer_rules = RecordCache(), ForeignRules(DRIVER), PeerRules()
    Sorting(records, foreign, peer_rules).put(stored(peers(), 1))
    assert [one.metadata.name for one in peer_rules.all()] == [peers()["metadata"]["name"]]
    assert not records.all()
    assert not foreign.all()
    assert not caplog.records


def test_a_foreign_rule_is_none_of_the_records_business(caplog: pytest.LogCaptureFixture) -> None:
    records = RecordCache()
    sorting = Sorting(records, ForeignRules(DRIVER), PeerRules())
    sorting.put(stored(theirs(), 1))
    sorting.replace([stored(theirs(), 1)], "2")
    sorting.remove(stored(theirs(), 3))
    assert not records.all()
    assert not caplog.records


_STATES: dict[str, Callable[[], Json]] = {
    "ours": ours,
    "unmarked": lambda: unmarked(ours()),
    "unreadable": lambda: unreadable(ours()),
    "theirs": theirs,
    "of-another-driver": lambda: theirs(driver="gpu.example"),
    "peers": peers,
    "unmarked-peers": lambda: unmarked(peers()),
}
_RECORDS = {"ours"}
_PEERS = {"peers"}
_SHOWN = {"unmarked", "unreadable", "theirs", "unmarked-peers"}


@given(st.lists(st.tuples(st.sampled_from([*_STATES, "relisted"]), st.booleans()), max_size=15))
def test_each_rule_is_where_it_belongs_after_any_events(events: list[tuple[str, Any]]) -> None:
    """A rule is made, changed by hands, deleted, made again; now and then the watch begins anew with a list."""
    records, foreign, peer_rules = RecordCache(), ForeignRules(DRIVER), PeerRules()
    sorting = Sorting(records, foreign, peer_rules)
    there: dict[str, tuple[str, str]] = {}  # name → UID and state
    for version, (state, stays) in enumerate(events, 1):
        if state == "relisted":
            listed = [stored(_STATES[held](), version, uid) for uid, held in there.values()]
            sorting.replace(listed, str(version))
        else:
            raw = _STATES[state]()
            name = raw["metadata"]["name"]
            uid, _ = there.get(name, (f"uid-{version}", ""))
            (sorting.put if stays else sorting.remove)(stored(raw, version, uid))
            there.pop(name, None)
            if stays:
                there[name] = (uid, state)

        states = {name: state for name, (_, state) in there.items()}
        assert {one.stored.name for one in records.all() if one.stored} == {
            name for name, state in states.items() if state in _RECORDS
        }
        assert {one.metadata.name for one in peer_rules.all()} == {
            name for name, state in states.items() if state in _PEERS
        }
        assert names(foreign) == {name for name, state in states.items() if state in _SHOWN}
