"""Reads the Neuron driver's files: finds them by name, and says of each what is in it or why it cannot be read.

It must not judge what it finds. It never writes, and opens only the names it was asked for, so never ``reset``.
"""

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from exporter.sources.sysfs_files import Failed, Files, Tree

MAX_DEPTH: Final = 6
MAX_BYTES: Final = 4096
_MAX_FOLDERS: Final = 1024
_DEVICE: Final = re.compile(r"neuron(0|[1-9][0-9]{0,3})", re.ASCII)
# Cores have files of the same names as their device.
_CORE: Final = re.compile(r"neuron_core\d*", re.ASCII)


class TreeReader:
    """Reads ``names`` of every device below ``root``, which stands for ``/sys``. Blocking; one caller at a time.

    The driver has moved files between releases, so each is searched below its device, and the path kept until
    it leads nowhere. ``needed`` are the names that are worth another search at every reading while they are not
    found, or found more than once.
    """

    def __init__(self, root: Path, *, names: Iterable[str], needed: Iterable[str]) -> None:
        self._devices = root / "devices/virtual/neuron_device"
        self._module = root / "module/neuron"
        self._names = frozenset(names)
        self._needed = frozenset(needed)
        self._paths: dict[int, dict[str, str | None]] = {}

    def read(self) -> Tree:
        """Read everything once. Raises nothing: what cannot be read is part of the result."""
        folders = self._folders()
        for index in self._paths.keys() - folders.keys():
            del self._paths[index]
        if not folders or not _is_folder(self._module):
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
                    if (match := _DEVICE.fullmatch(entry.name)) and _is_folder(entry)
                }
        except OSError:
            return {}

    def _files(self, index: int, folder: str) -> Files:
        known = self._paths.get(index)
        if known is not None and self._needed <= {name for name, path in known.items() if path is not None}:
            files = {name: _content(path) for name, path in known.items()}
            if None not in files.values():
                return {name: content for name, content in files.items() if content is not None}
        self._paths[index] = known = _find(folder, self._names)
        return {name: content for name, path in known.items() if (content := _content(path)) is not None}


def _is_folder(place: Path | os.DirEntry[str]) -> bool:
    """Say so of one entry. The question itself may fail, as for a link to itself, and must not cost the others."""
    try:
        return place.is_dir()
    except OSError:
        return False


def _find(folder: str, names: frozenset[str]) -> dict[str, str | None]:
    """Paths of the named files, the nearest to the device winning; symbolic links to folders are not followed.

    None for a name that several of the nearest files have: to take one of them would be a guess.
    """
    found: dict[str, str | None] = {}
    level, seen = [folder], 0
    for _ in range(MAX_DEPTH):
        below: list[str] = []
        here: dict[str, str | None] = {}
        for path in level:
            seen += 1
            folders, files = _entries(path) if seen <= _MAX_FOLDERS else ([], [])
            below.extend(folders)
            for file in files:
                if (name := os.path.basename(file)) in names:  # noqa: PTH119 - a walk in text is 5 times faster
                    here[name] = None if name in here else file
        found = here | found
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


def _content(path: str | None) -> bytes | Failed | None:
    """Content of a file, why it cannot be read, or None if it is not there. One beyond 4 KiB is not read."""
    if path is None:
        return Failed(errno.ENOTUNIQ)
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
