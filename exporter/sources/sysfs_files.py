"""What was read of the driver's files, as values: the language between who reads them and who judges them (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that is there and has no content to go by.

    ``errno`` as the kernel said, or as the reader found: EFBIG for one that is too long, ENOTUNIQ where several
    files may be meant.
    """

    errno: int


Files = Mapping[str, bytes | Failed]
"""Content of the files of one device, by name; a name that the device does not have is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Everything read at one moment. ``devices`` is None when the driver is not loaded."""

    devices: Mapping[int, Files] | None
    driver_version: bytes = b""
