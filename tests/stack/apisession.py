"""An asyncio session with the API server, of which nothing is left when it ends."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import aiohttp

from tests.stack.controlplane import ControlPlane

_SECONDS = 10.0


@asynccontextmanager
async def api_session(control_plane: ControlPlane, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a session that trusts the control plane; ``options`` are those of the library's session.

    TLS takes its leave in the background, and nothing of the library waits for it: a loop that ends right after the
    session would leave sockets open. Here they are hung up on and waited for.
    """
    sockets: WeakSet[socket.socket] = WeakSet()

    def make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        sockets.add(made)
        return made

    connector = aiohttp.TCPConnector(
        ssl=ssl.create_default_context(cafile=control_plane.ca_file), limit=0, socket_factory=make_socket
    )
    async with aiohttp.ClientSession(control_plane.url, connector=connector, **options) as session:
        yield session
    async with asyncio.timeout(_SECONDS):
        while still_open := [one for one in sockets if one.fileno() >= 0]:
            for one in still_open:
                _hang_up(one)
            await asyncio.sleep(0)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was never connected, or is being closed already
        return
