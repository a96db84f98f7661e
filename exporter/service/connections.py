"""Connections of a server: how many at once, and how long each may wait for a request.

The HTTP library has no limit of its own for a connection that sends half a header or nothing; such connections
would use up the file descriptors. Nothing here may cut a request under way, whose time its handler limits, and
nothing may depend on what is served.
"""

import asyncio
import logging
import math
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self, cast

from aiohttp import web

from exporter.service.logs import Seldom

_LOG: Final = logging.getLogger(__name__)
_LOG_SECONDS: Final = 10.0
_MOST: Final = 512
_TICKS: Final = 10  # in the time a first header has
_QUEUE: Final = 1024  # connections the system completes before they are accepted; further ones try again after 1 s

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many connections there may be, and for how many seconds one may wait.

    A first header must be complete within ``header_seconds``, a later one within ``idle_seconds`` after the
    handler before it was done. Clients of Prometheus and Alertmanager give up an idle connection after 300 s, and
    a notification repeated every 5 minutes comes just then: the server must not be the one to close it.
    """

    connections: int
    header_seconds: float = 5
    idle_seconds: float = 330

    @classmethod
    def of_this_process(cls) -> Self:
        """Leave half of the file descriptors to everything else."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(connections=_MOST if soft == resource.RLIM_INFINITY else max(1, min(_MOST, soft // 2)))


class Connections:
    """The open connections of one server.

    A connection waits for its first request (``_fresh``), waits for another (``_idle``), or has one under way. Both
    who waits and until when are in order of time. Time is counted in ticks: a loop that was held up for long makes
    one tick of it, and does not cut those whose header has come but was not looked at.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tick_seconds = limits.header_seconds / _TICKS
        # One more, as the first tick may come at once.
        self._idle_ticks = math.ceil(limits.idle_seconds / self._tick_seconds) + 1
        self._ticks = 0
        self._open: set[_Connection] = set()
        self._fresh: dict[_Connection, int] = {}
        self._idle: dict[_Connection, int] = {}
        self._listening: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._seldom = Seldom(_LOG, _LOG_SECONDS, loop.time)

    async def listen(self, server: web.Server, host: str | None, port: int) -> int:
        """Listen for ``server``, and return the port. Raises what `asyncio.loop.create_server` raises."""
        # Around the whole application. A middleware of it comes after the routing only, and costs each request more.
        server.request_handler = self._noting(server.request_handler)
        # A backlog of 1 makes asyncio accept one connection a turn. It would accept as many as the backlog before
        # one of them can be counted; and out of descriptors it would log, and plan to try again, that many times,
        # and each of the retries as often again.
        self._listening = await self._loop.create_server(lambda: _Connection(self, server), host, port, backlog=1)
        for listener in self._listening.sockets:
            with listener.dup() as same:
                same.listen(_QUEUE)
        self._tick()
        return int(self._listening.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Let nobody in any more; who is in stays."""
        if self._listening is not None:
            self._listening.close()
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """End what is still open, such as a connection whose client reads nothing."""
        for connection in list(self._open):
            self._end(connection)

    def close_idle(self) -> None:
        """Close each connection that waits for another request: its client shall connect anew, and maybe elsewhere.

        Those with a request under way stay, as do those that have not sent one yet, and those whose last response is
        not written to its end.
        """
        for connection in list(self._idle):
            # The length is known at the end. Nothing tells of the end of an error, which is written at once.
            if connection.response is None or connection.response.body_length:
                connection.close()

    def admit(self, connection: "_Connection") -> bool:
        """Take a new connection in, if there is room or one that waits can give way."""
        if not self._make_room():
            return False
        self._open.add(connection)
        self._fresh[connection] = self._ticks + _TICKS + 1
        return True

    def forget(self, connection: "_Connection") -> None:
        """Leave a connection that has ended, if it was in at all, out of the count."""
        self._open.discard(connection)
        self._fresh.pop(connection, None)
        self._idle.pop(connection, None)

    def _noting(self, handle: Handler) -> Handler:
        """Note that a connection has a request under way, from its complete header to the handler's answer."""

        async def noting(request: web.BaseRequest) -> web.StreamResponse:
            transport = request.transport
            connection = None if transport is None else transport.get_protocol()
            if not isinstance(connection, _Connection):
                # It is gone already.
                return await handle(request)
            self._fresh.pop(connection, None)
            self._idle.pop(connection, None)
            connection.response = None
            try:
                connection.response = await handle(request)
                return connection.response
            finally:
                if connection in self._open:
                    self._idle[connection] = self._ticks + self._idle_ticks

        return noting

    def _make_room(self) -> bool:
        if len(self._open) < self._limits.connections:
            return True
        extra = {"limit": self._limits.connections}
        # The one that has waited longest among the more numerous: who holds many connections loses his own.
        waiting = max(self._fresh, self._idle, key=len)
        if not waiting:
            self._seldom.warning("connection refused: there are too many, all with a request", extra=extra)
            return False
        self._seldom.warning("connection without a request closed: there are too many", extra=extra)
        self._end(next(iter(waiting)))
        return True

    def _tick(self) -> None:
        self._ticks += 1
        for waiting in (self._fresh, self._idle):
            for connection in [one for one, until in waiting.items() if until <= self._ticks]:
                self._end(connection)
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    def _end(self, connection: "_Connection") -> None:
        self.forget(connection)
        connection.abort()


class _Connection(asyncio.Protocol):
    """Stands between the transport and the library's protocol, and tells of the beginning and the end.

    ``response`` is the latest one, which the library begins to write when the handler is done.
    """

    __slots__ = ("_connections", "_inner", "_server", "_transport", "response")

    def __init__(self, connections: Connections, server: web.Server) -> None:
        self.response: web.StreamResponse | None = None
        self._connections = connections
        self._server = server
        # Does nothing: stays for who is not let in.
        self._inner: asyncio.Protocol = asyncio.Protocol()
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """End at once. An ordinary close would wait for a client that reads nothing."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._connections.admit(self):
            self._inner = self._server()
            self._inner.connection_made(transport)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
