"""Series of the fleet: how many devices of what kind there are, which of them are tainted, and who uses those.

They are made anew each scrape from what memory holds of the cluster, so that they always say what is in it; while that
is not known, there are none. Names and labels are public: see CHANGELOG before touching one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from remediator.tainted import tainted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from remediator.claims import Claims
    from remediator.foreign_rules import ForeignRules
    from remediator.inventory import Inventory
    from remediator.peer_rules import PeerRules
    from remediator.records import Record

_BUILD = ("instance_type", "neuron_driver_version", "dra_driver_version")


class Fleet(Protocol):
    """What the cluster shows of devices; `remediator.caches.Caches` is one."""

    claims: Claims
    foreign_rules: ForeignRules
    peer_rules: PeerRules

    @property
    def inventory(self) -> Inventory:
        """The devices in slices."""

    def not_ready(self) -> str | None:
        """Why too little is known, or None."""


class InventoryCollector(Collector):
    """What memory holds → series, one line each.

    `per_device` adds a line for each device there is: a scrape then takes some 14 ms for each thousand of them, during
    which nothing else is done. `records` are those that are really in the cluster.
    """

    def __init__(self, fleet: Fleet, records: Callable[[], Iterable[Record]], *, per_device: bool = False) -> None:
        self._fleet = fleet
        self._records = records
        self._per_device = per_device

    def collect(self) -> Iterable[Metric]:
        """Every family; without lines while the cluster is not known."""
        devices = GaugeMetricFamily(
            "neuron_devices",
            "Devices that ResourceSlices list, by what they are and what drives them.",
            labels=("kind", *_BUILD),
        )
        taints = GaugeMetricFamily(
            "neuron_device_taint",
            "1 for each taint on a device: of the driver (slices), of a record, or of somebody else's rule.",
            labels=("node", "device", "key", "value", "effect", "source"),
        )
        consumers = GaugeMetricFamily(
            "neuron_device_consumer",
            "1 for each pod that uses a tainted device; without a pod, for each claim that only holds it.",
            labels=("node", "device", "claim_namespace", "claim", "consumer_pod"),
        )
        families = [devices, taints, consumers]
        if self._per_device:
            families.append(_per_device())
        if self._fleet.not_ready() is None:
            self._fill(*families)
        return families

    def _fill(
        self,
        devices: GaugeMetricFamily,
        taints: GaugeMetricFamily,
        consumers: GaugeMetricFamily,
        per_device: GaugeMetricFamily | None = None,
    ) -> None:
        fleet, inventory = self._fleet, self._fleet.inventory
        for build, count in inventory.builds().items():
            devices.add_metric(build, count)
        found = tainted(
            inventory=inventory,
            records=self._records(),
            peers=fleet.peer_rules.all(),
            foreign=fleet.foreign_rules.all(),
            claims=fleet.claims,
        )
        for taint in found.taints:
            taints.add_metric((*taint.label, taint.key, taint.value, taint.effect, taint.source), 1)
        for user in found.consumers:
            consumers.add_metric((*user.label, user.namespace, user.claim, user.pod), 1)
        if per_device is not None:
            # A driver that lists a name twice must not make two equal lines.
            for labels in dict.fromkeys(_each_device(inventory)):
                per_device.add_metric(labels, 1)


def _each_device(inventory: Inventory) -> Iterator[tuple[str, ...]]:
    for pool in inventory.pools():
        for node, device in inventory.devices_of(pool):
            _, *build = device.build
            yield (node, device.label, pool, device.name, *build, device.capacity_block)


def _per_device() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "neuron_device_inventory",
        "1 for each device that ResourceSlices list.",
        labels=("node", "device", "pool", "device_name", *_BUILD, "capacity_block"),
    )
