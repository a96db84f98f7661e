"""What kube-proxy does for the remediator's Service: one address that leads to whichever replica is labelled leader.

Stands in for the kernel's connection tracking: it chooses for each new connection, and an established one stays where
it is until an end of it is closed. Unlike a real Service it does not ask whether the Pod is Ready.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import aiohttp

from tests.stack.apisession import api_session
from tests.stack.controlplane import NAMESPACE, ControlPlane
from tests.stack.process import free_port
from tests.stack.threaded import Threaded

LEADER = "neuron-remediator/role=leader"
"""The Service's selector."""

REFUSED = ""
"""Stands in ``ServiceIp.connections`` for connections that no Pod was there for."""

_LOOK_SECONDS = 0.05
_CHUNK = 2**16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ServiceIp(Threaded):
    """Listens on ``address``; ``addresses`` says where each Pod serves ("127.0.0.1:9780"), by its name.

    Without a labelled Pod connections are reset. While the API server is away what was last seen holds.
    ``connections`` counts those taken so far, by Pod.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        addresses: Mapping[str, str],
        *,
        namespace: str = NAMESPACE,
        selector: str = LEADER,
    ) -> None:
        self._control_plane = control_plane
        self._addresses = addresses
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = selector
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.url = f"http://{self.address}"
        self.connections: Counter[str] = Counter()
        self.endpoints: tuple[str, ...] = ()
        """Names of the Pods that a new connection may be led to now."""
        self._random = Random(0)  # noqa: S311 - to be repeatable

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with api_session(
            self._control_plane,
            headers={"Authorization": f"Bearer {self._control_plane.token('admin')}"},
            timeout=aiohttp.ClientTimeout(total=2),
        ) as session:
            await self._look(session)
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._keep_looking(session))
                connections: set[asyncio.Task[None]] = set()

                def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    task = group.create_task(self._connection(reader, writer))
                    connections.add(task)
                    task.add_done_callback(connections.discard)

                server = await asyncio.start_server(connected, "127.0.0.1", self._port)
                yield
                server.close()
                for task in (looking, *connections):
                    task.cancel()

    async def _keep_looking(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look(session)
            except (aiohttp.ClientError, TimeoutError):
                continue  # the API server is away

    async def _look(self, session: aiohttp.ClientSession) -> None:
        query = {"labelSelector": self._selector}
        async with session.get(self._pods_path, params=query, raise_for_status=True) as answer:
            names = [item["metadata"]["name"] for item in (await answer.json())["items"]]
        self.endpoints = tuple(name for name in names if name in self._addresses)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = self._random.choice(self.endpoints) if self.endpoints else REFUSED
            self.connections[pod] += 1
            if pod is REFUSED:
                _reset(writer)
                return
            host, _, port = self._addresses[pod].rpartition(":")
            pod_reader, pod_writer = await asyncio.open_connection(host, int(port))
            try:
                await _both_ways((reader, pod_writer), (pod_reader, writer))
            finally:
                pod_writer.close()
        except OSError:
            _reset(writer)  # nobody listens there, or an end was reset
        finally:
            writer.close()


async def _both_ways(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Copy until one end closes. Raises ``OSError`` when one is reset."""
    pumps = [asyncio.create_task(_pump(*way)) for way in ways]
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in done:
            pump.result()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, as a refused connection looks."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
