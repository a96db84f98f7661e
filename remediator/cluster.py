"""The Kubernetes API server: credentials, one request at a time, and the one translation of its errors.

Nothing else in the package sees an HTTP status of the API server or an exception of its client. Bodies go out as
plain dicts and come in as the typed, compact structs that the caller names: the client library's models know
neither DeviceTaintRule v1 nor fields that are newer than they are.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes_asyncio import client, config

from remediator.errors import ConflictError, ExpiredError, NotServedError, Refusal, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

T = TypeVar("T")

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=8, connect=4)
"""A request must end before Alertmanager gives up on the notification behind it (10 s)."""

_LINE_LIMIT = 2**21
"""Longest line of a watch in bytes: etcd holds no object above 1.5 MiB."""

RESOURCE_API = "/apis/resource.k8s.io"

_REFUSALS: dict[int, Refusal] = {
    HTTPStatus.UNAUTHORIZED: Refusal.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: Refusal.FORBIDDEN,
    HTTPStatus.UNPROCESSABLE_ENTITY: Refusal.INVALID,
    HTTPStatus.BAD_REQUEST: Refusal.INVALID,
    HTTPStatus.TOO_MANY_REQUESTS: Refusal.THROTTLED,
}


class _Details(msgspec.Struct, frozen=True):
    """What a Status is about."""

    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    """The part of a Kubernetes Status that may be logged."""

    message: str = ""
    reason: str = ""
    details: _Details | None = None

    @property
    def says_it_is_missing(self) -> bool:
        """Whether it says that there is no such object; it names none where such objects are not served."""
        return self.reason == "NotFound" and bool(self.details and self.details.name)


class _Uid(msgspec.Struct, frozen=True):
    uid: str = ""


class _Deleted(msgspec.Struct, frozen=True):
    """What a DELETE answers: a Status, or the deleted object (whose own status is an object, not a word)."""

    status: str | dict[str, Any] = ""
    metadata: _Uid = _Uid()


class Api:
    """Requests to the API server. Raises `ConflictError`, `ExpiredError` or `UnavailableError`, nothing else."""

    def __init__(self, session: aiohttp.ClientSession, configuration: client.Configuration) -> None:
        self._session = session
        self._configuration = configuration

    async def get(self, path: str, decode_as: type[T], **query: str) -> T | None:
        """Read one object or list; None when the API server itself says it is not there, never a proxy's 404."""
        body = await self._request("GET", path, query=query, missing_ok=True)
        return None if body is None else decode(body, decode_as, path)

    async def create(self, path: str, body: Mapping[str, Any], decode_as: type[T], **query: str) -> T:
        """Create an object and return it as the server stored it."""
        return decode(await self._request("POST", path, query=query, body=body) or b"", decode_as, path)

    async def apply(self, path: str, body: Mapping[str, Any], decode_as: type[T], **query: str) -> T:
        """Server-side apply an object and return it as the server stored it."""
        content_type = "application/apply-patch+yaml"
        answer = await self._request("PATCH", path, query=query, body=body, content_type=content_type)
        return decode(answer or b"", decode_as, path)

    async def replace(self, path: str, body: Mapping[str, Any], decode_as: type[T]) -> T:
        """Replace an object by `body`, which names the version it is based on; returns it as the server stored it."""
        return decode(await self._request("PUT", path, body=body) or b"", decode_as, path)

    async def merge(self, path: str, change: Mapping[str, Any], decode_as: type[T], **query: str) -> T | None:
        """Merge a change into an object (RFC 7386); None when the API server itself says it is not there."""
        content_type = "application/merge-patch+json"
        answer = await self._request(
            "PATCH", path, query=query, body=change, content_type=content_type, missing_ok=True
        )
        return None if answer is None else decode(answer, decode_as, path)

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        """Delete exactly that version of exactly that object; one already gone is no error.

        Only the API server's own answer counts: the Status of a success, or the object as it was.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        answer = await self._request("DELETE", path, body=options, missing_ok=True)
        if answer is not None:
            told = decode(answer, _Deleted, f"DELETE {path}")
            if told.status != "Success" and told.metadata.uid != uid:
                raise UnavailableError(Refusal.UNREADABLE, f"DELETE {path}: the answer is no success")

    @asynccontextmanager
    async def stream(
        self, path: str, *, limits: aiohttp.ClientTimeout, pause: float = 0.0, **query: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and hand out its lines; with a `pause`, in bursts that many seconds apart."""
        async with _translated(f"watching {path}"):
            response = await self._open("GET", path, query=query, limits=limits)
            async with response:
                if response.status != HTTPStatus.OK:
                    _raise_for_status(response, await response.read(), f"watching {path}")
                yield _bursts(response, pause) if pause else aiter(response.content)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        missing_ok: bool = False,
    ) -> bytes | None:
        doing = f"{method} {path}"
        async with _translated(doing):
            response = await self._open(
                method, path, query=query or {}, body=body, content_type=content_type, limits=REQUEST_TIMEOUT
            )
            async with response:
                answer = await response.read()
                missing = response.status == HTTPStatus.NOT_FOUND and _status(answer).says_it_is_missing
                if missing_ok and missing:
                    return None
                _raise_for_status(response, answer, doing)
                return answer

    async def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        # Asked for each time: the configuration reads a rotated token anew.
        if authorization := await self._configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = authorization
        return await self._session.request(
            method,
            f"{self._configuration.host}{path}{'?' if query else ''}{urlencode(query)}",
            data=None if body is None else msgspec.json.encode(body),
            headers=headers,
            timeout=limits,
            proxy=self._configuration.proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
            allow_redirects=False,
        )


async def _bursts(response: aiohttp.ClientResponse, pause: float) -> AsyncIterator[bytes]:
    """Lines, with nothing taken from the connection for `pause` seconds after the first of a burst.

    What a line costs is mostly the waking up for it. The transport alone is paused: the library's parser may not be
    when a response has just ended.
    """
    loop = asyncio.get_running_loop()
    connection = response.connection
    transport = None if connection is None else connection.transport
    paused: asyncio.TimerHandle | None = None

    def go_on() -> None:
        nonlocal paused
        paused = None
        if isinstance(transport, asyncio.ReadTransport) and not transport.is_closing():
            transport.resume_reading()

    try:
        async for line in response.content:
            if paused is None and isinstance(transport, asyncio.ReadTransport) and not transport.is_closing():
                transport.pause_reading()
                paused = loop.call_later(pause, go_on)
            yield line
    finally:
        if paused is not None:
            paused.cancel()
            # The library may use the connection again.
            go_on()


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[Api]:
    """Connect with the Pod's service account, or with a kubeconfig file when one is named."""
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        configuration.proxy = configuration.proxy or _proxy_of_environment(str(configuration.host))
        # Sets TLS up, from files and text that may be anything.
        api_client = client.ApiClient(configuration)
    except Exception as error:
        raise UnavailableError(Refusal.UNAUTHORIZED, _no_credentials(kubeconfig, error)) from error
    # The client's own requests copy each body and ask a thread for proxies and netrc, twice: half as long again as the
    # API server takes for a create. Its credentials and its connector, with TLS set up, are what is used of it.
    async with api_client:
        connector = api_client.rest_client.pool_manager.connector
        async with aiohttp.ClientSession(
            connector=connector, connector_owner=False, read_bufsize=_LINE_LIMIT
        ) as session:
            yield Api(session, configuration)


def _no_credentials(kubeconfig: Path | None, error: Exception) -> str:
    if kubeconfig is None:
        return "reading the cluster's credentials: this is no Pod with a service account; expected --kubeconfig=FILE"
    if isinstance(error, config.ConfigException):
        reason = str(error) if kubeconfig.exists() else "there is no such file"
    elif isinstance(error, OSError):
        # A login command that is not installed, a file it names that is not there, a certificate that is none.
        named = f" '{error.filename}'" if isinstance(error.filename, str) else ""
        reason = f"it needs{named} what cannot be used: {error.strerror or type(error).__name__}"
    else:
        # The loader lets pass whatever a file that is no kubeconfig makes its parser and its dicts raise.
        reason = "it is no kubeconfig"
    return f"reading the cluster's credentials from '{kubeconfig}': {reason}"


def _proxy_of_environment(url: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY ask for, looked up once."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def object_path(collection: str, name: str) -> str:
    """Path of one object of a collection."""
    return f"{collection}/{quote(name, safe='')}"


@asynccontextmanager
async def _translated(doing: str) -> AsyncIterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise UnavailableError(Refusal.TIMEOUT, f"{doing}: no answer in time") from error
    except aiohttp.ClientConnectorError as error:
        raise UnavailableError(Refusal.UNREACHABLE, f"{doing}: {str(error)[:256]}") from error
    except (aiohttp.ClientError, HttpProcessingError, OSError, asyncio.IncompleteReadError) as error:
        raise UnavailableError(Refusal.UNREACHABLE, f"{doing}: {type(error).__name__}") from error


def _raise_for_status(response: aiohttp.ClientResponse, answer: bytes, doing: str) -> None:
    if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    status = _status(answer)
    message = f"{doing}: {response.status} {status.message[:256] or status.reason}".rstrip()
    if response.status == HTTPStatus.CONFLICT:
        raise ConflictError(message)
    if response.status == HTTPStatus.GONE:
        raise ExpiredError(message)
    if response.status == HTTPStatus.NOT_FOUND:
        raise NotServedError(message)
    raise UnavailableError(_REFUSALS.get(response.status, Refusal.SERVER_ERROR), message)


def _status(answer: bytes) -> _Status:
    try:
        return msgspec.json.decode(answer, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # A proxy's page, not the API server's answer: its text is nobody's business in a log.
        return _Status()


def decode(body: bytes | msgspec.Raw, decode_as: type[T], path: str) -> T:
    """Decode what the API server sent; raises `UnavailableError` when it does not fit the struct."""
    try:
        return msgspec.json.decode(body, type=decode_as)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnavailableError(Refusal.UNREADABLE, f"reading {path}: {str(error)[:256]}") from error
