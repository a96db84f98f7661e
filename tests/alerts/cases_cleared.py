"""When Cleared fires: on complete evidence, to the evaluation; and with any piece of it missing, never.

Every case is one change to the same situation, in which everything is as it must be.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from alerts.faults import CLEARED, FAULTS, Remediation
from alerts.intervals import Intervals
from tests.alerts.promtool import (
    MISSING,
    NAN,
    STALE,
    Case,
    Check,
    firing_at,
    never_fired,
    next_evaluation,
    run,
    runs,
    selector,
)
from tests.alerts.scene import (
    BUILD,
    FAULT,
    FAULT_LATCHED,
    NEW_TARGET,
    READING,
    SOURCE,
    TARGET,
    TRANSITIONS,
    UNKNOWN_COMPONENT,
    exporter,
    identity,
    of_device,
    of_fault,
    record,
    remediator,
    source,
    timestamps,
)

LINK: Final = FAULTS["link_efa"]
_HALF_HOUR: Final = 1800
_ALERT: Final = identity(CLEARED, LINK, episode="7f3a", severity="none", remediation=str(Remediation.CLEAR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """A fault of device 3 that has been present and reads clean from sample `clean` on, with a record of it."""

    intervals: Intervals

    @property
    def clean(self) -> int:
        """The first clean sample; the transition to the fault is out of the window by then."""
        return self.intervals.transition_window // self.intervals.scrape + 3

    @property
    def due(self) -> int:
        """The evaluation at which Cleared fires if nothing is wrong."""
        seen = next_evaluation(self.clean * self.intervals.scrape, self.intervals)
        return seen + next_evaluation(self.intervals.hold, self.intervals)

    @property
    def end(self) -> int:
        """Long enough after `due` for the hold and the window to pass once more."""
        both = self.intervals.hold + self.intervals.transition_window
        return next_evaluation(self.due + both + 3 * self.intervals.scrape, self.intervals)

    @property
    def samples(self) -> int:
        """How many scrapes there are until the end."""
        return self.end // self.intervals.scrape + 1

    @property
    def series(self) -> dict[str, str]:
        """Everything as it must be for Cleared."""
        return {
            **exporter(self.intervals, self.samples),
            **remediator(self.samples),
            of_fault(FAULT, LINK): runs((0, 1), (1, self.clean - 1), (0, self.samples)),
            of_fault(FAULT_LATCHED, LINK): run(0, self.samples),
            of_fault(TRANSITIONS, LINK): runs((0, 1), (1, self.samples)),
            record(LINK): runs((MISSING, 2), (1, self.samples)),
            record(LINK, replica=1): runs((MISSING, 2), (1, self.samples)),
        }

    @property
    def on_time(self) -> list[Check]:
        """Cleared fires when it is due, not an evaluation sooner, once, with the labels of its record."""
        return [never_fired(CLEARED, self.due - self.intervals.evaluation), firing_at(self.due, _ALERT)]

    @property
    def never(self) -> list[Check]:
        """Cleared never fires."""
        return [never_fired(CLEARED, self.end)]

    def case(self, name: str, change: Mapping[str, str | None], checks: list[Check] | None = None) -> Case:
        """Return the case with these series changed, or left out where the value is None; it never clears."""
        changed = {**self.series, **change}
        series = {name: values for name, values in changed.items() if values is not None}
        return Case(name=name, series=series, checks=self.never if checks is None else checks)


def cleared_cases(intervals: Intervals) -> Iterator[Case]:
    """Give the complete evidence, and each condition made false."""
    healing = Healing(intervals=intervals)
    yield healing.case("complete evidence clears, for the episode of the record", {}, healing.on_time)
    yield from _fault_cases(healing)
    yield from _record_cases(healing)
    yield from _reading_cases(healing)
    yield from _liveness_cases(healing)
    yield from _transition_cases(healing)


def _fault_cases(healing: Healing) -> Iterator[Case]:
    fault, n = of_fault(FAULT, LINK), healing.samples
    present = runs((0, 1), (1, healing.clean - 1))
    yield healing.case("the fault is still read", {fault: runs((0, 1), (1, n))})
    yield healing.case("the fault series is missing", {fault: None})
    yield healing.case("the fault series disappears", {fault: f"{present} stale"})
    yield healing.case("the fault series is not a number", {fault: f"{present} {run(NAN, n)}"})
    other = of_fault(FAULT, LINK, target=NEW_TARGET)
    yield healing.case("a second exporter pod still reads the fault", {other: run(1, n)})
    yield healing.case("a second exporter pod reads no number", {other: run(NAN, n)})
    yield healing.case("only another device reads clean", {fault: None, of_fault(FAULT, LINK, "4"): run(0, n)})
    latched = of_fault(FAULT_LATCHED, LINK)
    yield healing.case("the source says latched", {latched: run(1, n)})
    yield healing.case("the source's word on latching is not a number", {latched: run(NAN, n)})
    complaint = selector(UNKNOWN_COMPONENT, {**TARGET, "device": "3", "component": "link_efa0"})
    yield healing.case("the device complains of something unknown", {complaint: run(1, n)})
    others = selector(UNKNOWN_COMPONENT, {**TARGET, "device": "4", "component": "link_efa0"})
    yield healing.case("another device's unknown complaint does not hinder", {others: run(1, n)}, healing.on_time)
    yield healing.case("a source that never speaks of latching does not hinder", {latched: None}, healing.on_time)


def _record_cases(healing: Healing) -> Iterator[Case]:
    n = healing.samples
    none = {record(LINK): None, record(LINK, replica=1): None}
    yield healing.case("there is no record", none)
    for name, other in (
        ("another node", record(LINK, node="other")),
        ("another device", record(LINK, device="4")),
        ("another fault", record(LINK, fault="link_host")),
        ("no episode", record(LINK, episode="")),
    ):
        yield healing.case(f"the only record has {name}", {**none, other: run(1, n)})
    latched = record(LINK, latched="true")
    yield healing.case("the record is latched", {**none, latched: run(1, n)})
    yield healing.case("one replica knows that the record is latched", {record(LINK): None, latched: run(1, n)})
    unknown = record(LINK, latched="")
    yield healing.case("one replica does not say whether it is latched", {unknown: run(1, n)})
    two = {record(LINK): None, record(LINK, episode="9c01"): run(1, n)}
    yield healing.case(
        "replicas that know different episodes speak for each of them",
        two,
        [firing_at(healing.due, _ALERT, {**_ALERT, "episode": "9c01"})],
    )


def _reading_cases(healing: Healing) -> Iterator[Case]:
    intervals, n, clean = healing.intervals, healing.samples, healing.clean
    reading = of_device(READING)
    limit = intervals.age_limit
    stands = f"{timestamps(intervals, clean + 1)} {run(clean * intervals.scrape, n)}"
    yield healing.case("the reading has no time", {reading: None})
    yield healing.case("the first clean reading was the last one", {reading: stands})
    yield healing.case("the reading is always too old", {reading: timestamps(intervals, n, behind=limit)})
    ahead = -(5 + intervals.scrape)
    yield healing.case("the reading is from the future", {reading: timestamps(intervals, n, behind=ahead)})
    second = of_device(READING, target=NEW_TARGET)
    yield healing.case("a second exporter pod's reading is old", {second: run(0, n)})
    yield healing.case("only another device's reading is fresh", {reading: None, of_device(READING, "4"): stands})
    late = timestamps(intervals, n, behind=limit - intervals.scrape - 1)
    yield healing.case("a reading just young enough at every evaluation clears", {reading: late}, healing.on_time)
    early = timestamps(intervals, n, behind=-4)
    yield healing.case("a clock four seconds ahead clears", {reading: early}, healing.on_time)


def _liveness_cases(healing: Healing) -> Iterator[Case]:
    n, clean = healing.samples, healing.clean
    up = next(series for series in healing.series if series.startswith("up{"))
    build = next(series for series in healing.series if series.startswith(BUILD))
    sysfs, observer = source("sysfs"), source("observer")
    others_source = selector(SOURCE, {**TARGET, "node": "other", "source": "sysfs"})
    others_build = selector(BUILD, {**NEW_TARGET, "job": "other", "version": "0.1.0"})
    yield healing.case("one of two sources is down", {observer: run(0, n)})
    yield healing.case("one of two sources is not a number", {observer: run(NAN, n)})
    yield healing.case("one source goes down while the hold runs", {sysfs: runs((1, clean + 1), (0, n))})
    yield healing.case("no source says anything", {sysfs: None, observer: None})
    yield healing.case("another node's source is up", {sysfs: None, observer: None, others_source: run(1, n)})
    yield healing.case("one source is enough where one is enabled", {observer: None}, healing.on_time)
    yield healing.case("a clean page stays visible behind failed scrapes", {up: runs((1, clean + 1), (0, n))})
    frozen = exporter(healing.intervals, n, NEW_TARGET)
    frozen[next(series for series in frozen if series.startswith("up{"))] = run(0, n)
    yield healing.case("one of two exporter pods is visible behind failed scrapes", frozen)
    dead = {series: f"{run(1, clean + 1)} {STALE}" for series in exporter(healing.intervals, n, NEW_TARGET)}
    dead[next(series for series in dead if series.startswith("up{"))] = runs((1, clean + 1), (0, n))
    dead[of_device(READING, target=NEW_TARGET)] = f"{timestamps(healing.intervals, clean + 1)} {STALE}"
    dead[of_fault(FAULT, LINK, target=NEW_TARGET)] = f"{run(1, clean + 1)} {STALE}"
    yield healing.case("the one of two exporter pods that reads the fault dies", dead)
    yield healing.case("nothing says whether the scrape works", {up: None})
    yield healing.case("the target that is up is no exporter", {build: None})
    yield healing.case("only another job has an exporter", {build: None, others_build: run(1, n)})
    gone = {series: f"{run(1, clean)} {STALE}" for series in (build, sysfs, observer)}
    gone[up] = runs((1, clean), (0, n))
    gone[of_fault(FAULT, LINK)] = f"{runs((0, 1), (1, clean - 1))} {STALE}"
    gone[of_device(READING)] = f"{timestamps(healing.intervals, clean)} {STALE}"
    yield healing.case("the exporter dies", gone)


def _transition_cases(healing: Healing) -> Iterator[Case]:
    intervals, clean, n = healing.intervals, healing.clean, healing.samples
    counter = of_fault(TRANSITIONS, LINK)
    yield healing.case("transitions are not counted", {counter: None})
    yield healing.case("the transitions are not a number", {counter: run(NAN, n)})
    yield healing.case(
        "only another device's transitions are counted", {counter: None, of_fault(TRANSITIONS, LINK, "4"): run(1, n)}
    )
    # The gauge is 0 at every scrape, and the counter alone tells of a fault between two of them.
    blip = clean + 1
    still_held = next_evaluation(blip * intervals.scrape + 2 * intervals.hold, intervals)
    yield healing.case(
        "a fault between two scrapes starts the hold again",
        {counter: runs((0, 1), (1, blip - 1), (2, n))},
        [never_fired(CLEARED, still_held), firing_at(healing.end, _ALERT)],
    )
    yield healing.case("two spells in half an hour clear", {counter: runs((0, 1), (1, 1), (2, n))}, healing.on_time)
    yield _flapping_case(healing)


def _flapping_case(healing: Healing) -> Case:
    """Three spells: nothing clears for half an hour after the first, and then it does."""
    intervals = healing.intervals
    samples = (_HALF_HOUR + 2 * healing.end) // intervals.scrape
    series = {
        **exporter(intervals, samples),
        of_fault(FAULT, LINK): runs((0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1), (0, samples)),
        of_fault(TRANSITIONS, LINK): runs((0, 1), (1, 2), (2, 2), (3, samples)),
        record(LINK): run(1, samples),
    }
    return Case(
        name="three spells in half an hour stay tainted until the half hour is over",
        series=series,
        checks=[
            never_fired(CLEARED, _HALF_HOUR),
            firing_at(next_evaluation(_HALF_HOUR + healing.end, intervals), _ALERT),
        ],
    )
