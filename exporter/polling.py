"""Asks every source at the refresh interval and swaps in what came of it as one immutable snapshot.

It must not judge a reading. Whatever a source does, raise or hang, the loop goes on, the failure is counted,
and the source is down: nothing that was read earlier is shown as if it were current.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

from exporter.fusion import Fusion, fuse, nothing_read
from exporter.readings import Device, Problem, Snapshot, SourceDown, SourceReport, SourceUp, Unknown, Unreachable

_LOG: Final = logging.getLogger(__name__)


class Source(Protocol):
    """Something that says how devices are."""

    @property
    def name(self) -> str:
        """Value of the ``source`` label."""

    async def read(self) -> SourceReport:
        """Collect once. May raise or hang; may be cancelled."""


class Poller:
    """Keeps ``snapshot`` current.

    ``interval`` and ``timeout`` (for one source's answer) in seconds; ``monotonic`` measures a refresh.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        expected: Iterable[int],
        interval: float,
        monotonic: Callable[[], float],
        timeout: float = 5.0,
    ) -> None:
        self._sources = tuple(sources)
        self._interval = interval
        self._timeout = timeout
        self._monotonic = monotonic
        self._fusion = nothing_read(expected)
        self._errors: Counter[Problem] = Counter()
        self._down: dict[str, str | None] = {}
        self.snapshot = self._snapshot({}, None)

    def ready(self) -> str | None:
        """Why there is nothing to serve yet; None once a collection has ended."""
        return "no collection has ended yet" if self.snapshot.refresh_seconds is None else None

    async def refresh(self) -> None:
        """Collect from all sources at the same time, fuse, and swap the snapshot in."""
        started = self._monotonic()
        answers = await asyncio.gather(*(self._ask(source) for source in self._sources))
        reports = dict(zip((source.name for source in self._sources), answers, strict=True))
        before = self._fusion
        self._fusion = fuse(before, reports)
        self._errors.update(_problems(reports.values()))
        self.snapshot = self._snapshot(reports, self._monotonic() - started)
        self._log_changes(before, reports)

    async def run(self) -> None:
        """Refresh until cancelled, at a fixed rate."""
        due = self._monotonic()
        while True:
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - a bug must not leave the last good page standing for ever
                self._errors[Problem.REFRESH_FAILED] += 1
                self._fusion = replace(self._fusion, devices=dict.fromkeys(self._fusion.devices, Device()))
                self.snapshot = self._snapshot({}, self.snapshot.refresh_seconds)
                _LOG.exception("refreshing: failed; nothing is reported until a refresh succeeds")
            due = max(due + self._interval, self._monotonic())
            await asyncio.sleep(due - self._monotonic())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run in a task of its own that ends with the block."""
        task = asyncio.create_task(self.run(), name="refresh")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _ask(self, source: Source) -> SourceReport:
        try:
            async with asyncio.timeout(self._timeout):
                return await source.read()
        except TimeoutError:
            return SourceDown(reason=f"no answer within {self._timeout:g} s", problems=(Problem.SOURCE_TIMEOUT,))
        except Exception as error:  # noqa: BLE001 - one source's bug must cost neither the loop nor the others
            return SourceDown(reason=f"{type(error).__name__}: {error}", problems=(Problem.REFRESH_FAILED,))

    def _snapshot(self, reports: Mapping[str, SourceReport], seconds: float | None) -> Snapshot:
        versions = (report.driver_version for report in reports.values() if isinstance(report, SourceUp))
        return Snapshot(
            devices=self._fusion.devices,
            sources=MappingProxyType(
                {source.name: isinstance(reports.get(source.name), SourceUp) for source in self._sources}
            ),
            transitions=self._fusion.transitions,
            errors=MappingProxyType({problem: self._errors[problem] for problem in Problem}),
            driver_version=next(filter(None, versions), None),
            refresh_seconds=seconds,
        )

    def _log_changes(self, before: Fusion, reports: Mapping[str, SourceReport]) -> None:
        for name, report in reports.items():
            reason = report.reason if isinstance(report, SourceDown) else None
            if name in self._down and self._down[name] == reason:
                continue
            self._down[name] = reason
            if reason is None:
                _LOG.info("source delivers", extra={"source": name})
            else:
                _LOG.warning("source delivers nothing", extra={"source": name, "reason": reason})
        for index, device in self._fusion.devices.items():
            if (now := _summary(device)) != _summary(before.devices.get(index, Device())):
                level = logging.INFO if device.state == "healthy" else logging.WARNING
                why = _why_unread(index, reports.values())
                _LOG.log(level, "device changed", extra={"device": index, **now, **why})


def _problems(reports: Iterable[SourceReport]) -> Iterable[Problem]:
    for report in reports:
        if isinstance(report, SourceDown):
            yield from report.problems
        else:
            for reading in report.readings.values():
                yield from reading.problems


def _why_unread(index: int, reports: Iterable[SourceReport]) -> dict[str, str]:
    for report in reports:
        reading = report.readings.get(index) if isinstance(report, SourceUp) else None
        if reading is not None and isinstance(reading.health, Unreachable | Unknown):
            return {"reason": reading.health.reason}
    return {}


def _summary(device: Device) -> dict[str, str]:
    present = sorted(fault for fault, value in device.faults.items() if value)
    return {
        "state": device.state,
        "faults": ",".join(present) or ("none" if device.faults else "unread"),
        "unknown_components": ",".join(device.unknown_components) or "none",
    }
