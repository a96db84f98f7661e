"""The driver's files as a source of readings.

Reading, parsing and judging are in the modules beside this one; here they are put together. It must not block
the event loop: files are read in a thread of their own, because a sick device can hold up a read for seconds.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
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
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT, Moment, Trace, after, judge, observe
from exporter.sources.sysfs_tree import Files, Tree, TreeReader

NAME: Final = "sysfs"

# The first of the files that a device has and that holds a number; newer drivers come first.
_ECC_FILES: Final[Mapping[tuple[Memory, Kind], tuple[str, ...]]] = {
    ("hbm", "corrected"): ("mem_ecc_corrected",),
    ("hbm", "repairable"): ("repairable_hbm_ecc_err_count", "mem_ecc_repairable_uncorrected"),
    ("hbm", "uncorrectable"): ("hbm_ecc_err_count", "mem_ecc_uncorrected"),
    ("sram", "corrected"): ("sram_ecc_corrected",),
    ("sram", "uncorrectable"): ("sram_ecc_err_count", "sram_ecc_uncorrected"),
}
_IDENTITY_FILES: Final = ("serial_number", "device_name", "arch_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where time comes from: ``monotonic`` for how long, ``wall`` (seconds since the epoch) for when."""

    monotonic: Callable[[], float] = monotonic
    wall: Callable[[], float] = time


@dataclass(frozen=True, slots=True)
class Past:
    """What one collection leaves for the next: a trace of every device ever seen or expected."""

    traces: Mapping[int, Trace] = field(default_factory=dict)


class SysfsSource:
    """Reads the driver files below ``root``. ``expected``: devices there must be, by index.

    ``heartbeat_timeout``: seconds a heartbeat may stand still.
    """

    name = NAME

    def __init__(self, root: Path, *, expected: frozenset[int], heartbeat_timeout: float, clock: Clock) -> None:
        names = {HEARTBEAT, COMPONENTS, *_IDENTITY_FILES, *(n for files in _ECC_FILES.values() for n in files)}
        self._tree = TreeReader(root, names=names, needed=(HEARTBEAT, COMPONENTS))
        self._timeout = heartbeat_timeout
        self._clock = clock
        self._past = Past(traces={index: Trace() for index in expected})
        self._under_way: tuple[Moment, asyncio.Future[Tree]] | None = None

    async def read(self) -> SourceReport:
        """Read every device once. Cancelling it leaves the thread; the next call waits for that same thread."""
        if self._under_way is None:
            # A reading is as old as its beginning.
            moment = Moment(now=self._clock.monotonic(), wall=self._clock.wall(), timeout=self._timeout)
            self._under_way = moment, _in_thread(self._tree.read)
        moment, reading = self._under_way
        try:
            tree = await asyncio.shield(reading)
        finally:
            if reading.done():
                self._under_way = None
        self._past, report = collect(self._past, tree, moment)
        return report


def collect(past: Past, tree: Tree, moment: Moment) -> tuple[Past, SourceReport]:
    """One collection, without the reading: what to remember and what to report (pure)."""
    known = frozenset(past.traces.keys() | (tree.devices or {}).keys())
    if tree.devices is None:
        # Whatever comes back has to prove itself anew.
        gone = SourceDown(reason="no Neuron driver, or no device of it", known=known)
        return Past(traces={index: Trace() for index in known}), gone
    devices = tree.devices
    observed = {index: observe(past.traces.get(index, Trace()), devices.get(index), moment) for index in sorted(known)}
    healths = {index: judge(index, observed, moment) for index in observed}
    remembered = Past(traces={index: after(observed[index], healths[index]) for index in observed})
    if not _delivers(healths, devices):
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


def _delivers(healths: Mapping[int, Health], devices: Mapping[int, Files]) -> bool:
    """Whether this is a source at work: any live reading, a node with one device, or a driver without health.

    A driver that is too old for health files, or whose devices have none (Trainium 1), still tells who
    the devices are; every one of them is unknown then. All devices silent together is the source's silence.
    """
    if any(isinstance(health, Live) for health in healths.values()):
        return True
    if len(healths) == 1 and any(isinstance(health, Unreachable) for health in healths.values()):
        return True
    return _no_health(devices)


def _no_health(devices: Mapping[int, Files]) -> bool:
    return not any(name in files for files in devices.values() for name in (HEARTBEAT, COMPONENTS))


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
    return [trace.trouble for trace in traces if isinstance(trace.trouble, Problem)]


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


def _in_thread(work: Callable[[], Tree]) -> asyncio.Future[Tree]:
    """Run ``work`` in a daemon thread: unlike the loop's own pool, one that hangs cannot hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Tree] = loop.create_future()

    def finish(tree: Tree | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if tree is not None:
            future.set_result(tree)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        tree, error = None, None
        try:
            tree = work()
        except Exception as raised:  # noqa: BLE001 - handed to whoever awaits the future
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, tree, error)

    threading.Thread(target=run, name="sysfs", daemon=True).start()
    return future
