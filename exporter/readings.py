"""What was read: of one device by one source, of one source, and the whole page's content.

Pure types. Absent, unknown and value are three outcomes that cannot be mistaken for one another: only `Live`
carries fault values, so nothing that was not read can become a 0. They must not know where a reading came from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from alerts.faults import FAULTS, UNREACHABLE

Memory = Literal["hbm", "sram"]
Kind = Literal["corrected", "repairable", "uncorrectable"]
State = Literal["healthy", "unhealthy", "unknown"]
STATES: Final[tuple[State, ...]] = ("healthy", "unhealthy", "unknown")


class Problem(StrEnum):
    """Reasons under which errors are counted: a closed set, so that each counter exists before its first error."""

    DEVICE_ERROR = "device_error"
    DEVICE_GONE = "device_gone"
    FROZEN = "frozen_heartbeat"
    NOT_PERMITTED = "not_permitted"
    READ_FAILED = "read_failed"
    UNPARSABLE = "unparsable"
    NO_HEALTH_FILE = "no_health_file"
    AMBIGUOUS_FILE = "ambiguous_file"
    DUPLICATE_SERIAL = "duplicate_serial_number"
    SOURCE_DOWN = "source_down"
    SOURCE_TIMEOUT = "source_timeout"
    REFRESH_FAILED = "refresh_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The device answered: faults in ``present`` are there, every other kind is read as absent.

    ``taken`` is when the device was last seen to be alive, in seconds since the epoch. ``latched`` are present
    faults of which the source says that they will not clear. Raises ValueError for a fault that no reading
    can hold: an unknown one, or `device_unreachable`, which contradicts having an answer.
    """

    present: frozenset[str]
    taken: float
    latched: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        impossible = self.present - (FAULTS.keys() - {UNREACHABLE.name})
        if impossible or not self.latched <= self.present:
            raise ValueError(
                f"taking in a live reading: present {sorted(self.present)}, latched {sorted(self.latched)};"
                f" expected faults of the table other than {UNREACHABLE.name!r}, latched among the present"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """The device cannot be read, and the source vouches that this is the device's doing."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing can be said of the device, neither healthy nor faulty."""

    reason: str


Health = Live | Unreachable | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the device is; empty text for what the source does not tell."""

    serial_number: str = ""
    device_type: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one source said of one device at one time."""

    health: Health
    identity: Identity | None = None
    ecc: Mapping[tuple[Memory, Kind], int] = field(default_factory=dict)
    unknown_components: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUp:
    """One collection of a source that delivers: a reading for each device it knows of."""

    readings: Mapping[int, Reading]
    driver_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDown:
    """A source that says nothing of any device; ``known`` are those it is known to be silent about."""

    reason: str
    problems: tuple[Problem, ...] = (Problem.SOURCE_DOWN,)
    known: frozenset[int] = frozenset()


SourceReport = SourceUp | SourceDown


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device after fusion. A fault that is no key of ``faults`` was not read: it has no value at all."""

    faults: Mapping[str, bool] = field(default_factory=dict)
    latched: frozenset[str] = frozenset()
    taken: float | None = None
    identity: Identity | None = None
    ecc: Mapping[tuple[Memory, Kind], int] = field(default_factory=dict)
    unknown_components: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """Healthy needs every fault read as absent; a component with an unknown name is a complaint too."""
        if any(self.faults.values()):
            return "unhealthy"
        if self.faults.keys() != FAULTS.keys():
            return "unknown"
        return "unhealthy" if self.unknown_components else "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a page says, as of one refresh. ``devices`` holds every expected device.

    ``transitions`` counts changes from read-and-absent to present for every fault of every expected device.
    ``refresh_seconds`` is None until the first collection has ended.
    """

    devices: Mapping[int, Device] = field(default_factory=dict)
    sources: Mapping[str, bool]
    transitions: Mapping[tuple[int, str], int] = field(default_factory=dict)
    errors: Mapping[Problem, int] = field(default_factory=lambda: dict.fromkeys(Problem, 0))
    driver_version: str | None = None
    refresh_seconds: float | None = None
