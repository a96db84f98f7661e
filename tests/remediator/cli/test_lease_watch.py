"""Who leads is who renews while it is watched, whatever the Lease says of times."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.cli.lease_watch import LeaseMetadata, LeaseObject, LeaseSpec, LeaseWatch
from remediator.election import LONGEST
from remediator.records import MANAGED_BY, MANAGER

DURATION = 15.0


def lease(version: int = 1, holder: str | None = "pod-1_0a1b2c3d", *, seconds: int | None = 15) -> LeaseObject:
    """The Lease, in one version."""
    metadata = LeaseMetadata("neuron-remediator", "ns", "uid-1", str(version), {MANAGED_BY: MANAGER})
    return LeaseObject(metadata, LeaseSpec(holder, seconds))


@dataclass
class Watcher:
    """Looks once a second until it is over; returns when that was, or None if a leader was seen."""

    duration: float = DURATION

    def ends(self, *looks: list[LeaseObject]) -> float | None:
        """What is seen at the last look is seen from then on."""
        watch, now = LeaseWatch(self.duration, began=100.0), 100.0
        while not watch.over(now):
            if watch.saw(looks[min(int(now) - 100, len(looks) - 1)]) is not None:
                return None
            now += 1
        return now - 100


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([[]], 4),
        ([[lease(holder="")]], 4),
        ([[lease(holder=None)]], 4),
        ([[lease()]], 15),
        ([[lease(seconds=40)]], 40),
        ([[lease(seconds=None)]], 15),
        ([[lease(seconds=1)]], 15),
        ([[lease(seconds=2**31 - 1)]], LONGEST),
        # Given back, or deleted, meanwhile.
        ([[lease(1)], [lease(2, "")]], 15),
        ([[lease(1)], []], 15),
    ],
)
def test_nobody_leads_who_does_not_renew(looks: list[list[LeaseObject]], seconds: float) -> None:
    assert Watcher().ends(*looks) == seconds


@pytest.mark.parametrize(
    "looks",
    [
        [[lease(1)], [lease(1)], [lease(2)]],
        # Taken, or made, by who was waiting.
        [[lease(1, "")], [lease(2)]],
        [[], [], [lease(1)]],
        [[lease(1)], [], [lease(1)], [lease(3)]],
    ],
)
def test_who_renews_or_takes_it_leads(looks: list[list[LeaseObject]]) -> None:
    assert Watcher().ends(*looks) is None


@given(st.floats(min_value=1, max_value=100), st.floats(min_value=0, max_value=1))
def test_a_leader_is_always_seen(duration: float, phase: float) -> None:
    """It renews seven and a half times in its duration, and is looked at fifteen times."""
    period, pause = duration / 7.5, min(1.0, duration / 15)
    watch, now = LeaseWatch(duration, began=0.0), 0.0
    while not watch.over(now):
        version = int(now / period + phase)
        if watch.saw([lease(version, seconds=int(duration))]) is not None:
            return
        now += pause
    pytest.fail("it was taken for one that is dead")
