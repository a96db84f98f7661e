"""What the remediator's properties quantify over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
from remediator.inventory import Target
from remediator.records import Key, Record, State, Taint, episode_of
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, fired

if TYPE_CHECKING:
    from remediator.decide import Fired

faults = st.sampled_from(sorted(FAULTS))
devices = st.integers(0, 9999)
node_names = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?){0,4}", fullmatch=True
).filter(lambda name: len(name) <= 253)
"""Names that the API server takes for a Node, up to the longest."""

hostile_texts = st.text(max_size=300) | st.sampled_from(["", " ", "*", "a" * 300, "\0", "../..", "a/b", "é"])
instants = st.datetimes(timezones=st.just(UTC))
"""Any time at all, year 1 and 9999 included."""

starts = st.integers(0, 6).map(lambda seconds: NOW - timedelta(seconds=10 * seconds))
"""A few times of recent starts, so that equal ones occur."""

targets = st.builds(
    Target,
    driver=st.just(DRIVER),
    pool=st.sampled_from([NODE, "pool-2"]),
    device=st.sampled_from(["neuron-device-3", "neuron-node"]),
    placed=st.booleans(),
)


def firings(fault: str) -> st.SearchStrategy[Fired]:
    """Firings of one fault on the sample device."""
    return st.builds(fired, st.just(fault), started=starts, latched=st.booleans())


@st.composite
def records(draw: st.DrawFn, *, started: st.SearchStrategy[datetime] = instants) -> Record:
    """Draw any record of any key, not yet stored."""
    fault = draw(faults)
    last = draw(started)
    return Record(
        key=Key(draw(node_names), draw(devices), fault),
        node_uid=draw(st.uuids().map(str)),
        target=draw(targets),
        taint=Taint(TAINT_KEY, FAULTS[fault].value, draw(st.sampled_from(Effect))),
        state=draw(st.sampled_from(State)),
        latched=draw(st.booleans()),
        episode=episode_of(last),
        first_fired=draw(started),
        last_fired=last,
        reason=FAULTS[fault].alert,
    )
