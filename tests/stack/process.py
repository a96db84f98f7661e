"""Start, watch and end child processes, and wait for what they bring about.

Knows nothing of what the processes are. None of them outlives the run that started it.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.stack import reaper
from tests.stack.build import tail

T = TypeVar("T")

_POLL_SECONDS = 0.02
# Below the range that outgoing connections take their ports from, so that none is taken between asking and using.
_PORTS = range(20000, 32000)
# Each once; not from the seeded generator, which would give two runs at the same time the same ones.
_unused_ports = iter(random.SystemRandom().sample(_PORTS, len(_PORTS)))


class Startable(ABC):
    """Something with a start and a stop; as a context manager it runs for the length of the block."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Process(Startable):
    """A child process with a log file; it may be started again after it ended.

    ``env`` is added to this process's environment. Every start appends to ``<log_dir>/<name>.log``.
    """

    def __init__(
        self, name: str, argv: Sequence[str | Path], log_dir: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = tuple(map(str, argv))
        self.log_path = log_dir / f"{name}.log"
        self._env = dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """The exit code of the last start, negative for a signal; ``None`` while it runs."""
        return self._started().poll()

    def start(self) -> None:
        """Start it; what it prints goes to the log."""
        if self.running:
            raise RuntimeError(f'starting "{self.name}": it already runs as {self.pid}')
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                self.argv,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own group: Ctrl-C is for the run, and what it forks can be ended with it.
                start_new_session=True,
            )
        _tell_reaper("+", self._child.pid)

    def stop(self, timeout: float = 10) -> None:
        """End it with SIGTERM, after ``timeout`` seconds with SIGKILL. Nothing happens if it has ended."""
        if self._child is None:
            return
        if self.running:
            self.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would. Nothing happens if it has ended."""
        if self._child is None:
            return
        if self._child.poll() is None:  # once it is waited for, its id may be somebody else's
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        _tell_reaper("-", self._child.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its children."""
        self._started().send_signal(number)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of its log."""
        return tail(self.log_path, lines)

    def wait_ready(self, ready: Callable[[], object], *, timeout: float = 30) -> None:
        """Wait for ``ready()`` to be true. Connection errors mean not yet; an end or a timeout shows the log."""

        def ready_or_ended() -> bool:
            if not self.running:
                return True
            with contextlib.suppress(OSError):
                return bool(ready())
            return False

        try:
            wait_until(ready_or_ended, timeout=timeout, what=f'"{self.name}" to be ready')
        except TimeoutError as error:
            raise RuntimeError(f"{error}; its log {self.log_path} ends:\n{self.tail()}") from error
        if not self.running:
            raise RuntimeError(
                f'starting "{self.name}": it ended with {self.returncode}; its log {self.log_path} ends:\n{self.tail()}'
            )

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._child is None:
            raise RuntimeError(f'asking for the process of "{self.name}": it was never started')
        return self._child


def wait_until(condition: Callable[[], T | None], *, timeout: float, what: str) -> T:
    """Return the first true value of ``condition()``; ``TimeoutError`` after ``timeout`` seconds tells ``what``."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(_gave_up(what, timeout, value))
        time.sleep(_POLL_SECONDS)
    return value


async def wait_for(
    condition: Callable[[], Awaitable[T | None]],
    *,
    timeout: float,  # noqa: ASYNC109 -- asyncio.timeout could not tell what was last seen
    what: str,
) -> T:
    """Do the same as ``wait_until`` for a coroutine function, without blocking the loop."""
    deadline = time.monotonic() + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(_gave_up(what, timeout, value))
        await asyncio.sleep(_POLL_SECONDS)
    return value


def _gave_up(what: str, timeout: float, value: object) -> str:
    return f"waiting for {what}: not within {timeout:g} s; last seen {value!r}"


def free_port() -> int:
    """Return a loopback TCP port that is free now and that this function does not return again."""
    for port in _unused_ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"looking for a free port: none in {_PORTS.start}-{_PORTS.stop - 1}")


class _Reaper:
    """The write end of the pipe to ``reaper.py``, opened at the first process."""

    pipe: int | None = None


def _tell_reaper(sign: str, pid: int) -> None:
    if _Reaper.pipe is None:
        read, _Reaper.pipe = os.pipe()  # not inherited by children, so that this process's end closes it
        os.posix_spawn(
            sys.executable,
            (sys.executable, "-I", "-S", str(Path(reaper.__file__))),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)],
        )
        os.close(read)
    os.write(_Reaper.pipe, f"{sign}{pid}\n".encode())
