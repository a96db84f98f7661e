"""List, then watch: one collection of the cluster, kept in memory.

It knows how to stay current (pages, bookmarks, an expired version, a dead peer), not what the objects mean: every
object goes to a sink, in the form that is kept of it; of the form in which it came, one page is in memory at most. It
never gives up and never ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import aiohttp
import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    retry_if_not_exception_type,
    wait_random_exponential,
)

from remediator.cluster import Api, decode
from remediator.errors import ExpiredError, NotServedError, Refusal, RemediatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

_LOG = logging.getLogger(__name__)

_PAGE = "500"
_WATCH_SECONDS = 300
# Bookmarks come about once a minute; twice that without a byte means that nobody is there any more.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, connect=4, sock_read=130)
_WATCH_BEGINS_SECONDS = 10.0  # the API server answers a watch at once, before there is an event
_LONGEST_PAUSE = 3.0  # well below OUT_OF_TOUCH_SECONDS

OUT_OF_TOUCH_SECONDS = 10.0
"""How long a collection may be neither listed nor watched before nothing is decided on it any more."""


class Metadata(Protocol):
    """What every object's metadata must hold."""

    @property
    def resource_version(self) -> str:
        """The version of the object, a number."""


class Versioned(Protocol):
    """An object of the cluster, in the form in which it is decoded."""

    @property
    def metadata(self) -> Metadata:
        """Its metadata."""


W = TypeVar("W", bound=Versioned)
"""The form in which an object comes."""

T = TypeVar("T")
"""The form in which it is kept."""


class Sink(Protocol[T]):
    """Where the objects go."""

    def replace(self, objects: list[T], resource_version: str) -> None:
        """Take the whole collection, as it was at that version."""

    def put(self, object_: T) -> None:
        """Take one object that was added or changed."""

    def remove(self, object_: T) -> None:
        """Drop one object that was deleted."""


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Where a list, or one object of it, stands, and the token of the page that follows."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[W], frozen=True):
    """One page of a list."""

    metadata: ListMetadata
    items: list[W]


class _Event(msgspec.Struct, Generic[W], frozen=True):
    type: str
    object: W


class _AnyObject(msgspec.Struct, frozen=True):
    """What may be of interest in an object that is not of the collection: a bookmark, a Status."""

    metadata: ListMetadata = ListMetadata()
    code: int = 0
    message: str = ""


def as_it_came(object_: T) -> T:
    """The form to keep, for objects that are small as they are decoded."""
    return object_


@dataclass(slots=True)
class ListWatch(Generic[W, T]):
    """Keeps `sink` equal to the collection at `path`.

    `kind` is the struct each object is decoded to, and `keep` makes of it what the sink gets. `elapsed` is a monotonic
    clock in seconds. With a `pause`, events are taken in bursts, that many seconds apart at least. One that
    `ends_when_not_served` raises `NotServedError` when there is no such collection, instead of asking for ever.
    """

    api: Api
    path: str
    kind: type[W]
    keep: Callable[[W], T]
    sink: Sink[T]
    query: Mapping[str, str]
    elapsed: Callable[[], float]
    pause: float = 0.0
    ends_when_not_served: bool = False
    # When the list was taken; None while there is none to rely on.
    _listed: float | None = None
    _lost: float | None = None
    _following: asyncio.Timeout | None = None
    _told_nothing: int = 0
    # One decoding a line: the type of an event, with the object already in it.
    _event_type: Any = field(init=False)
    _page_type: Any = field(init=False)

    def __post_init__(self) -> None:
        # Filled in at run time, which is more than a type checker can follow.
        event: Any = _Event
        page: Any = Page
        self._event_type, self._page_type = event[self.kind], page[self.kind]

    @property
    def current(self) -> bool:
        """Whether the sink may be relied on: it was listed, and has not been out of touch for long since."""
        in_touch = self._lost is None or self.elapsed() - self._lost < OUT_OF_TOUCH_SECONDS
        return self._listed is not None and in_touch

    def renew(self, *, older_than: float) -> None:
        """List anew, and be not current until then, unless the list is younger than so many seconds.

        For who must be certain: a watch whose peer is dead looks like one of a collection in which nothing happens.
        """
        if self._listed is None or self.elapsed() - self._listed < older_than:
            return
        self._listed = None
        if self._following is not None:
            self._following.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled. Trouble is logged once per attempt and met with backoff."""
        given_up_on = NotServedError if self.ends_when_not_served else None
        while True:
            listing = patiently("listing", longest=10, path=self.path, given_up_on=given_up_on)
            try:
                version: str = await listing(self._list)
            except NotServedError:
                self._listed = None
                raise
            if await self._follow(version):
                await self._pause()

    async def _follow(self, version: str) -> bool:
        """Watch from one version on, until a new list is needed; False when one is wanted at once."""
        try:
            async with asyncio.timeout(None) as self._following:
                while True:
                    version = await self._watch(version)
                    await self._pause()
        except ExpiredError:
            _LOG.info("watching: the version expired, listing anew", extra={"path": self.path})
        except RemediatorError as error:
            _LOG.warning("watching: listing anew", extra={"path": self.path, "error": str(error)})
        except TimeoutError:
            return False
        finally:
            self._following = None
            # Until there is a new list, however long that cannot be had.
            self._lost = self.elapsed() if self._lost is None else self._lost
        return True

    async def _list(self) -> str:
        """Hand the whole collection to the sink; a page that cannot be had (expired, say) makes it begin anew."""
        objects: list[T] = []
        token = ""
        while True:
            query = dict(self.query) | {"limit": _PAGE} | ({"continue": token} if token else {})
            page: Page[W] | None = await self.api.get(self.path, self._page_type, **query)
            if page is None:
                raise NotServedError(f"listing {self.path}: not served")
            objects += map(self.keep, page.items)
            token = page.metadata.continue_
            if not token:
                _number(page.metadata.resource_version, self.path)
                self.sink.replace(objects, page.metadata.resource_version)
                self._listed, self._lost = self.elapsed(), None
                return page.metadata.resource_version

    async def _watch(self, version: str) -> str:
        self._told_nothing += 1
        # Until the watch is open.
        self._lost = self.elapsed() if self._lost is None else self._lost
        query = dict(self.query) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with asyncio.timeout(_WATCH_BEGINS_SECONDS) as begun:
                async with self.api.stream(self.path, limits=_WATCH_TIMEOUT, pause=self.pause, **query) as lines:
                    begun.reschedule(None)
                    self._lost = None
                    return await self._events(lines, version)
        except TimeoutError as error:
            raise UnavailableError(Refusal.TIMEOUT, f"watching {self.path}: no answer in time") from error

    async def _events(self, lines: AsyncIterator[bytes], version: str) -> str:
        async for line in lines:
            version = self._event(line) or version
            self._told_nothing = 0
        return version

    def _event(self, line: bytes) -> str:
        try:
            event: _Event[Any] = decode(line, self._event_type, self.path)
        except UnavailableError:
            # A bookmark and a Status have too little in them for an object of the collection. So has what is broken.
            event = decode(line, _Event[_AnyObject], self.path)
            if event.type in ("ADDED", "MODIFIED", "DELETED"):
                raise
        if event.type == "ERROR":
            raise self._error(decode(line, _Event[_AnyObject], self.path).object)
        version: str = event.object.metadata.resource_version
        _number(version, self.path)
        match event.type:
            case "ADDED" | "MODIFIED":
                self.sink.put(self.keep(event.object))
            case "DELETED":
                self.sink.remove(self.keep(event.object))
            case _:
                pass  # a bookmark: only its version matters
        return version

    def _error(self, status: _AnyObject) -> ExpiredError | UnavailableError:
        told = f"watching {self.path}: {status.message}"
        return ExpiredError(told) if status.code == HTTPStatus.GONE else UnavailableError(Refusal.SERVER_ERROR, told)

    async def _pause(self) -> None:
        """Wait a little between requests, longer after each watch that told nothing.

        A server that cuts or refuses every watch must not be asked in a tight loop, least of all for whole lists.
        """
        longest = min(0.5 * 2 ** min(max(self._told_nothing - 1, 0), 10), _LONGEST_PAUSE)
        await asyncio.sleep(random.uniform(longest / 5, longest))  # noqa: S311 - spreads load, keeps no secret


def patiently(
    doing: str, *, longest: float, path: str, given_up_on: type[RemediatorError] | None = None
) -> AsyncRetrying:
    """Ask again for ever, at random and growing intervals of at most `longest` seconds; each failure is logged.

    An error of the kind that is `given_up_on` is raised instead.
    """

    def log(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _LOG.warning(f"{doing}: will retry", extra={"path": path, "attempt": state.attempt_number, "error": str(error)})

    retry = retry_if_exception_type(RemediatorError)
    return AsyncRetrying(
        retry=retry & retry_if_not_exception_type(given_up_on) if given_up_on else retry,
        wait=wait_random_exponential(multiplier=0.2, max=longest),
        before_sleep=log,
    )


def _number(version: str, path: str) -> None:
    """Refuse a resource version that is no number: versions are compared, as Kubernetes 1.35 and later document."""
    if not (version.isascii() and version.isdigit()):
        raise UnavailableError(Refusal.UNREADABLE, f"reading {path}: a resourceVersion is no number")
