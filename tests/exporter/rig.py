"""The exporter's real parts on simulated driver files, with a clock that only the test moves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from alerts.faults import FAULTS, UNREACHABLE
from exporter.collector import SnapshotCollector
from exporter.polling import Poller
from exporter.readings import Problem
from exporter.sources.sysfs import Clock, SysfsSource
from tests.simulation.driver import Layout, SimulatedDriver

ALL_ABSENT = dict.fromkeys(FAULTS, 0.0)
ONLY_UNREACHABLE = {UNREACHABLE.name: 1.0}
TIMEOUT = 30.0
WALL_OFFSET = 1_800_000_000.0


class Page:
    """A scraped page, parsed back with the library; two samples with the same labels are an error."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"twice on the page: {sample}"
                assert sample.timestamp is None
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float | None:
        """Value of one series; None when it is not on the page."""
        return self.samples.get((name, frozenset(labels.items())))

    def faults(self, device: int) -> dict[str, float]:
        """Fault lines of one device, those that are there."""
        values = {fault: self.value("neuron_device_fault", device=str(device), fault=fault) for fault in FAULTS}
        return {fault: value for fault, value in values.items() if value is not None}

    def state(self, device: int) -> str:
        """State of one device; exactly one must be 1."""
        states = [
            dict(labels)["state"]
            for (name, labels), value in self.samples.items()
            if name == "neuron_device_health" and value == 1 and ("device", str(device)) in labels
        ]
        assert len(states) == 1
        return states[0]

    def errors(self, reason: Problem) -> float | None:
        """How often something went wrong for that reason."""
        return self.value("neuron_exporter_errors_total", reason=reason)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Label sets of all series of that name."""
        return [dict(labels) for found, labels in self.samples if found == name]


class Rig:
    """SimulatedDriver, SysfsSource, Poller and SnapshotCollector. ``await step()`` is one refresh."""

    def __init__(self, root: Path, *, devices: int = 4, layout: Layout = "2.30", expected: int = 0) -> None:
        self.now = 1000.0
        self.driver = SimulatedDriver(root, devices=devices, layout=layout)
        indices = frozenset(range(expected))
        clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now + WALL_OFFSET)
        self.source = SysfsSource(root, expected=indices, heartbeat_timeout=TIMEOUT, clock=clock)
        self.poller = Poller((self.source,), expected=indices, interval=0.5, monotonic=clock.monotonic)
        self.registry = CollectorRegistry()
        self.registry.register(SnapshotCollector(lambda: self.poller.snapshot, monotonic=clock.monotonic))

    async def started(self) -> Self:
        """Run until every device's heartbeat has been seen to move."""
        await self.step()
        await self.step()
        return self

    async def step(self, seconds: float = 0.5, *, beat: bool = True) -> Page:
        """Let time pass, the hearts beat once, and the exporter refresh once."""
        await self.refresh(seconds, beat=beat)
        return self.page()

    async def run(self, seconds: float, *, beat: bool = True) -> Page:
        """Refresh at the usual rate for so long."""
        for _ in range(round(seconds / 0.5)):
            await self.refresh(0.5, beat=beat)
        return self.page()

    async def refresh(self, seconds: float = 0.5, *, beat: bool = True) -> None:
        """Do the same as ``step``, without a scrape."""
        self.now += seconds
        if beat:
            self.driver.beat()
        await self.poller.refresh()

    @property
    def unreachable(self) -> list[int]:
        """Devices that the newest refresh found unreachable."""
        devices = self.poller.snapshot.devices
        return [index for index, device in devices.items() if device.faults.get(UNREACHABLE.name)]

    def page(self) -> Page:
        """Scrape, in both formats, which must say the same."""
        page = Page(parse_text(generate_latest(self.registry).decode()))
        openmetrics = generate_openmetrics(self.registry).decode()  # type: ignore[no-untyped-call]
        assert Page(parse_openmetrics(openmetrics)).samples == page.samples  # type: ignore[no-untyped-call]
        return page
