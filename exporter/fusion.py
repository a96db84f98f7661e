"""Several sources → one reading of each device (pure).

Present if any source says present. A fault that a source reported stands until that same source says absent:
while it is silent, another source's "absent" makes the value disappear, never 0. It must not know any source.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from alerts.faults import FAULTS, UNREACHABLE
from exporter.readings import Device, Live, Reading, SourceDown, SourceReport, SourceUp, Unknown, Unreachable

_Key = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Result of one refresh, and what the next one must remember of it.

    ``accused``: sources that said present and have not said absent since. ``last_read``: newest value that was
    read, kept through silence, so that a source that comes and goes neither makes nor hides a transition.
    ``devices`` only ever gains keys: a device once seen is expected for as long as the process runs.
    """

    devices: Mapping[int, Device]
    accused: Mapping[_Key, frozenset[str]]
    last_read: Mapping[_Key, bool]
    transitions: Mapping[_Key, int]


def nothing_read(expected: Iterable[int]) -> Fusion:
    """Where every process starts: the devices it was told to expect, none of them read."""
    devices = {device: Device() for device in sorted(expected)}
    return Fusion(devices=devices, accused={}, last_read={}, transitions=_counts(devices, {}))


def fuse(before: Fusion, reports: Mapping[str, SourceReport]) -> Fusion:
    """Take in one report of every source."""
    indices = sorted(before.devices.keys() | {index for report in reports.values() for index in _known(report)})
    accused = dict(before.accused)
    last_read = dict(before.last_read)
    transitions = _counts(indices, before.transitions)
    devices: dict[int, Device] = {}
    for index in indices:
        readings = {
            source: report.readings[index]
            for source, report in reports.items()
            if isinstance(report, SourceUp) and index in report.readings
        }
        faults = _faults(index, readings, accused)
        for fault, present in faults.items():
            transitions[index, fault] += present and last_read.get((index, fault)) is False
            last_read[index, fault] = present
        devices[index] = _device(faults, readings.values())
    return Fusion(
        devices=MappingProxyType(devices),
        accused=MappingProxyType(accused),
        last_read=MappingProxyType(last_read),
        transitions=MappingProxyType(transitions),
    )


def _known(report: SourceReport) -> Iterable[int]:
    return report.known if isinstance(report, SourceDown) else report.readings


def _counts(indices: Iterable[int], before: Mapping[_Key, int]) -> dict[_Key, int]:
    return {(index, fault): before.get((index, fault), 0) for index in indices for fault in FAULTS}


def _faults(index: int, readings: Mapping[str, Reading], accused: dict[_Key, frozenset[str]]) -> Mapping[str, bool]:
    """Values of one device's faults; ``accused`` is brought up to date on the way."""
    said = {source: _said(reading) for source, reading in readings.items()}
    faults: dict[str, bool] = {}
    for fault in FAULTS:
        values = {source: words[fault] for source, words in said.items() if fault in words}
        standing = accused.get((index, fault), frozenset()) - values.keys()
        now = frozenset(source for source, present in values.items() if present)
        accused[index, fault] = standing | now
        if now:
            faults[fault] = True
        elif values and not standing:
            faults[fault] = False
    if faults.get(UNREACHABLE.name):
        # What cannot be reached was not read, whatever another source believes to have read.
        return MappingProxyType({fault: True for fault, present in faults.items() if present})
    return MappingProxyType(faults)


def _said(reading: Reading) -> Mapping[str, bool]:
    match reading.health:
        case Live(present=present):
            return {fault: fault in present for fault in FAULTS}
        case Unreachable():
            return {UNREACHABLE.name: True}
        case Unknown():
            return {}


def _device(faults: Mapping[str, bool], readings: Iterable[Reading]) -> Device:
    readings = list(readings)
    live = [reading.health for reading in readings if isinstance(reading.health, Live)]
    return Device(
        faults=faults,
        latched=frozenset(fault for health in live for fault in health.latched if faults.get(fault)),
        taken=max((health.taken for health in live), default=None),
        identity=next((reading.identity for reading in readings if reading.identity), None),
        ecc=next((reading.ecc for reading in readings if reading.ecc), MappingProxyType({})),
        unknown_components=tuple(sorted({name for reading in readings for name in reading.unknown_components})),
    )
