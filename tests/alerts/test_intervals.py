"""The age limit and the hold follow from the intervals, and stand in the rules where they must."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.faults import CLEARED, FAULTS, NOT_HELD, WITHHELD
from alerts.intervals import Intervals, parse_interval
from alerts.render import rules_file

_seconds = st.integers(min_value=1, max_value=120)
_intervals = st.builds(Intervals, scrape=_seconds, evaluation=_seconds)


@given(_intervals)
def test_age_limit_and_hold_are_what_the_intervals_allow(intervals: Intervals) -> None:
    scrape, evaluation = intervals.scrape, intervals.evaluation
    assert intervals.age_limit == max(10, 2 * scrape + evaluation)
    assert intervals.hold == max(15, intervals.age_limit + 5)


@given(_intervals)
def test_a_reading_lives_longer_than_a_scrape_and_shorter_than_the_hold(intervals: Intervals) -> None:
    # A limit above the hold would clear a present fault once its readings stop; one below a scrape, never.
    assert intervals.scrape + intervals.evaluation < intervals.age_limit < intervals.hold
    assert intervals.hold + intervals.scrape < intervals.transition_window


@given(_intervals)
def test_who_waits_for_what_is_carried_out_waits_for_the_firing_the_failover_and_the_scrape(
    intervals: Intervals,
) -> None:
    # NotHeld fires after the settling; another replica leads 15 s later at most; then the record must be scraped.
    assert intervals.carrying_out == intervals.settling + 15 + 2 * intervals.scrape + intervals.evaluation


@pytest.mark.parametrize("derived", ["settling", "carrying_out", "age_limit", "hold", "transition_window"])
def test_what_is_derived_cannot_be_chosen(derived: str) -> None:
    with pytest.raises(TypeError):
        Intervals(**{derived: 100})
    with pytest.raises(AttributeError):
        object.__setattr__(Intervals(), derived, 100)
    with pytest.raises(TypeError):
        dataclasses.replace(Intervals(), **{derived: 100})


@settings(deadline=None)  # renders a whole file, and the machine may be busy
@given(_intervals)
def test_the_rules_carry_exactly_these_times(intervals: Intervals) -> None:
    text = rules_file(FAULTS.values(), intervals)
    cleared = text[text.index(f"- alert: {CLEARED}") :]
    not_held = text[text.index(f"- alert: {NOT_HELD}") :]
    withheld = text[text.index(f"- alert: {WITHHELD}") :]
    assert re.findall(r"timestamp_seconds\{.*\}\)\) < (.*)\)", cleared) == [str(intervals.age_limit)]
    assert re.findall(r"timestamp_seconds\{.*\}\)\) > (.*)\)", cleared) == ["-5"]
    assert re.findall(r"\[(.*?)\]", cleared) == [f"{intervals.transition_window}s", "30m"]
    assert re.findall(r"for: (.*)", cleared) == [f"{intervals.hold}s"]
    assert re.findall(r"for: (.*)", withheld)[0] == f"{intervals.carrying_out}s"
    assert re.findall(r"for: (.*)", not_held)[0] == f"{2 * intervals.scrape + intervals.evaluation}s"
    assert re.findall(r"interval: (.*)", text) == [f"{intervals.evaluation}s"]


@pytest.mark.parametrize("field", ["scrape", "evaluation"])
@pytest.mark.parametrize("seconds", [-1, 0, 121, 86400])
def test_an_interval_out_of_range_is_refused(field: str, seconds: int) -> None:
    with pytest.raises(ValueError, match=rf'setting the {field} interval to "{seconds}s": out of range'):
        Intervals(**{field: seconds})


@given(st.integers(min_value=0, max_value=10_000))
def test_whole_seconds_and_minutes_are_read(number: int) -> None:
    assert parse_interval(f"{number}s") == number
    assert parse_interval(f"{number}m") == 60 * number


@pytest.mark.parametrize("text", ["", "5", "s", "1.5s", "500ms", "-1s", "1h", "5 s", "1m30s", "٣s", "5s\n"])
def test_anything_else_is_no_interval(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f'reading interval "{text}": not a duration; expected')):
        parse_interval(text)
