"""What is running: version, source revision, Python; and the metric registry every service starts from."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DISTRIBUTION: Final = "neuron-device-taints"
REVISION_VARIABLE: Final = "NEURON_DEVICE_TAINTS_REVISION"
"""Set in a container image to the source revision it was built from; a wheel does not know it."""


def version() -> str:
    """Version of the installed distribution; ``unknown`` when run from files that were never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def build_info(metric: str) -> GaugeMetricFamily:
    """Build the family ``<metric>{version,revision,python} 1``."""
    family = GaugeMetricFamily(metric, "What is running.", labels=("version", "revision", "python"))
    revision = os.environ.get(REVISION_VARIABLE) or "unknown"
    family.add_metric((version(), revision, platform.python_version()), 1)
    return family


class _BuildInfo(Collector):
    def __init__(self, metric: str) -> None:
        self._family = build_info(metric)

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def service_registry(build_info_metric: str) -> CollectorRegistry:
    """Make a new registry that already holds the build info and the ``process_*`` metrics."""
    registry = CollectorRegistry()
    registry.register(_BuildInfo(build_info_metric))
    ProcessCollector(registry=registry)
    return registry
