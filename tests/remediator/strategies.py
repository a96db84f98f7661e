"""What the remediator's properties quantify over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
from remediator.budget import Limit
from remediator.records import NEVER, Key, Record, State, Taint, episode_of
from remediator.targets import NodeTarget, Target
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, fired, view

if TYPE_CHECKING:
    from remediator.decide import Fired
    from remediator.level import View
    from remediator.targets import AnyTarget

faults = st.sampled_from(sorted(FAULTS))
devices = st.integers(0, 9999)
node_names = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?){0,4}", fullmatch=True
).filter(lambda name: len(name) <= 253)
"""Names that the API server takes for a Node, up to the longest."""

hostile_texts = st.text(max_size=300) | st.sampled_from(["", " ", "*", "a" * 300, "\0", "../..", "a/b", "é"])
instants = st.datetimes(timezones=st.just(UTC))
"""Any time at all, year 1 and 9999 included."""

ends = st.sampled_from([NOW - timedelta(hours=1), NOW, NOW + timedelta(hours=1)])
"""When a release ends: it has, it does at this very moment, it has not yet."""

starts = st.integers(0, 6).map(lambda seconds: NOW - timedelta(seconds=10 * seconds))
"""A few times of recent starts, so that equal ones occur."""

targets = st.builds(
    Target,
    driver=st.just(DRIVER),
    pool=st.sampled_from([NODE, "pool-2"]),
    device=st.sampled_from(["neuron-device-3", "neuron-node"]),
    placed=st.booleans(),
)

node_targets = st.builds(
    NodeTarget,
    node=st.just(NODE),
    device=st.just(Target(DRIVER, NODE, "neuron-device-3", placed=False)),
    placed=st.booleans(),
)

any_targets: st.SearchStrategy[AnyTarget] = targets | node_targets

effects = st.sampled_from(Effect)

views: st.SearchStrategy[View] = st.builds(
    view,
    target=any_targets,
    opted_out=st.booleans(),
    max_effect=effects,
    node_no_execute=st.booleans(),
    driver=effects,
    refusal=st.none() | st.sampled_from(Limit),
)
"""Any surroundings of a record, at the sample time."""


def firings(fault: str) -> st.SearchStrategy[Fired]:
    """Firings of one fault on the sample device."""
    return st.builds(fired, st.just(fault), started=starts, latched=st.booleans())


@st.composite
def records(
    draw: st.DrawFn,
    *,
    started: st.SearchStrategy[datetime] = instants,
    nodes: st.SearchStrategy[str] = node_names,
    at: st.SearchStrategy[AnyTarget] = targets,
    taint_keys: st.SearchStrategy[str] = st.just(TAINT_KEY),  # noqa: B008 - a strategy is a constant
) -> Record:
    """Draw any record of any key, not yet stored; its target is a device unless told otherwise."""
    fault = draw(faults)
    last = draw(started)
    state = draw(st.sampled_from(State))
    released = state is State.RELEASED
    return Record(
        key=Key(draw(nodes), draw(devices), fault),
        node_uid=draw(st.uuids().map(str)),
        target=draw(at),
        taint=Taint(draw(taint_keys), FAULTS[fault].value, draw(st.sampled_from(Effect))),
        state=state,
        latched=draw(st.booleans()),
        episode=episode_of(last),
        first_fired=draw(started),
        last_fired=last,
        reason=FAULTS[fault].alert,
        released_until=draw(ends) if released else NEVER,
        released_by="alice@example.com" if released else "",
    )
