"""Reads the Neuron driver's files: finds them by name, and says of each what is in it or why it cannot be read.

It must not judge what it finds. It never writes, and opens only the names it was asked for, so never ``reset``.
"""

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_DEPTH: Final = 6
MAX_BYTES: Final = 4096
_MAX_FOLDERS: Final = 1024
_DEVICE: Final = re.compile(r"neuron(0|[1-9][0-9]{0,3})", re.ASCII)
# Cores have files of the same names as their device.
_CORE: Final = re.compile(r"neuron_core\d*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that is there and cannot be read; ``errno`` as the kernel said."""

    errno: int


Files = Mapping[str, bytes | Failed]
"""Content of the files of one device, by name; a name that the device does not have is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Everything read at one moment. ``devices`` is None when the driver is not loaded."""

    devices: Mapping[int, Files] | None
    driver_version: bytes = b""


class TreeReader:
    """Reads ``names`` of every device below ``root``, which stands for ``/sys``. Blocking; one caller at a time.

    The driver has moved files between releases, so each is searched below its device, and the path kept until
    it leads nowhere. ``needed`` are the names whose absence is worth another search at every reading.
    """

    def __init__(self, root: Path, *, names: Iterable[str], needed: Iterable[str]) -> None:
        self._devices = root / "devices/virtual/neuron_device"
        self._module = root / "module/neuron"
        self._names = frozenset(names)
        self._needed = frozenset(needed)
        self._paths: dict[int, dict[str, str]] = {}

    def read(self) -> Tree:
        """Read everything once. Raises nothing: what cannot be read is part of the result."""
        folders = self._folders()
        for index in self._paths.keys() - folders.keys():
            del self._paths[index]
        if not folders or not self._module.is_dir():
            return Tree(devices=None)
        version = _content(str(self._module / "version"))
        return Tree(
            devices={index: self._files(index, folder) for index, folder in sorted(folders.items())},
            driver_version=version if isinstance(version, bytes) else b"",
        )

    def _folders(self) -> dict[int, str]:
        try:
            with os.scandir(self._devices) as entries:
                return {
                    int(match[1]): entry.path
                    for entry in entries
                    if (match := _DEVICE.fullmatch(entry.name)) and entry.is_dir()
                }
        except OSError:
            return {}

    def _files(self, index: int, folder: str) -> Files:
        known = self._paths.get(index)
        if known is not None and self._needed <= known.keys():
            files = {name: _content(path) for name, path in known.items()}
            if None not in files.values():
                return {name: content for name, content in files.items() if content is not None}
        self._paths[index] = known = _find(folder, self._names)
        return {name: content for name, path in known.items() if (content := _content(path)) is not None}


def _find(folder: str, names: frozenset[str]) -> dict[str, str]:
    """Paths of the named files, the nearest to the device winning; symbolic links to folders are not followed."""
    found: dict[str, str] = {}
    level, seen = [folder], 0
    for _ in range(MAX_DEPTH):
        below: list[str] = []
        for path in level:
            seen += 1
            folders, files = _entries(path) if seen <= _MAX_FOLDERS else ([], [])
            below.extend(folders)
            for file in files:
                if (name := os.path.basename(file)) in names:  # noqa: PTH119 - a walk in text is 5 times faster
                    found.setdefault(name, file)
        level = sorted(below)
    return found


def _entries(path: str) -> tuple[list[str], list[str]]:
    """Folders and files in a folder; one that cannot be listed has none."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    files.append(entry.path)
                elif not _CORE.fullmatch(entry.name):
                    folders.append(entry.path)
    except OSError:
        pass
    return folders, files


def _content(path: str) -> bytes | Failed | None:
    """Content of a file, why it cannot be read, or None if it is not there. One beyond 4 KiB is not read."""
    try:
        # Not blocking: whatever stands where a file should be must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Failed(error.errno or errno.EIO)
    try:
        content = os.read(descriptor, MAX_BYTES + 1)
    except OSError as error:
        return Failed(error.errno or errno.EIO)
    finally:
        os.close(descriptor)
    return content if len(content) <= MAX_BYTES else Failed(errno.EFBIG)
