"""The driver's files as a source of readings.

Reading, parsing and judging are in the modules beside this one; here they are put together. It must not block
the event loop: files are read in a thread of their own, because a sick device can hold up a read for seconds.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Final

from exporter.readings import SourceReport
from exporter.sources.sysfs_collect import FILES, HEALTH_FILES, Past, collect
from exporter.sources.sysfs_files import Tree
from exporter.sources.sysfs_health import Moment, Trace
from exporter.sources.sysfs_tree import TreeReader

NAME: Final = "sysfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where time comes from: ``monotonic`` for how long, ``wall`` (seconds since the epoch) for when."""

    monotonic: Callable[[], float] = monotonic
    wall: Callable[[], float] = time


class SysfsSource:
    """Reads the driver files below ``root``. ``expected``: devices there must be, by index.

    ``heartbeat_timeout``: seconds a heartbeat may stand still.
    """

    name = NAME

    def __init__(self, root: Path, *, expected: frozenset[int], heartbeat_timeout: float, clock: Clock) -> None:
        self._tree = TreeReader(root, names=FILES, needed=HEALTH_FILES)
        self._timeout = heartbeat_timeout
        self._clock = clock
        self._past = Past(traces={index: Trace() for index in expected})
        self._under_way: tuple[Moment, asyncio.Future[Tree]] | None = None

    async def read(self) -> SourceReport:
        """Read every device once. Cancelling it leaves the thread; the next call waits for that same thread."""
        if self._under_way is None:
            # A reading is as old as its beginning.
            moment = Moment(now=self._clock.monotonic(), wall=self._clock.wall(), timeout=self._timeout)
            self._under_way = moment, _in_thread(self._tree.read)
        moment, reading = self._under_way
        try:
            tree = await asyncio.shield(reading)
        finally:
            if reading.done():
                self._under_way = None
        self._past, report = collect(self._past, tree, moment)
        return report


def _in_thread(work: Callable[[], Tree]) -> asyncio.Future[Tree]:
    """Run ``work`` in a daemon thread: unlike the loop's own pool, one that hangs cannot hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Tree] = loop.create_future()

    def finish(tree: Tree | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if tree is not None:
            future.set_result(tree)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        tree, error = None, None
        try:
            tree = work()
        except Exception as raised:  # noqa: BLE001 - handed to whoever awaits the future
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, tree, error)

    threading.Thread(target=run, name="sysfs", daemon=True).start()
    return future
