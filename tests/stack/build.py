"""Build a program of the stack with Go into the cache, once.

Two builds at once wait for each other, and an interrupted one leaves nothing that looks like a binary.
The checkout is never written to: Go runs in a copy of the module files inside the cache.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.stack.progress import progress
from tests.stack.tools import Module, StackBuildError, StackUnavailableError, Tool

GO_MINIMUM = (1, 26)

_GO_VERSION = re.compile(r"\bgo(\d+)\.(\d+)")
_TAIL_LINES = 15
_STUB_PAGE = "<!doctype html><title>stub</title>\n"


def find_go() -> Path:
    """Return the ``go`` on PATH; ``StackUnavailableError`` when there is none, or one that is too old."""
    wanted = f"Go ≥ {GO_MINIMUM[0]}.{GO_MINIMUM[1]}"
    found = shutil.which("go")
    if found is None:
        raise StackUnavailableError(f"looking for {wanted}: no go on PATH")
    answer = subprocess.run([found, "version"], env=_go_env(), capture_output=True, text=True, check=False)
    version = _GO_VERSION.search(answer.stdout)
    if version is None:
        raise StackUnavailableError(f'asking "{found}" for its version: expected {wanted}, got {answer.stdout!r}')
    if (int(version[1]), int(version[2])) < GO_MINIMUM:
        raise StackUnavailableError(f"looking for {wanted}: {found} is {version[0]}")
    return Path(found)


def build(tool: Tool) -> Path:
    """Return the cached binary, building it first if it is not there.

    ``StackUnavailableError`` without a fitting Go, ``StackBuildError`` when Go fails.
    """
    if tool.cached.is_file():
        return tool.cached
    go = find_go()
    with _locked(tool.module.cache / "lock", f"waiting for another build of {tool.module.name}"):
        if not tool.cached.is_file():  # else the other build made it
            minutes = max(1, round(tool.build_seconds / 60))
            with progress(f"building {tool.name} with Go, once (about {minutes} min on two cores)"):
                _build(go, tool)
    return tool.cached


def _build(go: Path, tool: Tool) -> None:
    tool.cached.parent.mkdir(parents=True, exist_ok=True)
    source = _prepare(go, tool.module)
    for stale in tool.cached.parent.glob(f".{tool.name}.*"):
        stale.unlink()
    # With the process in the name: the compiler of a build that was killed outright may live on and still write.
    partial = tool.cached.with_name(f".{tool.name}.{os.getpid()}")
    try:
        command = (str(go), "build", *tool.module.build_flags, "-o", str(partial), tool.package)
        _run(command, source, tool.module.cache / f"{tool.name}.build.log", f"building {tool.name}")
        partial.replace(tool.cached)
    finally:
        partial.unlink(missing_ok=True)


def _prepare(go: Path, module: Module) -> Path:
    """Make the folder Go runs in. It keeps its place between builds, as Go's own cache is keyed by paths."""
    source = module.cache / "source"
    source.mkdir(parents=True, exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module.directory / name, source / name)
    if module.stub_pages:
        _vendor(go, module, source)
    return source


def _vendor(go: Path, module: Module, source: Path) -> None:
    """Vendor the dependencies and add the pages they lack: a module cache must not be patched, this may."""
    ready = source / "vendor" / ".complete"
    if ready.exists():
        return
    shutil.rmtree(source / "vendor", ignore_errors=True)
    log = module.cache / "vendor.log"
    with log.open("wb") as output:
        # It always ends in an error about the very pages added below; its list of modules says whether it worked.
        subprocess.run(
            (str(go), "mod", "vendor"),
            cwd=source,
            env=_go_env(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if not (source / "vendor" / "modules.txt").is_file():
        raise StackBuildError(f"vendoring {module.name}: no vendor/modules.txt came of it\n{tail(log)}")
    for page in module.stub_pages:
        path = source / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_STUB_PAGE, encoding="utf-8")
    ready.touch()


def _run(command: Sequence[str], directory: Path, log: Path, what: str) -> None:
    with log.open("wb") as output:
        done = subprocess.run(
            command,
            cwd=directory,
            env=_go_env(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if done.returncode != 0:
        raise StackBuildError(f"{what}: go ended with {done.returncode}; its log {log} ends:\n{tail(log)}")


def _go_env() -> dict[str, str]:
    # A developer's own flags, toolchain switch or workspace would build something else than what is pinned.
    return {**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log file; empty when there is none."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file; the system lets go of it however this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        with progress(what):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
