"""What Prometheus has scraped of one node, its exporter and two remediator replicas: the series cases start from.

The label sets follow the metrics contract: the exporter exports no `node`, its targets carry it; the remediator
exports `node` itself and its targets carry none.
"""

from collections.abc import Mapping
from typing import Final

from alerts.faults import FAULTS, UNREACHABLE, Example, Fault
from alerts.intervals import Intervals
from tests.alerts.promtool import MISSING, STALE, run, runs, selector

NODE: Final = "ip-10-1-1-200.ec2.internal"
TARGET: Final = {"node": NODE, "job": "neuron-exporter", "instance": "10.1.1.200:9779", "pod": "exporter-a"}
NEW_TARGET: Final = {**TARGET, "instance": "10.1.1.201:9779", "pod": "exporter-b"}
REPLICAS: Final = (
    {"job": "neuron-remediator", "instance": "10.1.2.1:9780"},
    {"job": "neuron-remediator", "instance": "10.1.2.2:9780"},
)

FAULT: Final = "neuron_device_fault"
FAULT_LATCHED: Final = "neuron_device_fault_latched"
TRANSITIONS: Final = "neuron_device_faults_total"
UNKNOWN_COMPONENT: Final = "neuron_device_unknown_component"
READING: Final = "neuron_device_reading_timestamp_seconds"
SOURCE: Final = "neuron_source_up"
BUILD: Final = "neuron_exporter_build_info"
RECORD: Final = "neuron_remediator_record"
KNOWN_NODE: Final = "neuron_remediator_node"
LEADER: Final = "neuron_remediator_leader"

Series = Mapping[str, str]


def of_fault(name: str, fault: Fault, device: str = "3", target: Mapping[str, str] = TARGET) -> str:
    """Return the series of an exporter's metric about one fault of one device."""
    return selector(name, {**target, "device": device, "fault": fault.name})


def of_device(name: str, device: str = "3", target: Mapping[str, str] = TARGET) -> str:
    """Return the series of an exporter's metric about one device."""
    return selector(name, {**target, "device": device})


def source(name: str, target: Mapping[str, str] = TARGET) -> str:
    """Return the series that says whether a source delivers."""
    return selector(SOURCE, {**target, "source": name})


def record(fault: Fault, /, replica: int = 0, **labels: str) -> str:
    """Return the series of the record of this fault, as one remediator replica shows it."""
    own = {
        "node": NODE,
        "device": "3",
        "fault": fault.name,
        "effect": fault.effect,
        "state": "active",
        "latched": "true" if fault.latched else "false",
        "episode": "7f3a",
    }
    return selector(RECORD, {**REPLICAS[replica], **own, **labels})


def identity(alert: str, fault: Fault, /, **labels: str) -> dict[str, str]:
    """Return the labels an alert about this fault of device 3 has, besides those given."""
    return {"alertname": alert, "node": NODE, "device": "3", "fault": fault.name, **labels}


def shown(example: Example) -> set[str]:
    """Return the names of the faults that a device showing this example has, by the metrics contract."""
    if example.heartbeat == "frozen":
        return {UNREACHABLE.name}
    tokens = {token.strip() for token in example.components.split(",")}
    return {fault.name for fault in FAULTS.values() if fault.token in tokens}


def exporter(intervals: Intervals, samples: int, target: Mapping[str, str] = TARGET) -> dict[str, str]:
    """Return what an exporter with two sources shows of itself, all well."""
    return {
        selector("up", {key: value for key, value in target.items() if key != "pod"}): run(1, samples),
        selector(BUILD, {**target, "version": "0.1.0"}): run(1, samples),
        source("sysfs", target): run(1, samples),
        source("observer", target): run(1, samples),
        of_device(READING, target=target): timestamps(intervals, samples),
    }


def timestamps(intervals: Intervals, samples: int, *, behind: int = 0) -> str:
    """Return reading times that follow the clock, this many seconds behind it (negative: ahead)."""
    return f"{-behind}+{intervals.scrape}x{samples - 1}"


def remediator(samples: int) -> dict[str, str]:
    """Return what two replicas show of themselves: the first leads, and both know the node."""
    return {
        selector(LEADER, REPLICAS[0]): run(1, samples),
        selector(LEADER, REPLICAS[1]): run(0, samples),
        **{selector(KNOWN_NODE, {**replica, "node": NODE}): run(1, samples) for replica in REPLICAS},
    }


def device_faults(example: Example, *, before: int, samples: int) -> dict[str, str]:
    """Return all fault lines of device 3, healthy for `before` samples and then showing the example."""
    present = shown(example)
    after = samples - before
    lines = {}
    for fault in FAULTS.values():
        if fault.name in present:
            values = runs((0, before), (1, after))
        elif UNREACHABLE.name in present:
            values = runs((0, before), (STALE, 1), (MISSING, after - 1))
        else:
            values = run(0, samples)
        lines[of_fault(FAULT, fault)] = values
        lines[of_fault(TRANSITIONS, fault)] = runs((0, before), (int(fault.name in present), after))
    return lines
