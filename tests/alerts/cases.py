"""When the fault alerts, NotHeld and Latched fire, and when they do not."""

from collections.abc import Iterator

from alerts.faults import CLEARED, FAULTS, HEALTHY, LATCHED, NOT_HELD, Fault, Remediation
from alerts.intervals import Intervals
from tests.alerts.promtool import (
    MISSING,
    NAN,
    STALE,
    Annotated,
    Case,
    Check,
    fired_alerts,
    firing_at,
    never_fired,
    next_evaluation,
    run,
    runs,
    selector,
)
from tests.alerts.scene import (
    FAULT,
    FAULT_LATCHED,
    KNOWN_NODE,
    LEADER,
    NEW_TARGET,
    NODE,
    REPLICAS,
    TARGET,
    device_faults,
    exporter,
    identity,
    of_fault,
    record,
    remediator,
)

_LINK = FAULTS["link_efa"]
_BREAKS = 3  # the sample with which a fault appears
_SAMPLES = 40


def fault_cases(intervals: Intervals) -> Iterator[Case]:
    """Give each example reading, the healthy reading, and what scraping may do to a reading."""
    end = (_SAMPLES - 1) * intervals.scrape
    for fault in FAULTS.values():
        yield _example_case(fault, intervals)
    yield Case(
        name="the healthy reading fires nothing",
        series=_node(intervals) | device_faults(HEALTHY, before=0, samples=_SAMPLES),
        checks=[fired_alerts(end)],
    )
    yield Case(
        name="a reading that is not a number fires nothing",
        series=_node(intervals) | {of_fault(FAULT, _LINK): run(NAN, _SAMPLES)},
        checks=[fired_alerts(end)],
    )
    yield Case(
        name="a series without a node label fires nothing that could be acted upon",
        series=_node(intervals)
        | {selector(FAULT, {"device": "3", "fault": _LINK.name, "instance": "a"}): run(1, _SAMPLES)},
        checks=[fired_alerts(end)],
    )
    yield _disappearing_case(intervals)
    yield _replaced_pod_case(intervals)
    yield _cluster_case(intervals)


def _node(intervals: Intervals) -> dict[str, str]:
    return exporter(intervals, _SAMPLES) | remediator(_SAMPLES)


def _seen(intervals: Intervals) -> int:
    """Return the first evaluation that sees the fault."""
    return next_evaluation(_BREAKS * intervals.scrape, intervals)


def _taint_alert(fault: Fault, **labels: str) -> dict[str, str]:
    own = {"severity": str(fault.severity), "remediation": str(Remediation.TAINT)}
    return identity(fault.alert, fault, **own, **labels)


def _example_case(fault: Fault, intervals: Intervals) -> Case:
    held = {record(fault): runs((MISSING, _BREAKS + 1), (1, _SAMPLES - _BREAKS - 1))}
    alert = _taint_alert(fault)
    end = (_SAMPLES - 1) * intervals.scrape
    latched = "Clean readings do not lift the taint, and a resolved alert does not say it is gone: replace the node."
    passing = "The taint goes once the device has proved clean; a resolved alert does not say that it is gone."
    annotations = {
        "summary": fault.summary,
        "description": f"Neuron device 3 of node {NODE} {fault.finding}. Taint: value {fault.value}, "
        f"effect {fault.effect}. " + (latched if fault.latched else passing),
    }
    seen = _seen(intervals)
    return Case(
        name=f"{fault.name}: the example reading fires {fault.alert} at once, and no other alert ever",
        series=_node(intervals) | device_faults(fault.example, before=_BREAKS, samples=_SAMPLES) | held,
        checks=[firing_at(seen, alert), firing_at(end, alert), fired_alerts(end, fault.alert)],
        annotated=[
            Annotated(
                time=seen,
                alert=fault.alert,
                labels={key: value for key, value in alert.items() if key != "alertname"},
                annotations=annotations,
            )
        ],
    )


def _disappearing_case(intervals: Intervals) -> Case:
    end = (_SAMPLES - 1) * intervals.scrape
    series = _node(intervals) | device_faults(_LINK.example, before=_BREAKS, samples=_SAMPLES)
    series[of_fault(FAULT, _LINK)] = runs((0, _BREAKS), (1, 3), (STALE, 1))
    return Case(
        name="a fault series that disappears ends its alert and clears nothing",
        series=series | {record(_LINK): runs((MISSING, _BREAKS + 1), (1, _SAMPLES))},
        checks=[firing_at(_seen(intervals), _taint_alert(_LINK)), firing_at(end), never_fired(CLEARED, end)],
    )


def _replaced_pod_case(intervals: Intervals) -> Case:
    end = (_SAMPLES - 1) * intervals.scrape
    alive = 10
    series = remediator(_SAMPLES) | {
        of_fault(FAULT, _LINK): runs((0, _BREAKS), (1, alive), (STALE, 1)),
        of_fault(FAULT, _LINK, target=NEW_TARGET): runs((MISSING, _BREAKS + alive - 1), (1, _SAMPLES)),
        record(_LINK): run(1, _SAMPLES),
    }
    since = selector("ALERTS_FOR_STATE", _taint_alert(_LINK))
    return Case(
        name="a replaced exporter pod, two at a time for a while, leaves one alert that goes on",
        series=series,
        checks=[
            firing_at(end, _taint_alert(_LINK)),
            # The time since which it is active: an alert that had ended in between would have a later one.
            Check(time=end, expression="ALERTS_FOR_STATE", samples={since: _seen(intervals)}),
        ],
    )


def _cluster_case(intervals: Intervals) -> Case:
    end = (_SAMPLES - 1) * intervals.scrape
    east, west = ({**TARGET, "cluster": name} for name in ("east", "west"))
    return Case(
        name="where series carry a cluster, alerts carry it, and one cluster's leader and records speak for it alone",
        series={
            of_fault(FAULT, _LINK, target=east): run(1, _SAMPLES),
            of_fault(FAULT, _LINK, target=west): run(1, _SAMPLES),
            selector(LEADER, {**REPLICAS[0], "cluster": "east"}): run(1, _SAMPLES),
            **{
                selector(KNOWN_NODE, {**REPLICAS[0], "node": NODE, "cluster": name}): run(1, _SAMPLES)
                for name in ("east", "west")
            },
            record(_LINK, cluster="west"): run(1, _SAMPLES),
        },
        checks=[
            firing_at(
                end,
                _taint_alert(_LINK, cluster="east"),
                _taint_alert(_LINK, cluster="west"),
                _not_held(_LINK, cluster="east"),
            )
        ],
    )


def _not_held(fault: Fault, **labels: str) -> dict[str, str]:
    return identity(NOT_HELD, fault, severity="none", remediation=str(Remediation.TAINT), **labels)


def not_held_cases(intervals: Intervals) -> Iterator[Case]:
    """Give what holds a fault, what does not, and how long it takes."""
    end = (_SAMPLES - 1) * intervals.scrape
    broken = _node(intervals) | device_faults(_LINK.example, before=_BREAKS, samples=_SAMPLES)
    for state in ("active", "covered", "released", "opted-out"):
        yield Case(
            name=f"a record in state {state} holds the fault",
            series=broken | {record(_LINK, state=state): run(1, _SAMPLES)},
            checks=[never_fired(NOT_HELD, end)],
        )
    yield Case(
        name="a record that appears a scrape and an evaluation after the fault is in time",
        series=broken | {record(_LINK): runs((MISSING, _BREAKS + 1), (1, _SAMPLES))},
        checks=[never_fired(NOT_HELD, end)],
    )
    for name, others in (
        ("nothing holds it", {}),
        ("a withheld record does not hold it", {record(_LINK, state="withheld"): run(1, _SAMPLES)}),
        ("the record of another device does not hold it", {record(_LINK, device="4"): run(1, _SAMPLES)}),
        ("the record of another node does not hold it", {record(_LINK, node="other"): run(1, _SAMPLES)}),
        ("the record of another fault does not hold it", {record(FAULTS["hbm"]): run(1, _SAMPLES)}),
    ):
        due = _seen(intervals) + next_evaluation(intervals.settling, intervals)
        yield Case(
            name=f"a fault is not held: {name}",
            series=broken | others,
            checks=[
                never_fired(NOT_HELD, due - intervals.evaluation),
                firing_at(due, _taint_alert(_LINK), _not_held(_LINK)),
            ],
        )
    without_node = {series: values for series, values in broken.items() if not series.startswith(KNOWN_NODE)}
    yield Case(
        name="nothing can hold a fault of a node that is not there",
        series=without_node | {selector(KNOWN_NODE, {**REPLICAS[0], "node": "other"}): run(1, _SAMPLES)},
        checks=[never_fired(NOT_HELD, end)],
    )
    back = _BREAKS + 10
    due = next_evaluation(back * intervals.scrape, intervals) + next_evaluation(intervals.settling, intervals)
    yield Case(
        name="a node that comes back while its fault is read is spoken for anew",
        series=without_node
        | {selector(KNOWN_NODE, {**REPLICAS[0], "node": NODE}): runs((1, 1), (STALE, 1), (MISSING, back - 2), (1, 30))},
        checks=[
            never_fired(NOT_HELD, due - intervals.evaluation),
            firing_at(due, _taint_alert(_LINK), _not_held(_LINK)),
        ],
    )
    without_leader = {series: values for series, values in broken.items() if not series.startswith(LEADER)}
    for name, others in (
        ("no remediator is seen", {}),
        ("no replica leads", {selector(LEADER, replica): run(0, _SAMPLES) for replica in REPLICAS}),
    ):
        yield Case(
            name=f"nobody could hold it, so nobody is told: {name}",
            series=without_leader | others,
            checks=[never_fired(NOT_HELD, end)],
        )


def latched_cases(intervals: Intervals) -> Iterator[Case]:
    """Give the source's word that a fault stays."""
    end = (_SAMPLES - 1) * intervals.scrape
    alert = identity(LATCHED, _LINK, severity="none", remediation=str(Remediation.LATCH))
    yield Case(
        name="the source says latched, whatever the table says",
        series=_node(intervals) | {of_fault(FAULT_LATCHED, _LINK): runs((0, _BREAKS), (1, _SAMPLES))},
        checks=[firing_at(_seen(intervals), alert), fired_alerts(end, LATCHED)],
    )
    yield Case(
        name="the source says that nothing is latched",
        series=_node(intervals) | {of_fault(FAULT_LATCHED, _LINK): run(0, _SAMPLES)},
        checks=[fired_alerts(end)],
    )
