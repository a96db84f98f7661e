"""The metric table: one row a metric, each a function from a snapshot to samples (pure).

It must not know the exposition formats or who scrapes. No row may produce the same labels twice: of two
samples with equal labels Prometheus silently keeps the first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from exporter.readings import STATES, Device, Identity, Snapshot

Sample = tuple[tuple[str, ...], float]
"""Label values in the order of the family's labels, and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. ``name`` is the full name of the series, counters with ``_total``."""

    name: str
    type: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[Snapshot], Iterable[Sample]]


def _devices(snapshot: Snapshot) -> Iterable[tuple[str, Device]]:
    return ((str(index), device) for index, device in snapshot.devices.items())


def _identities(snapshot: Snapshot) -> Iterable[tuple[str, Identity]]:
    return ((index, device.identity) for index, device in _devices(snapshot) if device.identity)


def _optional(value: float | None) -> Iterable[Sample]:
    return () if value is None else (((), value),)


FAMILIES: Final = (
    Family(
        name="neuron_device_fault",
        type="gauge",
        help="1 if the fault is present, 0 if it was read and is absent; no line if it was not read.",
        labels=("device", "fault"),
        samples=lambda s: (
            ((index, fault), present) for index, device in _devices(s) for fault, present in device.faults.items()
        ),
    ),
    Family(
        name="neuron_device_fault_latched",
        type="gauge",
        help="1 if the source itself says that the fault will not clear.",
        labels=("device", "fault"),
        samples=lambda s: (((index, fault), 1) for index, device in _devices(s) for fault in sorted(device.latched)),
    ),
    Family(
        name="neuron_device_faults_total",
        type="counter",
        help="Changes of the fault from absent to present, seen at the refresh interval.",
        labels=("device", "fault"),
        samples=lambda s: (((str(index), fault), count) for (index, fault), count in s.transitions.items()),
    ),
    Family(
        name="neuron_device_health",
        type="gauge",
        help="1 for the state the device is in: healthy, unhealthy or unknown.",
        labels=("device", "state"),
        samples=lambda s: (
            ((index, state), state == device.state) for index, device in _devices(s) for state in STATES
        ),
    ),
    Family(
        name="neuron_device_reading_timestamp_seconds",
        type="gauge",
        help="When the heartbeat of the device was last seen to move, in seconds since the epoch. Not when its files"
        " were last read: the driver goes on printing old values for a device that it cannot read any more, so a"
        " device that has fallen silent ages here, although its files read well.",
        labels=("device",),
        samples=lambda s: (((index,), device.taken) for index, device in _devices(s) if device.taken is not None),
    ),
    Family(
        name="neuron_device_ecc_errors",
        type="gauge",
        help="ECC error register of the device; it starts anew when the device is reset.",
        labels=("device", "memory", "kind"),
        samples=lambda s: (
            ((index, memory, kind), count)
            for index, device in _devices(s)
            for (memory, kind), count in device.ecc.items()
        ),
    ),
    Family(
        name="neuron_device_unknown_component",
        type="gauge",
        help="1 for a component the device calls unhealthy under a name that is no known fault.",
        labels=("device", "component"),
        samples=lambda s: (((index, name), 1) for index, device in _devices(s) for name in device.unknown_components),
    ),
    Family(
        name="neuron_device_info",
        type="gauge",
        help="Who the device is.",
        labels=("device", "serial_number", "device_type", "architecture"),
        samples=lambda s: (
            ((index, identity.serial_number, identity.device_type, identity.architecture), 1)
            for index, identity in _identities(s)
        ),
    ),
    Family(
        name="neuron_driver_info",
        type="gauge",
        help="Version of the Neuron driver.",
        labels=("version",),
        samples=lambda s: () if s.driver_version is None else (((s.driver_version,), 1),),
    ),
    Family(
        name="neuron_source_up",
        type="gauge",
        help="1 while the source delivers readings; one line for every enabled source.",
        labels=("source",),
        samples=lambda s: (((source,), up) for source, up in s.sources.items()),
    ),
    Family(
        name="neuron_devices_expected",
        type="gauge",
        help="Devices seen since the exporter started, or told to it.",
        samples=lambda s: (((), len(s.devices)),),
    ),
    Family(
        name="neuron_devices_reporting",
        type="gauge",
        help="Devices with a live reading.",
        samples=lambda s: (((), sum(device.taken is not None for device in s.devices.values())),),
    ),
    Family(
        name="neuron_exporter_errors_total",
        type="counter",
        help="What went wrong while reading, by reason; a condition that lasts counts once a refresh.",
        labels=("reason",),
        samples=lambda s: (((reason,), count) for reason, count in s.errors.items()),
    ),
    Family(
        name="neuron_exporter_refresh_duration_seconds",
        type="gauge",
        help="Time the newest refresh of all sources took.",
        samples=lambda s: _optional(s.refresh_seconds),
    ),
)
