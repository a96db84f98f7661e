"""Figures are only worth having if they are computed and judged right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.bench.measurement import Measurement, percentile, table, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 50, 50.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 301)], 99, 297.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_a_missed_target_is_shown_and_written(tmp_path: Path) -> None:
    """The table says NO, the file says false; a figure without a target is neither."""
    rows = [
        Measurement(name="met", value=1.5, unit="x", samples=9, target=1.5),
        Measurement(name="missed", value=1.6, unit="x", samples=9, target=1.5),
        Measurement(name="known", value=2.0, unit="ms", samples=9),
    ]
    write(rows, tmp_path / "build/bench.json")

    written = json.loads((tmp_path / "build/bench.json").read_text())
    assert [row["ok"] for row in written] == [True, False, True]
    assert set(written[0]) == {"name", "value", "unit", "target", "ok", "samples"}
    assert [line.split()[4:5] for line in table(rows).splitlines()[1:3]] == [["yes"], ["NO"]]
