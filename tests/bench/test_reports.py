"""Targets are judged on medians and on growth, and the sizes in the issue are the ones that are run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.bench import burst, repeats, scale
from tests.bench.__main__ import BENCHMARKS, main
from tests.bench.burst import Taken
from tests.bench.process_figures import Memory

if TYPE_CHECKING:
    from tests.bench.measurement import Measurement


def _verdicts(rows: list[Measurement]) -> dict[str, bool]:
    return {row.name: row.ok for row in rows if row.target is not None}


def test_a_burst_is_judged_by_its_ratio_and_by_the_clock() -> None:
    taken = {
        "bare creates": [Taken(1.0, 0.3), Taken(1.8, 0.3), Taken(9.0, 0.3)],
        "notification each": [Taken(4.2, 0.2, events=1000)] * 3,
        "one notification": [Taken(4.6, 0.0, events=1000)] * 2 + [Taken(1.0, 0.0, events=999, retries=1)],
    }
    rows = burst.report(taken, faults=1000)

    assert _verdicts(rows) == {
        "burst of 1000, notification each": False,
        "burst of 1000, notification each / bare creates": True,
        "burst of 1000, notification each: Events missing": True,
        "burst of 1000, one notification": False,
        "burst of 1000, one notification / bare creates": False,
        "burst of 1000, one notification: Events missing": False,
    }


@pytest.mark.parametrize(
    ("end", "writes", "expected"), [(103.9, 0, [True, True]), (104.1, 0, [False, True]), (90.0, 1, [True, False])]
)
def test_repeats_are_judged_by_growth_and_by_writes(end: float, writes: int, expected: list[bool]) -> None:
    seen = {0.1: Memory(100.0, 120.0), 0.5: Memory(110.0, 120.0), 1.0: Memory(end, 120.0)}
    replayed = repeats.Replayed(seen, 10.0, 5.0, Counter({"patch events": writes}), 0)

    assert list(_verdicts(repeats.report(replayed, repeats.SMALL)).values()) == expected


def test_the_sizes_are_those_that_are_promised() -> None:
    assert burst.FULL.faults == 1000
    assert repeats.FULL == (500, 288)
    assert scale.FULL == (10_000, 60)
    assert round(scale.FULL.nodes / scale.HEARTBEAT_SECONDS) == 33


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bursts"])
    assert f"expected some of {', '.join(BENCHMARKS)}" in capsys.readouterr().err
