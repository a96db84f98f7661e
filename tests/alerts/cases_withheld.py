"""When Withheld fires: for people, once a cluster, for what stays withheld, and not for what is on its way.

Every case starts from a link fault that is read and whose record is withheld.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from alerts.faults import FAULTS, WITHHELD, Fault
from alerts.intervals import Intervals
from tests.alerts.promtool import (
    MISSING,
    NAN,
    STALE,
    Annotated,
    Case,
    Check,
    Labels,
    firing_at,
    never_fired,
    next_evaluation,
    run,
    runs,
    selector,
)
from tests.alerts.scene import FAULT, NEW_TARGET, TARGET, of_fault, record

_LINK: Final = FAULTS["link_efa"]
_MEMORY: Final = FAULTS["hbm"]
_SINCE: Final = 3  # the sample with which the record is withheld
_READ: Final = of_fault(FAULT, _LINK)


def _record(fault: Fault = _LINK, /, replica: int = 0, **labels: str) -> str:
    own = {"state": "withheld", "effect": "None", **labels}
    return record(fault, replica=replica, **own)


def _alert(**labels: str) -> dict[str, str]:
    return {"alertname": WITHHELD, "severity": "critical", **labels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Withholding:
    """A fault that is read from the start, and whose record is withheld from sample `_SINCE` on."""

    intervals: Intervals

    @property
    def due(self) -> int:
        """The evaluation at which the alert fires if nothing comes of it before."""
        seen = next_evaluation(_SINCE * self.intervals.scrape, self.intervals)
        return seen + next_evaluation(self.intervals.carrying_out, self.intervals)

    @property
    def end(self) -> int:
        """As long again, and more."""
        return 2 * self.due + 3 * self.intervals.scrape

    @property
    def samples(self) -> int:
        """How many scrapes there are until the end."""
        return self.end // self.intervals.scrape + 1

    @property
    def series(self) -> dict[str, str]:
        """The fault, and its record as two replicas show it."""
        withheld = runs((MISSING, _SINCE), (1, self.samples))
        return {
            _READ: run(1, self.samples),
            _record(): withheld,
            _record(replica=1): withheld,
        }

    def case(self, name: str, change: Mapping[str, str | None], checks: list[Check]) -> Case:
        """Return the case with these series changed, or left out where the value is None."""
        changed = {**self.series, **change}
        return Case(name=name, series={name: run for name, run in changed.items() if run is not None}, checks=checks)

    def fires(self, name: str, change: Mapping[str, str | None], *others: Labels) -> Case:
        """Return the case in which it fires on time and to the end, the same alert all the while."""
        since = next_evaluation(_SINCE * self.intervals.scrape, self.intervals)
        start = selector("ALERTS_FOR_STATE", _alert())
        at_the_end = f'ALERTS_FOR_STATE{{alertname="{WITHHELD}"}}'
        return self.case(
            name,
            change,
            [
                never_fired(WITHHELD, self.due - self.intervals.evaluation),
                firing_at(self.due, _alert(), *others),
                Check(time=self.end, expression=at_the_end, samples={start: since}),
            ],
        )

    def never(self, name: str, change: Mapping[str, str | None]) -> Case:
        """Return the case in which it never fires."""
        return self.case(name, change, [never_fired(WITHHELD, self.end)])


def withheld_cases(intervals: Intervals) -> Iterator[Case]:
    """Give what people are told of, what is over by itself, and what absence does not end."""
    there = Withholding(intervals=intervals)
    yield from _firing_cases(there)
    yield from _quiet_cases(there)
    yield _mass_case(there)
    yield _cluster_case(there)


def _firing_cases(there: Withholding) -> Iterator[Case]:
    n, link = there.samples, _link_alert()
    gone = runs((1, _SINCE + 1), (STALE, 1))
    stale = [firing_at(there.due, _alert())]
    yield there.fires("a fault is read and its record stays withheld", {}, link)
    yield there.fires("a weaker effect than asked for is withheld too", _instead(effect="NoSchedule", n=n), link)
    yield there.case("the fault series disappears, which ends no fault", {_READ: gone}, stale)
    yield there.case("the fault series is missing, which is no reading", {_READ: None}, stale)
    yield there.case("a reading that is not a number is no clean reading", {_READ: run(NAN, n)}, stale)
    other = of_fault(FAULT, _LINK, target=NEW_TARGET)
    yield there.fires("one of two exporter pods reads the fault", {_READ: run(0, n), other: run(1, n)}, link)
    latched = {
        **dict.fromkeys(there.series),
        of_fault(FAULT, _MEMORY): run(0, n),
        _record(_MEMORY): runs((MISSING, _SINCE), (1, n)),
    }
    yield there.fires("a latched record is withheld although its device reads clean", latched)


def _quiet_cases(there: Withholding) -> Iterator[Case]:
    n, scrape = there.samples, there.intervals.scrape
    seconds = there.intervals.carrying_out - there.intervals.evaluation
    short = seconds // scrape
    for state in ("active", "covered", "released", "opted-out"):
        yield there.never(f"nothing is withheld: {state}", _instead(state=state, effect="None", n=n))
    yield there.never("there is no record", {name: None for name in there.series if name != _READ})
    yield there.never("the device reads clean, so the record goes by itself", {_READ: run(0, n)})
    yield there.never(
        "it is withheld no longer than a firing on its way takes, and then has its effect",
        {name: runs((MISSING, _SINCE), (1, short), (STALE, 1)) for name in there.series if name != _READ}
        | {record(_LINK): runs((MISSING, _SINCE + short), (1, n))},
    )
    until = there.due + 2 * scrape
    over = next_evaluation(until + 2 * scrape, there.intervals) + there.intervals.evaluation
    yield there.case(
        "it ends once the last device reads clean",
        {_READ: runs((1, until // scrape), (0, n))},
        [firing_at(there.due, _alert(), _link_alert()), firing_at(over)],
    )


def _instead(*, n: int, effect: str, state: str = "withheld") -> dict[str, str | None]:
    """Both replicas show the record with that state and effect instead."""
    change: dict[str, str | None] = {_record(replica=replica): None for replica in (0, 1)}
    shown = {record(_LINK, replica=replica, state=state, effect=effect): replica for replica in (0, 1)}
    return change | dict.fromkeys(shown, runs((MISSING, _SINCE), (1, n)))


def _link_alert(**labels: str) -> dict[str, str]:
    own = {"node": TARGET["node"], "device": "3", "fault": _LINK.name}
    return {"alertname": _LINK.alert, "severity": str(_LINK.severity), "remediation": "taint", **own, **labels}


def _mass_case(there: Withholding) -> Case:
    devices = [str(device) for device in range(16)]
    series = {of_fault(FAULT, _LINK, device): run(1, there.samples) for device in devices} | {
        _record(device=device): runs((MISSING, _SINCE), (1, there.samples)) for device in devices
    }
    return Case(
        name="sixteen devices at once are one alert, which says how many",
        series=series,
        checks=[firing_at(there.due, _alert(), *(_link_alert(device=device) for device in devices))],
        annotated=[
            Annotated(
                time=there.due,
                alert=WITHHELD,
                labels={"severity": "critical"},
                annotations=_annotations("Records withheld: 16. "),
            )
        ],
    )


def _cluster_case(there: Withholding) -> Case:
    series = {}
    for cluster in ("east", "west"):
        series[of_fault(FAULT, _LINK, target={**TARGET, "cluster": cluster})] = run(1, there.samples)
    series[_record(cluster="east")] = runs((MISSING, _SINCE), (1, there.samples))
    series[record(_LINK, cluster="west")] = run(1, there.samples)
    return Case(
        name="where series carry a cluster, each cluster has an alert of its own",
        series=series,
        checks=[
            firing_at(there.due, _alert(cluster="east"), _link_alert(cluster="east"), _link_alert(cluster="west")),
        ],
        annotated=[
            Annotated(
                time=there.due,
                alert=WITHHELD,
                labels={"severity": "critical", "cluster": "east"},
                annotations=_annotations("Records withheld in cluster east: 1. "),
            )
        ],
    )


def _annotations(begins: str) -> dict[str, str]:
    return {
        "summary": "Neuron devices stay in use although they are faulty: their taints are withheld.",
        "description": f"{begins}Each is a fault without the effect that it asks for, because the budget has no room "
        "for it or it has not fired since there was. `neuron-taints list --state withheld` names them.",
    }
