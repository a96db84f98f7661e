"""Cases for `promtool test rules`: what is scraped, and which alerts have fired when.

Pure: cases in, the text of a promtool file out. Expectations are on Prometheus's own `ALERTS`
series, because one query then says which alerts fire, with all their labels, and that no other one does.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from alerts.intervals import Intervals

Labels = Mapping[str, str]
MISSING: Final = "_"
STALE: Final = "stale"
NAN: Final = "NaN"


def run(value: float | str, samples: int) -> str:
    """Return promtool's notation for the same value a number of times; a number, MISSING, STALE or NAN."""
    if samples <= 0:
        return ""
    if value == MISSING:
        return f"_x{samples}"
    if isinstance(value, str):
        return " ".join([value] * samples)
    return f"{value}x{samples - 1}"


def runs(*parts: tuple[float | str, int]) -> str:
    """Return promtool's notation for several runs, one after the other."""
    return " ".join(text for value, samples in parts if (text := run(value, samples)))


def selector(name: str, labels: Labels) -> str:
    """Return a series as PromQL writes it, for example `up{node="n"}`."""
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """At `time` seconds `expression` gives exactly `samples`."""

    time: int
    expression: str
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """At `time` seconds the alert fires once, with these labels and annotations."""

    time: int
    alert: str
    labels: Labels
    annotations: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One situation: series by selector, one value each scrape, and what must be true of the alerts."""

    name: str
    series: Mapping[str, str]
    checks: Sequence[Check]
    annotated: Sequence[Annotated] = ()


def firing_at(time: int, *alerts: Labels) -> Check:
    """At this time exactly these alerts fire, with exactly these labels (`alertname` included)."""
    samples = {selector("ALERTS", {**labels, "alertstate": "firing"}): 1.0 for labels in alerts}
    return Check(time=time, expression='ALERTS{alertstate="firing"}', samples=samples)


def never_fired(alert: str, until: int) -> Check:
    """At no evaluation from the start until this time did the alert fire, with whatever labels."""
    series = selector("ALERTS", {"alertname": alert, "alertstate": "firing"})
    return Check(time=until, expression=f"count_over_time({series}[{until + 1}s])")


def fired_alerts(until: int, *alerts: str) -> Check:
    """Over the whole time these alerts fired and no other one did."""
    expression = f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{until + 1}s]))'
    samples = {selector("", {"alertname": alert}): 1.0 for alert in alerts}
    return Check(time=until, expression=expression, samples=samples)


def next_evaluation(time: int, intervals: Intervals) -> int:
    """Return the first evaluation at or after this time."""
    return math.ceil(time / intervals.evaluation) * intervals.evaluation


def promtool_file(rules: Path | str, intervals: Intervals, cases: Iterable[Case]) -> str:
    """Return the text of the promtool file that tries the cases on a rule file."""
    return "".join(_lines(rules, intervals, cases))


def _lines(rules: Path | str, intervals: Intervals, cases: Iterable[Case]) -> Iterator[str]:
    yield f"rule_files: [{json.dumps(str(rules))}]\n"
    yield f"evaluation_interval: {intervals.evaluation}s\n"
    yield "tests:\n"
    for case in cases:
        yield f"  - name: {json.dumps(case.name)}\n"
        yield f"    interval: {intervals.scrape}s\n"
        yield "    input_series:\n"
        for series, values in case.series.items():
            yield f"      - {{series: {_quote(series)}, values: {_quote(values)}}}\n"
        if case.annotated:
            yield "    alert_rule_test:\n"
        for alert in case.annotated:
            yield f"      - eval_time: {alert.time}s\n"
            yield f"        alertname: {alert.alert}\n"
            expected = {"exp_labels": dict(alert.labels), "exp_annotations": dict(alert.annotations)}
            yield f"        exp_alerts: [{json.dumps(expected)}]\n"
        yield "    promql_expr_test:\n"
        for check in case.checks:
            yield f"      - eval_time: {check.time}s\n"
            yield f"        expr: {_quote(check.expression)}\n"
            samples = (f"{{labels: {_quote(labels)}, value: {value:g}}}" for labels, value in check.samples.items())
            yield f"        exp_samples: [{', '.join(samples)}]\n"


def _quote(text: str) -> str:
    # Single quotes leave PromQL's double quotes readable; none of these texts has a single one.
    return f"'{text}'"
