"""One collection of the driver's files → what the source reports, and what it remembers until the next (pure).

Whether one device is alive is decided in `sysfs_health`; here, whether the source as a whole delivers. It must
not read files or clocks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from exporter.readings import (
    Health,
    Identity,
    Kind,
    Live,
    Memory,
    Problem,
    Reading,
    SourceDown,
    SourceReport,
    SourceUp,
    Unknown,
    Unreachable,
)
from exporter.sources import sysfs_text
from exporter.sources.sysfs_files import Files, Tree
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT, Moment, Trace, after, has_witness, judge, observe

# The first of the files that a device has and that holds a number; newer drivers come first.
_ECC_FILES: Final[Mapping[tuple[Memory, Kind], tuple[str, ...]]] = {
    ("hbm", "corrected"): ("mem_ecc_corrected",),
    ("hbm", "repairable"): ("repairable_hbm_ecc_err_count", "mem_ecc_repairable_uncorrected"),
    ("hbm", "uncorrectable"): ("hbm_ecc_err_count", "mem_ecc_uncorrected"),
    ("sram", "corrected"): ("sram_ecc_corrected",),
    ("sram", "uncorrectable"): ("sram_ecc_err_count", "sram_ecc_uncorrected"),
}
_IDENTITY_FILES: Final = ("serial_number", "device_name", "arch_type")

HEALTH_FILES: Final = frozenset({HEARTBEAT, COMPONENTS})
FILES: Final = HEALTH_FILES.union(_IDENTITY_FILES, *_ECC_FILES.values())
"""Names of all files of a device that a collection makes use of; without `HEALTH_FILES` there is no health."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What one collection leaves for the next: a trace of every device ever seen or expected.

    ``health_seen``: any device has shown a health file since the start.
    """

    traces: Mapping[int, Trace] = field(default_factory=dict)
    health_seen: bool = False


def collect(past: Past, tree: Tree, moment: Moment) -> tuple[Past, SourceReport]:
    """One collection, without the reading: what to remember and what to report."""
    known = frozenset(past.traces.keys() | (tree.devices or {}).keys())
    if tree.devices is None:
        # Whatever comes back has to prove itself anew.
        gone = SourceDown(reason="no Neuron driver, or no device of it", known=known)
        return replace(past, traces={index: Trace() for index in known}), gone
    devices = tree.devices
    observed = {index: observe(past.traces.get(index, Trace()), devices.get(index), moment) for index in sorted(known)}
    witnessed = has_witness(observed, moment)
    healths = {index: judge(trace, moment, witnessed=witnessed) for index, trace in observed.items()}
    shows_health = any(not HEALTH_FILES.isdisjoint(files) for files in devices.values())
    remembered = Past(
        traces={index: after(observed[index], healths[index]) for index in observed},
        health_seen=past.health_seen or shows_health,
    )
    if not (_delivers(healths) if shows_health else not past.health_seen):
        reasons = Counter(_reason(health) for health in healths.values())
        return remembered, SourceDown(
            reason=f"no live reading of any of {len(known)} devices; mostly: {reasons.most_common(1)[0][0]}",
            problems=(Problem.SOURCE_DOWN, *_troubles(observed.values())),
            known=known,
        )
    serials = Counter(
        sysfs_text.serial_number(sysfs_text.content_of(files, "serial_number")) for files in devices.values()
    )
    readings = {
        index: _reading(health, observed[index], devices.get(index, {}), serials) for index, health in healths.items()
    }
    version = sysfs_text.word(tree.driver_version) or None
    return remembered, SourceUp(readings=MappingProxyType(readings), driver_version=version)


def _delivers(healths: Mapping[int, Health]) -> bool:
    """Whether this is a source at work: any live reading, or a node with one device, which has no witness.

    All devices silent together is the source's silence. Only of devices with health files is that asked: a driver
    that is too old for them, or whose devices have none (Trainium 1), still tells who the devices are, and every
    one of them is unknown then. One that has shown them before and shows them no more is blind.
    """
    if any(isinstance(health, Live) for health in healths.values()):
        return True
    return len(healths) == 1 and any(isinstance(health, Unreachable) for health in healths.values())


def _reading(health: Health, trace: Trace, files: Files, serials: Mapping[str, int]) -> Reading:
    identity = Identity(
        serial_number=sysfs_text.serial_number(sysfs_text.content_of(files, "serial_number")),
        device_type=sysfs_text.word(sysfs_text.content_of(files, "device_name")),
        architecture=sysfs_text.word(sysfs_text.content_of(files, "arch_type")),
    )
    problems = _troubles((trace,))
    if isinstance(health, Unreachable) and not problems:
        problems.append(Problem.FROZEN)
    if identity.serial_number and serials[identity.serial_number] > 1:
        problems.append(Problem.DUPLICATE_SERIAL)
    # The registers of a device that is not known to be alive are as stale as its health. Without a heartbeat
    # file there is no telling, and the registers are all there is.
    readable = isinstance(health, Live) or HEARTBEAT not in files
    return Reading(
        health=health,
        identity=identity if any((identity.serial_number, identity.device_type, identity.architecture)) else None,
        ecc=_ecc(files) if readable else {},
        unknown_components=sysfs_text.components(sysfs_text.content_of(files, COMPONENTS)).unknown,
        problems=tuple(problems),
    )


def _troubles(traces: Iterable[Trace]) -> list[Problem]:
    return [trace.trouble for trace in traces if trace.trouble is not None]


def _ecc(files: Files) -> Mapping[tuple[Memory, Kind], int]:
    found: dict[tuple[Memory, Kind], int] = {}
    for key, names in _ECC_FILES.items():
        values = (sysfs_text.counter(sysfs_text.content_of(files, name)) for name in names)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[key] = value
    return MappingProxyType(found)


def _reason(health: Health) -> str:
    return health.reason if isinstance(health, Unreachable | Unknown) else ""
