"""A record that somebody else lowers again and again is raised ever more slowly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from alerts.faults import Effect
from remediator.pacing import LONGEST, SHORTEST, Pacing
from remediator.records import Key
from tests.remediator.samples import NODE, alert_json

if TYPE_CHECKING:
    import pytest

    from tests.remediator.conftest import Service

HBM, SRAM = Key(NODE, 3, "hbm"), Key(NODE, 3, "sram")


def test_the_first_time_is_now_and_the_next_ones_ever_later() -> None:
    pacing, now = Pacing(), 100.0
    assert pacing.due(HBM, now) == now
    pauses = []
    for _ in range(8):
        pacing.raised(HBM, now)
        pauses.append(pacing.due(HBM, now) - now)
        now = pacing.due(HBM, now)

    assert pauses == [SHORTEST * 2**count for count in range(5)] + [LONGEST] * 3
    assert pacing.due(SRAM, now) == now, "each record for itself"


def test_what_has_been_left_alone_for_some_time_is_as_new() -> None:
    pacing = Pacing()
    for _ in range(4):
        pacing.raised(HBM, 100.0)
    later = 100.0 + 4 * LONGEST
    pacing.raised(HBM, later)

    assert pacing.due(HBM, later) == later + SHORTEST


async def test_a_taint_that_somebody_takes_away_at_once_is_put_back_and_then_waited_with(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two controllers that never give in must not fill the cluster with writes; a firing is not held up."""
    assert await service.post(alert_json()) == 200
    raised, seconds = 0, 100.0
    monkeypatch.setattr(service.parts.leveller, "_elapsed", lambda: seconds)
    for _ in range(20):
        held = service.backend.record(HBM)
        assert held is not None
        if held.disrupts:
            await service.backend.memory.update(replace(held, taint=replace(held.taint, effect=Effect.NONE)))
        before = len(service.backend.writes)
        await service.parts.leveller.sweep()
        raised += len(service.backend.writes) - before
        seconds += 0.5

    assert raised == 3, "at once, after 2 s and after 4 s more"
