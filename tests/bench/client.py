"""Requests of the benchmarks: many at a time over connections that are kept, as little else as can be.

Bodies are made beforehand, so that what is measured is not the making of them.
"""

from __future__ import annotations

import asyncio
import http
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import aiohttp

from tests.stack.pipeline import TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from tests.stack.controlplane import ControlPlane

T = TypeVar("T")

_TIMEOUT = aiohttp.ClientTimeout(total=60)
_KEPT_SECONDS = 300.0  # as Alertmanager and the Kubernetes clients do, about
_RETRY_SECONDS = 0.1


async def at_once(work: Iterable[T], do: Callable[[T], Awaitable[None]], count: int) -> None:
    """Do each piece of work, up to `count` at a time."""
    left = iter(work)

    async def worker() -> None:
        for piece in left:
            await do(piece)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(worker())


class Api:
    """The API server, as the administrator."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def create(self, path: str, body: bytes) -> bytes:
        """Create an object; returns the answer."""
        return await self._send("POST", path, body, "application/json", http.HTTPStatus.CREATED)

    async def patch(self, path: str, change: bytes) -> None:
        """Merge a change into an object, as kubelets do it."""
        await self._send("PATCH", path, change, "application/strategic-merge-patch+json", http.HTTPStatus.OK)

    async def delete_all(self, path: str) -> None:
        """Delete a whole collection."""
        await self._send("DELETE", path, b"", "application/json", http.HTTPStatus.OK)

    async def get(self, path: str) -> bytes:
        """Read anything."""
        return await self._send("GET", path, b"", "application/json", http.HTTPStatus.OK)

    async def warm(self, connections: int) -> None:
        """Open so many connections, so that none of them has to be made while it counts."""
        await asyncio.gather(*(self.get("/version") for _ in range(connections)))

    async def _send(self, method: str, path: str, body: bytes, kind: str, expected: int) -> bytes:
        async with self._session.request(method, path, data=body, headers={"Content-Type": kind}) as response:
            answer = await response.read()
        if response.status != expected:
            raise RuntimeError(f"{method} {path}: expected {expected}, got {response.status}: {answer[:256]!r}")
        return answer


class Webhook:
    """The remediator's webhook, as Alertmanager uses it; `retries` counts what had to be sent again."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.retries = 0

    async def notify(self, body: bytes) -> None:
        """Send a notification until it is answered with 200. `RuntimeError` for an answer that is no 503."""
        while (status := await self._post(body)) != http.HTTPStatus.OK:
            if status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise RuntimeError(f"sending a notification: expected 200 or 503, got {status}")
            self.retries += 1
            await asyncio.sleep(_RETRY_SECONDS)

    async def warm(self, connections: int) -> None:
        """Open so many connections, so that none of them has to be made while it counts."""
        await asyncio.gather(*(self._get("/readyz") for _ in range(connections)))

    async def _post(self, body: bytes) -> int:
        async with self._session.post("/api/v1/alerts", data=body) as response:
            await response.read()
        return response.status

    async def _get(self, path: str) -> None:
        async with self._session.get(path) as response:
            await response.read()


@asynccontextmanager
async def connect_api(control_plane: ControlPlane, connections: int) -> AsyncIterator[Api]:
    """Talk to the API server over at most so many connections."""
    context = ssl.create_default_context(cafile=control_plane.ca_file)
    connector = aiohttp.TCPConnector(ssl=context, limit=connections, keepalive_timeout=_KEPT_SECONDS)
    headers = {"Authorization": f"Bearer {control_plane.token('admin')}"}
    async with aiohttp.ClientSession(
        control_plane.url, connector=connector, headers=headers, timeout=_TIMEOUT
    ) as session:
        yield Api(session)


@asynccontextmanager
async def connect_webhook(url: str, connections: int) -> AsyncIterator[Webhook]:
    """Talk to the remediator over at most so many connections."""
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEPT_SECONDS)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(url, connector=connector, headers=headers, timeout=_TIMEOUT) as session:
        yield Webhook(session)
