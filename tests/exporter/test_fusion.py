"""Several sources, one reading: no order of loss and return may turn a fault into a clean reading."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import FAULTS, UNREACHABLE
from exporter.fusion import Fusion, fuse, nothing_read
from exporter.readings import Device, Health, Live, Reading, SourceDown, SourceReport, SourceUp, Unknown, Unreachable

READABLE = sorted(FAULTS.keys() - {UNREACHABLE.name})
SOURCES = ("a", "b", "c")
CLEAN = Live(present=frozenset(), taken=1.0)
HBM = Live(present=frozenset({"hbm"}), taken=2.0)
SILENT = Unknown(reason="test")
DEAD = Unreachable(reason="test")

healths: st.SearchStrategy[Health] = st.one_of(
    st.builds(
        Live,
        present=st.frozensets(st.sampled_from(READABLE[:3])),
        taken=st.floats(0, 2e9),
        latched=st.just(frozenset()),
    ),
    st.just(DEAD),
    st.just(SILENT),
)
reports: st.SearchStrategy[SourceReport] = st.one_of(
    st.just(SourceDown(reason="test")),
    st.dictionaries(st.integers(0, 1), healths.map(lambda health: Reading(health=health))).map(
        lambda readings: SourceUp(readings=readings)
    ),
)
rounds = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(SOURCES, reports)), max_size=8)


def up(health: Health) -> SourceUp:
    return SourceUp(readings={3: Reading(health=health)})


def said(report: SourceReport | None, device: int, fault: str) -> bool | None:
    """What one source says of one fault, written down independently of the code under test."""
    if not isinstance(report, SourceUp) or device not in report.readings:
        return None
    health = report.readings[device].health
    if isinstance(health, Live):
        return fault in health.present
    return True if isinstance(health, Unreachable) and fault == "device_unreachable" else None


@given(rounds)
def test_a_fault_becomes_absent_only_by_the_word_of_every_source_that_reported_it(
    history: list[dict[str, SourceReport]],
) -> None:
    fusion = nothing_read(())
    accusers: dict[tuple[int, str], set[str]] = {}
    for reports in history:
        fusion = fuse(fusion, reports)
        for device, fused in fusion.devices.items():
            for fault in FAULTS:
                words = {source: said(reports.get(source), device, fault) for source in SOURCES}
                standing = accusers.setdefault((device, fault), set())
                standing -= {source for source, word in words.items() if word is False}
                standing |= {source for source, word in words.items() if word is True}
                value = fused.faults.get(fault)
                if True in words.values():
                    assert value is True
                else:
                    assert value is not True
                if value is False:
                    assert not standing
                    assert False in words.values()


@given(rounds)
def test_the_order_in_which_sources_are_listed_does_not_matter(history: list[dict[str, SourceReport]]) -> None:
    one, other = nothing_read(()), nothing_read(())
    for reports in history:
        one = fuse(one, reports)
        other = fuse(other, dict(reversed(reports.items())))
    assert {i: d.faults for i, d in one.devices.items()} == {i: d.faults for i, d in other.devices.items()}
    assert one.transitions == other.transitions


@given(rounds)
def test_devices_stay_expected_and_counters_only_grow(history: list[dict[str, SourceReport]]) -> None:
    fusion = nothing_read((1,))
    for reports in history:
        before, fusion = fusion, fuse(fusion, reports)
        assert before.devices.keys() <= fusion.devices.keys()
        assert all(fusion.transitions[key] >= count for key, count in before.transitions.items())
        assert fusion.transitions.keys() == {(device, fault) for device in fusion.devices for fault in FAULTS}


def outcome(*history: Mapping[str, SourceReport]) -> tuple[Device, Fusion]:
    fusion = nothing_read(())
    for reports in history:
        fusion = fuse(fusion, reports)
    return fusion.devices[3], fusion


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_sources_the_fault_wins_in_either_order(order: tuple[str, str]) -> None:
    """Symptom: several runtimes report every core, and a healthy 0 shadows the real value."""
    device, _ = outcome({order[0]: up(CLEAN), order[1]: up(HBM)})
    assert device.faults["hbm"] is True
    assert device.state == "unhealthy"
    assert device.taken == HBM.taken


def test_a_lost_accuser_takes_the_value_away_and_its_return_gives_it_back() -> None:
    lost: dict[str, SourceReport] = {"a": SourceDown(reason="test"), "b": up(CLEAN)}
    device, _ = outcome({"a": up(HBM), "b": up(CLEAN)}, lost)
    assert "hbm" not in device.faults
    assert device.faults["sram"] is False
    assert device.state == "unknown"
    device, fusion = outcome({"a": up(HBM), "b": up(CLEAN)}, lost, {"a": up(CLEAN), "b": up(CLEAN)})
    assert device.faults["hbm"] is False
    assert fusion.transitions[3, "hbm"] == 0


def test_an_unreachable_device_shows_no_zero_from_another_source() -> None:
    device, _ = outcome({"a": up(DEAD), "b": up(HBM)})
    assert device.faults == {"device_unreachable": True, "hbm": True}


@pytest.mark.parametrize(
    ("history", "count"),
    [
        ([CLEAN, HBM], 1),
        ([HBM, HBM], 0),
        ([SILENT, HBM], 0),
        ([CLEAN, SILENT, HBM], 1),
        ([HBM, SILENT, HBM], 0),
        ([CLEAN, HBM, CLEAN, HBM], 2),
    ],
)
def test_transitions_are_counted_between_values_that_were_read(history: list[Health], count: int) -> None:
    _, fusion = outcome(*({"a": up(health)} for health in history))
    assert fusion.transitions[3, "hbm"] == count


def test_latched_is_shown_while_the_source_says_so() -> None:
    latched = Live(present=frozenset({"hbm"}), latched=frozenset({"hbm"}), taken=1.0)
    assert outcome({"a": up(latched)})[0].latched == {"hbm"}
    assert outcome({"a": up(latched)}, {"a": up(SILENT)})[0].latched == frozenset()


@pytest.mark.parametrize(
    ("present", "latched"), [({"nonsense"}, set()), ({"device_unreachable"}, set()), (set(), {"hbm"})]
)
def test_a_reading_that_contradicts_itself_cannot_be_made(present: set[str], latched: set[str]) -> None:
    with pytest.raises(ValueError, match="taking in a live reading"):
        Live(present=frozenset(present), latched=frozenset(latched), taken=1.0)


def test_what_is_swapped_in_cannot_be_changed() -> None:
    _, fusion = outcome({"a": up(HBM)})
    assert isinstance(fusion.devices, MappingProxyType)
    assert isinstance(fusion.devices[3].faults, MappingProxyType)
