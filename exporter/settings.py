"""Flags and environment of the exporter → settings, all problems reported at once. It must not act on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.service.flags import LOG_FORMAT, LOG_LEVEL, Flag, UsageError, listen_address, read_flags
from exporter.service.parsers import Address, optional, path, positive_duration, positive_int

MAX_DEVICES: Final = 1024
# Fewer refreshes than this within the timeout could call a heartbeat frozen that was merely looked at too seldom.
_REFRESHES_IN_TIMEOUT: Final = 4

_LISTEN_ADDRESS: Final = listen_address(":9779")
_SYSFS_ROOT: Final = Flag(
    name="sysfs.root",
    default="/sys",
    parse=path,
    metavar="DIR",
    help="folder where the node's /sys is found",
)
_REFRESH_INTERVAL: Final = Flag(
    name="refresh-interval",
    default="500ms",
    parse=positive_duration,
    metavar="DURATION",
    help="time between two readings of the devices",
)
_HEARTBEAT_TIMEOUT: Final = Flag(
    name="sysfs.heartbeat-timeout",
    default="30s",
    parse=positive_duration,
    metavar="DURATION",
    help="how long a device's heartbeat may stand still before the device counts as unreachable, well above four"
    " times the heartbeat's period; a device that vanishes does after half of it",
)


def _device_count(value: str) -> int:
    count = positive_int(value)
    if count > MAX_DEVICES:
        raise ValueError(f"expected at most {MAX_DEVICES} devices, got {value!r}")
    return count


_DEVICES_EXPECTED: Final = Flag(
    name="devices.expected",
    default="",
    parse=optional(_device_count),
    metavar="COUNT",
    help="devices the node must have, numbered from 0; those seen since the start are expected anyway",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the exporter is to run. Times in seconds."""

    listen_address: Address
    log_level: str
    log_format: str
    sysfs_root: Path
    refresh_interval: float
    heartbeat_timeout: float
    devices_expected: int


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings, or raise UsageError with every problem."""
    values = read_flags(
        (
            _LISTEN_ADDRESS,
            _SYSFS_ROOT,
            _REFRESH_INTERVAL,
            _HEARTBEAT_TIMEOUT,
            _DEVICES_EXPECTED,
            LOG_LEVEL,
            LOG_FORMAT,
        ),
        program="neuron-exporter",
        description="Exports the health of this node's Neuron devices as Prometheus metrics.",
        env_prefix="NEURON_EXPORTER_",
        argv=argv,
        environ=environ,
    )
    interval, timeout = values[_REFRESH_INTERVAL], values[_HEARTBEAT_TIMEOUT]
    if timeout < _REFRESHES_IN_TIMEOUT * interval:
        raise UsageError(
            f"reading --{_HEARTBEAT_TIMEOUT.name}: expected at least {_REFRESHES_IN_TIMEOUT} times"
            f" --{_REFRESH_INTERVAL.name} ({interval:g} s), got {timeout:g} s"
        )
    return Settings(
        listen_address=values[_LISTEN_ADDRESS],
        log_level=values[LOG_LEVEL],
        log_format=values[LOG_FORMAT],
        sysfs_root=values[_SYSFS_ROOT],
        refresh_interval=interval,
        heartbeat_timeout=timeout,
        devices_expected=values[_DEVICES_EXPECTED] or 0,
    )
