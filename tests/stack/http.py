"""One blocking HTTP request with JSON in and out, over the standard library.

For tests and the demo, which look at servers from outside; the services themselves use aiohttp.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 15.0


class HTTPError(Exception):
    """A server answered with a status of 400 or above."""

    def __init__(self, request: str, status: int, body: str) -> None:
        super().__init__(f"{request}: expected success, got {status}: {body.strip()}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: status, header fields in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


def request(
    method: str,
    url: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    check: bool = True,
    timeout: float = TIMEOUT_SECONDS,
) -> Response:
    """Send ``body`` (``bytes`` as they are, anything else as JSON) and return the answer.

    ``HTTPError`` on 400 and above unless ``check`` is off; ``OSError`` when the server cannot be reached.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", **(headers or {})}
    try:
        connection.request(method, target, body=sent, headers=fields)
        answer = connection.getresponse()
        received = {name.lower(): value for name, value in answer.getheaders()}
        response = Response(answer.status, received, answer.read())
    except http.client.HTTPException as error:
        raise ConnectionError(f"{method} {url}: {error!r}") from error
    finally:
        connection.close()
    if check and response.status >= http.client.BAD_REQUEST:
        raise HTTPError(f"{method} {url}", response.status, response.text)
    return response


def is_ok(url: str, *, context: ssl.SSLContext | None = None) -> bool:
    """Tell whether ``url`` answers 200 now; connection errors are the caller's."""
    return request("GET", url, context=context, check=False, timeout=5).status == http.client.OK
