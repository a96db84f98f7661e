"""What a benchmark reports, and how it is shown. Pure but for the two functions that print and write."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure. `target` is the most it may be; None where the figure is there to be known, not judged."""

    name: str
    value: float
    unit: str
    samples: int
    target: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the target is met; true where there is none."""
        return self.target is None or self.value <= self.target


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def table(measurements: Sequence[Measurement]) -> str:
    """Lines for people: name, value, unit, target, verdict, samples."""
    width = max(len(one.name) for one in measurements)
    lines = [f"{'what':<{width}}  {'value':>9}  {'unit':<6}  {'target':>7}  ok   samples"]
    for one in measurements:
        target = "" if one.target is None else f"{one.target:g}"
        verdict = "" if one.target is None else "yes" if one.ok else "NO"
        lines.append(
            f"{one.name:<{width}}  {one.value:>9.3f}  {one.unit:<6}  {target:>7}  {verdict:<3}  {one.samples:>7}"
        )
    return "\n".join(lines)


def write(measurements: Sequence[Measurement], path: Path) -> None:
    """Write them as a JSON list of objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(one) | {"ok": one.ok} for one in measurements]
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
