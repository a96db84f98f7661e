"""Life of a process: serve until a signal, stop gracefully, end with an exit code.

It must not know what is served. Exit codes: 0 stopped as asked, 1 could not start or failed, 2 wrong usage.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, cast

from aiohttp import web

from exporter.service.connections import Connections, Limits
from exporter.service.flags import UsageError
from exporter.service.parsers import Address

_LOG: Final = logging.getLogger(__name__)
SERVER_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        # A line for each scrape and each probe hides the ones that matter.
        "access_log": None,
        # Nobody sends compressed requests; decoding them would take a bomb, and trip over what only claims to be one.
        "auto_decompress": False,
        # Who was answered before its whole request came has this many seconds to stop sending.
        "lingering_time": 1.0,
        # A client that leaves does not stop work that was begun.
        "handler_cancellation": False,
    }
)
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StartError(Exception):
    """The process cannot start, for a reason its operator can act on: one sentence, no traceback."""


async def serve(
    app: web.Application,
    address: Address,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[Address], None] | None = None,
    shutdown_timeout: float = 10,
    connections: Connections | None = None,
) -> None:
    """Serve ``app`` until SIGTERM, SIGINT or ``stop``; requests under way get ``shutdown_timeout`` seconds.

    ``started`` is called with the address in use, which has the real port when port 0 was asked for.
    ``connections`` are this one server's, for a caller who wants to close idle ones or to limit them; by default
    their limits follow from what the system allows this process. Raises StartError when the address cannot be
    listened on.
    """
    stop = stop or asyncio.Event()
    connections = connections or Connections(Limits.of_this_process())
    runner = web.AppRunner(app, shutdown_timeout=shutdown_timeout, **SERVER_OPTIONS)
    with _signals_set(stop):
        try:
            await runner.setup()
            bound = await _listen(connections, runner, address)
            _LOG.info("listening", extra={"address": str(bound)})
            if started is not None:
                started(bound)
            await stop.wait()
            _LOG.info("stopping")
        finally:
            connections.stop_listening()
            await runner.cleanup()
            connections.abort()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``main`` to its end and return the exit code; each usage problem is printed on its own line."""
    try:
        asyncio.run(main())
    except UsageError as error:
        sys.stderr.write("".join(f"{problem}\n" for problem in error.problems))
        return 2
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        # Ctrl-C before the signal handlers are in place.
        return 130
    return 0


async def _listen(connections: Connections, runner: web.AppRunner, address: Address) -> Address:
    server = cast("web.Server", runner.server)  # None only before the setup
    try:
        port = await connections.listen(server, address.host or None, address.port)
    except OSError as error:
        # asyncio wraps the system's words into a sentence that names the address a second time.
        number = error.errno or 0
        reason = os.strerror(number).lower() if number > 0 else error.strerror
        raise StartError(f"listening on '{address}': {reason}") from error
    except UnicodeError as error:
        raise StartError(f"listening on '{address}': {error}") from error
    return Address(address.host, port)


@contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
