"""HTTP endpoints every service has: metrics in both exposition formats, liveness and readiness.

It must not decide what is exported or when a service is ready: both are handed in.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPENMETRICS: Final = "application/openmetrics-text"
_LOG: Final = logging.getLogger(__name__)


def metrics_handler(registry: CollectorRegistry) -> Handler:
    """Make the handler of ``/metrics``: the whole registry, or a 500 without samples if a collector raises.

    ``name[]`` filters are not honoured: one that matches nothing would answer an empty page with 200, and
    every series would go stale behind a healthy ``up``.
    """
    # They would appear as extra gauges in the text format, one for each counter and label set.
    disable_created_metrics()  # type: ignore[no-untyped-call]

    async def metrics(request: web.Request) -> web.StreamResponse:
        encode, content_type = _encoder(",".join(request.headers.getall(hdrs.ACCEPT, [])))
        try:
            page = encode(registry)
        except Exception:  # noqa: BLE001 - collectors are foreign code; one that fails costs its scrape, not the service
            _LOG.exception("writing the metrics page: a collector failed")
            return web.Response(status=500, text="writing the metrics page: a collector failed; see the log\n")
        response = web.Response(body=page, headers={hdrs.CONTENT_TYPE: content_type})
        response.enable_compression()
        return response

    return metrics


def add_health_routes(app: web.Application, ready: Callable[[], str | None]) -> None:
    """Add ``/livez`` and ``/-/healthy`` (200 while the loop runs), ``/readyz`` and ``/-/ready``.

    ``ready`` returns None when the service can do its work, else the reason why not, served with 503.
    """

    async def alive(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readiness(_request: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=f"{reason}\n")

    for route in ("/livez", "/-/healthy"):
        app.router.add_get(route, alive)
    for route in ("/readyz", "/-/ready"):
        app.router.add_get(route, readiness)


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Choose one of two formats: OpenMetrics 1.0 for who names it, the text format for everybody else.

    The library would echo any version the client asks for into the Content-Type, and fail on some.
    """
    offered = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return choose_encoder(_OPENMETRICS if _OPENMETRICS in offered else "")
