"""Snapshot × metric table → Prometheus families, built anew at every scrape.

It must not read anything itself: a scrape is answered from the newest snapshot, however old that is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.families import FAMILIES, Family
from exporter.readings import Snapshot

_TYPES: Final[dict[str, Callable[[str, str, Sequence[str]], CounterMetricFamily | GaugeMetricFamily]]] = {
    "counter": lambda name, text, labels: CounterMetricFamily(name, text, labels=labels),
    "gauge": lambda name, text, labels: GaugeMetricFamily(name, text, labels=labels),
}


class SnapshotCollector(Collector):
    """Exports what ``current`` returns; ``monotonic`` (seconds) measures how long that took."""

    def __init__(self, current: Callable[[], Snapshot], *, monotonic: Callable[[], float]) -> None:
        self._current = current
        self._monotonic = monotonic

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the table, then the time it took to build them."""
        started = self._monotonic()
        snapshot = self._current()  # once: a page is of one moment
        for family in FAMILIES:
            yield _family(family, snapshot)
        yield GaugeMetricFamily(
            "neuron_exporter_scrape_duration_seconds",
            "Time it took to build this page from the newest snapshot.",
            value=self._monotonic() - started,
        )


def _family(family: Family, snapshot: Snapshot) -> Metric:
    metric = _TYPES[family.type](family.name, family.help, family.labels)
    for labels, value in family.samples(snapshot):
        metric.add_metric(labels, value)
    return metric
