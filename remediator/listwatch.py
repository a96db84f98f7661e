"""List, then watch: one collection of the cluster, kept in memory.

It knows how to stay current (pages, bookmarks, an expired version, a dead peer), not what the objects mean: every
object goes to a sink. It never gives up and never ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from remediator.cluster import Api, decode
from remediator.errors import ExpiredError, Refusal, RemediatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOG = logging.getLogger(__name__)

_PAGE = "500"
_WATCH_SECONDS = 300
# Bookmarks come about once a minute; twice that without a byte means that nobody is there any more.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, connect=4, sock_read=130)

OUT_OF_TOUCH_SECONDS = 10.0
"""How long a collection may be neither listed nor watched before nothing is decided on it any more."""

T = TypeVar("T")


class Sink(Protocol[T]):
    """Where the objects go."""

    def replace(self, objects: list[T], resource_version: str) -> None:
        """Take the whole collection, as it was at that version."""

    def put(self, object_: T) -> None:
        """Take one object that was added or changed."""

    def remove(self, object_: T) -> None:
        """Drop one object that was deleted."""


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw]


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


@dataclass(slots=True)
class ListWatch(Generic[T]):
    """Keeps `sink` equal to the collection at `path`; `kind` is the struct each object is decoded to.

    `elapsed` is a monotonic clock in seconds.
    """

    api: Api
    path: str
    kind: type[T]
    sink: Sink[T]
    query: Mapping[str, str]
    elapsed: Callable[[], float]
    _listed: bool = False
    _lost: float | None = None

    @property
    def current(self) -> bool:
        """Whether the sink may be relied on: it was listed, and has not been out of touch for long since."""
        return self._listed and (self._lost is None or self.elapsed() - self._lost < OUT_OF_TOUCH_SECONDS)

    async def run(self) -> None:
        """List and watch until cancelled. Trouble is logged once per attempt and met with backoff."""
        while True:
            version: str = await patiently("listing", longest=10, path=self.path)(self._list)
            self._listed, self._lost = True, None
            await self._follow(version)
            self._lost = self.elapsed()
            await _pause()

    async def _follow(self, version: str) -> None:
        """Watch from one version on, until a new list is needed."""
        try:
            while True:
                version = await self._watch(version)
                await _pause()
        except ExpiredError:
            _LOG.info("watching: the version expired, listing anew", extra={"path": self.path})
        except RemediatorError as error:
            _LOG.warning("watching: listing anew", extra={"path": self.path, "error": str(error)})

    async def _list(self) -> str:
        objects: list[T] = []
        token = ""
        while True:
            query = dict(self.query) | {"limit": _PAGE} | ({"continue": token} if token else {})
            page = await self.api.get(self.path, _Page, **query)
            if page is None:
                raise UnavailableError(Refusal.NOT_SERVED, f"listing {self.path}: not served")
            objects += [decode(item, self.kind, self.path) for item in page.items]
            token = page.metadata.continue_
            if not token:
                _number(page.metadata.resource_version, self.path)
                self.sink.replace(objects, page.metadata.resource_version)
                return page.metadata.resource_version

    async def _watch(self, version: str) -> str:
        query = dict(self.query) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async with self.api.stream(self.path, limits=_WATCH_TIMEOUT, **query) as lines:
            async for line in lines:
                version = self._event(line) or version
        return version

    def _event(self, line: bytes) -> str:
        event = decode(line, _Event, self.path)
        if event.type == "ERROR":
            raise self._error(decode(event.object, _Status, self.path))
        version = decode(event.object, _Versioned, self.path).metadata.resource_version
        _number(version, self.path)
        match event.type:
            case "ADDED" | "MODIFIED":
                self.sink.put(decode(event.object, self.kind, self.path))
            case "DELETED":
                self.sink.remove(decode(event.object, self.kind, self.path))
            case _:
                pass  # a bookmark: only its version matters
        return version

    def _error(self, status: _Status) -> ExpiredError | UnavailableError:
        told = f"watching {self.path}: {status.message}"
        return ExpiredError(told) if status.code == HTTPStatus.GONE else UnavailableError(Refusal.SERVER_ERROR, told)


def patiently(doing: str, *, longest: float, path: str) -> AsyncRetrying:
    """Ask again for ever, at random and growing intervals of at most `longest` seconds; each failure is logged."""

    def log(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _LOG.warning(f"{doing}: will retry", extra={"path": path, "attempt": state.attempt_number, "error": str(error)})

    return AsyncRetrying(
        retry=retry_if_exception_type(RemediatorError),
        wait=wait_random_exponential(multiplier=0.2, max=longest),
        before_sleep=log,
    )


def _number(version: str, path: str) -> None:
    """Refuse a resource version that is no number: versions are compared, as Kubernetes 1.35 and later document."""
    if not (version.isascii() and version.isdigit()):
        raise UnavailableError(Refusal.UNREADABLE, f"reading {path}: a resourceVersion is no number")


async def _pause() -> None:
    """Wait a little between requests: a server that cuts every watch must not be asked in a tight loop."""
    await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311 - spreads load, keeps no secret
