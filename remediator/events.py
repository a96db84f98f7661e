"""Kubernetes Events on the Node for changes that people care for, written behind everybody's back.

Events are told, not relied on: what cannot be written in time is dropped and counted, so that an API server in
trouble costs neither memory nor a change. What they say is `remediator.traces`'s.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from exporter.service.logs import Seldom
from remediator.errors import ConflictError, Refusal, RemediatorError, UnavailableError
from remediator.names import SUBDOMAIN_LIMIT
from remediator.records import MANAGER
from remediator.traces import event_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from remediator.cluster import Api
    from remediator.traces import Change, Told

_LOG = logging.getLogger(__name__)

EVENTS = "/api/v1/namespaces/default/events"
"""A Node is in no namespace; its Events are in this one."""

QUEUE_LIMIT = 10_000
WRITERS = 4
"""Events written at once: few, so that the API server's attention goes to rules first."""

_ATTEMPTS = 6
# In seconds; together about as long as an API server takes to come back.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
_LOG_SECONDS = 60.0
_INSTANCE_LIMIT = 128
_FINAL = frozenset({Refusal.FORBIDDEN, Refusal.INVALID, Refusal.NOT_SERVED})
"""What asking again does not mend."""


class Result(StrEnum):
    """What became of an Event; the closed set behind `neuron_remediator_events_total`."""

    OK = "ok"
    FAILED = "failed"
    DROPPED = "dropped"


class _Created(msgspec.Struct, frozen=True):
    """The answer, of which nothing is needed."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An Event that waits to be written. Its name is made once, so that asking again makes no second one."""

    name: str
    told: Told
    action: str
    node: str
    node_uid: str
    at: datetime


class Events:
    """Takes note of changes at once, and writes them as Events while `run` runs.

    `instance` is the name of this process (its Pod's). `clock` is the wall clock (UTC), `elapsed` a monotonic one in
    seconds. `count` is called with a `Result` for each Event, sooner or later. `limit` bounds how many wait, `writers`
    how many are written at once.
    """

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        clock: Callable[[], datetime],
        elapsed: Callable[[], float],
        count: Callable[[str], None],
        limit: int = QUEUE_LIMIT,
        writers: int = WRITERS,
    ) -> None:
        self._api = api
        self._instance = instance[:_INSTANCE_LIMIT] or MANAGER
        self._clock = clock
        self._count = count
        self._writers = writers
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue(limit)
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)

    @property
    def waiting(self) -> int:
        """How many Events wait to be written."""
        return self._queue.qsize()

    def changed(self, change: Change) -> None:
        """Queue the Event of a change, if it has one; what does not fit is dropped. Never blocks, never raises."""
        told = event_of(change)
        if told is None:
            return
        record = change.record
        name = _name(record.key.node)
        try:
            self._queue.put_nowait(_Pending(name, told, change.action, record.key.node, record.node_uid, self._clock()))
        except asyncio.QueueFull:
            self._count(Result.DROPPED)
            self._seldom.warning("queueing an event: dropped, as too many wait", extra={"waiting": self.waiting})

    async def run(self) -> None:
        """Write what is queued until cancelled; what is being written then is dropped."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._writers):
                group.create_task(self._work())

    async def drain(self, seconds: float) -> None:
        """Give what is queued that long to go out while `run` still runs; what is left then is dropped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._queue.join()
        dropped = 0
        while not self._queue.empty():
            self._queue.get_nowait()
            self._queue.task_done()
            self._count(Result.DROPPED)
            dropped += 1
        if dropped:
            _LOG.warning("writing events: dropped at the end, as there was no time", extra={"dropped": dropped})

    async def _work(self) -> None:
        while True:
            pending = await self._queue.get()
            result = Result.DROPPED  # what is cancelled
            try:
                result = await self._write(pending)
            finally:
                self._count(result)
                self._queue.task_done()

    async def _write(self, pending: _Pending) -> Result:
        """Write one Event, asking a few times. Nothing that can go wrong here may end the writer."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            reraise=True,
        )
        body = _body(pending, self._instance)
        try:
            await retrying(self._api.create, EVENTS, body, _Created)
        except ConflictError:
            return Result.OK  # nobody else has this name: an attempt whose answer was lost has made it
        except RemediatorError as error:
            self._failed(pending, str(error))
            return Result.FAILED
        except Exception as error:  # noqa: BLE001 - a bug here must not end the process
            self._failed(pending, f"unexpected {type(error).__name__}")
            return Result.FAILED
        return Result.OK

    def _failed(self, pending: _Pending, error: str) -> None:
        extra = {"node": pending.node, "reason": str(pending.told.reason), "error": error}
        self._seldom.warning("writing an event: failed", extra=extra)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, UnavailableError) and error.refusal not in _FINAL


def _name(node: str) -> str:
    """Name an Event as others do, after its object, with a part that no other one has."""
    unique = secrets.token_hex(16)
    return f"{node[: SUBDOMAIN_LIMIT - len(unique) - 1].rstrip('.-')}.{unique}"


def _body(pending: _Pending, instance: str) -> dict[str, Any]:
    """Write the Event as `kubectl describe node` finds, sorts and shows it.

    It looks for kind, name, UID and no namespace, and sorts by `lastTimestamp`, which newer clients leave out.
    """
    seconds = pending.at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": pending.name, "namespace": "default"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": pending.node,
            "uid": pending.node_uid,
        },
        "type": str(pending.told.level),
        "reason": str(pending.told.reason),
        "message": pending.told.message,
        "action": pending.action,
        "eventTime": pending.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": instance,
    }
