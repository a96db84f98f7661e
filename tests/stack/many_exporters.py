"""STAND-IN for the exporters of many nodes: one process, as one for each would not fit on a small machine.

It serves the exporter's own application once for each node, each on a port of its own. What they read is a FAKE
source. It stands for an agent on the node, such as Neuron Observer, that can tell of every device at once that it
cannot be reached (driver files that all fall silent say that the driver is at fault): it believes a file, in which the
test writes the devices that are out of reach.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from exporter.app import make_app
from exporter.polling import Poller
from exporter.readings import Live, Reading, SourceUp, Unreachable
from exporter.service.process import SERVER_OPTIONS

DEVICES = 16
_REFRESH_SECONDS = 0.5


class _Agent:
    """FAKE source of one node: each device is clean and answers, but for those that the file names."""

    name = "observer"

    def __init__(self, file: Path) -> None:
        self._file = file

    async def read(self) -> SourceUp:
        """Collect once."""
        out_of_reach = out_of_reach_in(self._file)
        clean = Live(present=frozenset(), taken=time.time())
        lost = Unreachable(reason="the agent cannot reach it")
        return SourceUp(
            readings={device: Reading(health=lost if device in out_of_reach else clean) for device in range(DEVICES)}
        )


def out_of_reach_in(file: Path) -> frozenset[int]:
    """Read which devices are out of reach: their numbers, with blanks between."""
    return frozenset(map(int, file.read_text(encoding="utf-8").split()))


async def _serve(folder: Path, ports: dict[str, int]) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with AsyncExitStack() as stack:
        for node, port in ports.items():
            agent = _Agent(folder / node)
            poller = Poller((agent,), expected=range(DEVICES), interval=_REFRESH_SECONDS, monotonic=time.monotonic)
            runner = web.AppRunner(make_app(poller), shutdown_timeout=1, **SERVER_OPTIONS)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
        await ending.wait()


def main() -> None:
    """Serve until SIGTERM: a folder with a file for each node, and `<node>=<port>` for each."""
    folder, *nodes = sys.argv[1:]
    ports = {node: int(port) for node, _, port in (one.partition("=") for one in nodes)}
    asyncio.run(_serve(Path(folder), ports))


if __name__ == "__main__":
    main()
