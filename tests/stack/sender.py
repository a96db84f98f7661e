"""A stand-in for how Alertmanager delivers notifications, for more of them at once than one would send.

Assumes of Alertmanager what was seen of it: a 5xx or a broken connection is tried again until told 2xx, anything else
is final; 10 s for an answer; connections are kept. It waits less between attempts, so that a test is not long.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp

WEBHOOK: Final = "/api/v1/alerts"
NO_ANSWER: Final = 0
"""Stands among the statuses for an attempt that ended without one: refused, cut, or no answer in time."""

_TRY_SECONDS = 10.0
_FIRST_WAIT_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0
_SERVER_ERROR = 500


@dataclass
class Delivery:
    """What became of one notification: for each copy the statuses of its attempts, in order."""

    body: bytes
    copies: list[list[int]] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether every copy has been answered 200 in the end."""
        return all(statuses[-1:] == [200] for statuses in self.copies)

    @property
    def statuses(self) -> Counter[int]:
        """How often each status was seen."""
        return Counter(status for statuses in self.copies for status in statuses)


class Sender:
    """Posts notifications to ``urls`` as ``async with Sender(...) as sender``; ``deliveries`` says what became of them.

    ``urls`` are those of one Service address, or of all replicas: then copies and attempts go around them. Each
    notification goes out in ``copies`` at the same time, as from so many Alertmanagers. At most ``connections`` are
    open, and they stay open.
    """

    def __init__(self, *urls: str, token: str, copies: int = 1, deadline: float = 60, connections: int = 50) -> None:
        self._urls: Sequence[str] = [url + WEBHOOK for url in urls]
        self._token = token
        self._copies = copies
        self._deadline = deadline
        self._connections = connections
        self.deliveries: list[Delivery] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=300),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, body: bytes) -> Delivery:
        """Deliver every copy of one notification. ``TimeoutError`` if one is not taken before the deadline."""
        delivery = Delivery(body, [[] for _ in range(self._copies)])
        self.deliveries.append(delivery)
        try:
            async with asyncio.timeout(self._deadline), asyncio.TaskGroup() as group:
                for copy in range(self._copies):
                    group.create_task(self._deliver(delivery, copy))
        except TimeoutError as error:
            seen = dict(delivery.statuses)
            raise TimeoutError(
                f"delivering a notification: not within {self._deadline:g} s; statuses seen {seen}"
            ) from error
        return delivery

    async def send_all(self, bodies: Iterable[bytes]) -> list[Delivery]:
        """Deliver several notifications at the same time."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.send(body)) for body in bodies]
        return [task.result() for task in tasks]

    def statuses(self) -> Counter[int]:
        """How often each status was seen, over all notifications so far."""
        return sum((delivery.statuses for delivery in self.deliveries), Counter[int]())

    async def _deliver(self, delivery: Delivery, copy: int) -> None:
        statuses, wait = delivery.copies[copy], _FIRST_WAIT_SECONDS
        while True:
            url = self._urls[(copy + len(statuses)) % len(self._urls)]
            statuses.append(await self._attempt(url, delivery.body))
            if statuses[-1] != NO_ANSWER and statuses[-1] < _SERVER_ERROR:
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_SECONDS)

    async def _attempt(self, url: str, body: bytes) -> int:
        try:
            # Counted from when there is a connection to use: waiting for one is not the receiver's doing.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TRY_SECONDS, sock_read=_TRY_SECONDS)
            async with self._session.post(url, data=body, timeout=timeout, allow_redirects=False) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return NO_ANSWER
