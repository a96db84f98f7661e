"""HTTP surface of the remediator: the webhook, metrics, health.

It checks who asks and what was sent, and turns verdicts into status codes. The codes are a contract with
Alertmanager, which retries 5xx only: 200 done or not our business, 503 ask again, 4xx asking again cannot help.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from exporter.service.logs import Seldom
from exporter.service.web import add_health_routes, metrics_handler
from remediator.errors import NotificationError, UnavailableError
from remediator.notification import parse

if TYPE_CHECKING:
    from remediator.credentials import Token
    from remediator.metrics import Metrics
    from remediator.remediate import Remediator

_LOG = logging.getLogger(__name__)

WEBHOOK = "/api/v1/alerts"
BODY_LIMIT = 16 * 1024 * 1024
"""A group of 2,500 alerts is 1.5 MB; the server's own default of 1 MiB would lose it for good."""

BODY_SECONDS = 4.0
"""A body must arrive within this time; a sender that stalls must not hold a connection for ever."""

ANSWER_SECONDS = 9.0
"""Body and work together: Alertmanager gives up after 10 s and posts again while we would still be at work."""

LOG_SECONDS = 10.0
"""Who sends rubbish, or has no token, fills no log: one line of a kind in this time, with the number left out."""

Answer = tuple[str, web.Response]


class Webhook:
    """The handler of notifications. `token` is None when everybody may send."""

    def __init__(
        self, remediator: Remediator, metrics: Metrics, token: Token | None, *, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._remediator = remediator
        self._metrics = metrics
        self._token = token
        self._body_seconds = body_seconds
        self._seldom = Seldom(_LOG, LOG_SECONDS, time.monotonic)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                result, response = await self._answer(request)
        except TimeoutError:
            result, response = "failed", _closing(HTTPStatus.SERVICE_UNAVAILABLE, "not done in time: ask again")
        self._metrics.notifications.labels(result).inc()
        if self._remediator.not_leading() is not None:
            # Leadership was lost meanwhile: the sender must not stay.
            response.force_close()
        return response

    async def _answer(self, request: web.Request) -> Answer:
        if self._token is not None and not self._token.admits(request.headers.get(hdrs.AUTHORIZATION, "")):
            self._seldom.warning("notification refused: no or wrong bearer token", extra={"remote": request.remote})
            return "unauthorized", _closing(HTTPStatus.UNAUTHORIZED, "expected the bearer token of the webhook")
        if (reason := self._remediator.not_ready()) is not None:
            return "not_ready", _closing(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        if (reason := self._remediator.not_leading()) is not None:
            return "not_leading", _closing(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        body = await self._body(request)
        if not isinstance(body, bytes):
            return body
        try:
            notification = parse(body)
        except NotificationError as error:
            self._seldom.warning("notification refused", extra={"error": str(error)})
            return "malformed", web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{error}\n")
        try:
            await self._remediator.handle(notification)
        except UnavailableError as error:
            return "failed", _closing(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.refusal}: ask again")
        return "accepted", web.Response(text="ok\n")

    async def _body(self, request: web.Request) -> bytes | Answer:
        try:
            async with asyncio.timeout(self._body_seconds):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            text = f"the body is too large; expected at most {BODY_LIMIT} bytes"
            return "too_large", _closing(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        except TimeoutError:
            text = f"the body did not arrive within {self._body_seconds:g} s"
            return "timeout", _closing(HTTPStatus.REQUEST_TIMEOUT, text)
        except (web.RequestPayloadError, ConnectionError):
            # Nobody is left to read the answer; the library wants one all the same.
            return "disconnected", _closing(HTTPStatus.BAD_REQUEST, "the body is not complete")


def _closing(status: HTTPStatus, sentence: str) -> web.Response:
    """Answer and close: an Alertmanager whose connection is kept stays with this replica for good."""
    response = web.Response(status=status, text=f"{sentence}\n")
    response.force_close()
    return response


def make_app(webhook: Webhook, remediator: Remediator, metrics: Metrics) -> web.Application:
    """Wire the routes."""
    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_post(WEBHOOK, webhook.answer)
    app.router.add_get("/metrics", metrics_handler(metrics.registry))
    add_health_routes(app, remediator.not_ready)
    return app
