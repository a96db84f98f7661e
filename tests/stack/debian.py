"""Fetch Prometheus and Alertmanager from Debian's archive without installing or starting anything.

Packages are downloaded with apt-get and unpacked with dpkg-deb, both with folders of their own inside the cache,
so that neither root nor the system's package state is needed or touched.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.stack.progress import progress
from tests.stack.tools import StackBuildError, StackUnavailableError, cache_root


@dataclass(frozen=True, slots=True)
class _Packaged:
    package: str
    path: str  # inside the package, once unpacked and made to run from there


_PACKAGED = MappingProxyType(
    {
        "prometheus": _Packaged("prometheus", "usr/bin/prometheus"),
        "promtool": _Packaged("prometheus", "usr/bin/promtool"),
        "alertmanager": _Packaged("prometheus-alertmanager", "usr/bin/alertmanager"),
        "amtool": _Packaged("prometheus-alertmanager", "usr/bin/amtool"),
    }
)

# Debian's Alertmanager does not start without the templates of its package in the place it was built for.
_ALERTMANAGER = "usr/bin/prometheus-alertmanager"
_ALERTMANAGER_DATA = "/usr/share/prometheus/alertmanager"
_DESCRIPTOR = "/proc/self/fd/9"
_RELOCATED = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec 9<"$here/../..{data}" "$here/../../{program}" "$@"
"""

# Read after the system's own configuration. The hooks there tidy up system folders, which are none of our business.
_APT_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Dir::State "{root}/state";
Dir::State::lists "{root}/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{root}/cache";
Dir::Log "{root}/log";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Acquire::Retries "2";
"""


def fetched(name: str) -> Path | None:
    """Return the binary if it was fetched before."""
    if name not in _PACKAGED:
        return None
    packaged = _PACKAGED[name]
    path = _unpacked(packaged) / packaged.path
    return path if path.is_file() else None


def fetch_debian(name: str) -> Path:
    """Return the binary of a packaged program, downloading its package first if need be.

    ``StackUnavailableError`` where there is no such package or no apt-get, ``StackBuildError`` when fetching fails.
    """
    if name not in _PACKAGED:
        raise StackUnavailableError(f'fetching "{name}" from Debian: only {", ".join(_PACKAGED)} are packaged')
    if (path := fetched(name)) is not None:
        return path
    missing = [command for command in ("apt-get", "dpkg-deb") if shutil.which(command) is None]
    if missing:
        raise StackUnavailableError(f'fetching "{name}" from Debian: no {" and no ".join(missing)} on PATH')
    packaged = _PACKAGED[name]
    with progress(f"fetching Debian's package {packaged.package} into the cache, once"):
        _fetch(packaged)
    return _unpacked(packaged) / packaged.path


def _unpacked(packaged: _Packaged) -> Path:
    return cache_root() / "debian" / packaged.package


def _fetch(packaged: _Packaged) -> None:
    target = _unpacked(packaged)
    work = target.with_name(f".{packaged.package}.{os.getpid()}")
    try:
        _download(packaged.package, _apt_folders(work / "apt"), work)
        archives = list(work.glob("*.deb"))
        if len(archives) != 1:
            raise StackBuildError(f'downloading "{packaged.package}": expected one .deb, got {len(archives)}')
        _run(("dpkg-deb", "-x", str(archives[0]), str(work / "root")), work)
        _relocate_alertmanager(work / "root")
        if not (work / "root" / packaged.path).is_file():
            raise StackBuildError(f'unpacking "{archives[0].name}": no "{packaged.path}" in it')
        shutil.rmtree(target, ignore_errors=True)
        (work / "root").replace(target)
    except OSError as error:
        raise StackBuildError(
            f'writing "{error.filename}": {error.strerror}; NEURON_STACK_CACHE names another folder'
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(package: str, config: Path, directory: Path) -> None:
    apt = ("apt-get", "-c", str(config), "-qq")
    cause = None
    try:
        _run((*apt, "update"), directory)
    except StackBuildError as error:
        cause = error  # one dead source of several need not matter
    try:
        _run((*apt, "download", package), directory)
    except StackBuildError as error:
        raise (cause or error) from error


def _relocate_alertmanager(root: Path) -> None:
    """Make it find its templates where they were unpacked: through a file descriptor that a wrapper opens.

    A path in a program can be replaced by one of the same length alone, which that of the cache is not.
    """
    program = root / _ALERTMANAGER
    if not program.is_file():
        return
    replacement = _DESCRIPTOR.ljust(len(_ALERTMANAGER_DATA), "/")
    program.write_bytes(program.read_bytes().replace(_ALERTMANAGER_DATA.encode(), replacement.encode()))
    wrapper = program.with_name("alertmanager")
    wrapper.write_text(_RELOCATED.format(data=_ALERTMANAGER_DATA, program=_ALERTMANAGER), encoding="utf-8")
    wrapper.chmod(0o755)


def _apt_folders(root: Path) -> Path:
    for folder in ("state", "lists/partial", "cache/archives/partial", "log"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    config = root / "apt.conf"
    config.write_text(_APT_CONFIG.format(root=root), encoding="utf-8")
    return config


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip()
        raise StackBuildError(f'running "{" ".join(command)}": it ended with {done.returncode}\n{said}')
