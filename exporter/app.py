"""HTTP surface of the exporter: ``/metrics``, health, and a landing page. It must not read any device."""

from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from exporter.collector import SnapshotCollector
from exporter.polling import Poller
from exporter.service.build_info import service_registry
from exporter.service.web import add_health_routes, metrics_handler
from exporter.settings import Settings
from exporter.sources.sysfs import Clock, SysfsSource

_LANDING_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Neuron exporter</title></head>
<body>
<h1>Neuron exporter</h1>
<ul>
<li><a href="/metrics">Metrics</a></li>
<li><a href="/readyz">Readiness</a></li>
<li><a href="/livez">Liveness</a></li>
</ul>
</body>
</html>
"""


def make_poller(settings: Settings, *, clock: Clock | None = None) -> Poller:
    """Make the poller with the sources the settings ask for."""
    clock = clock or Clock()
    expected = frozenset(range(settings.devices_expected))
    sysfs = SysfsSource(
        settings.sysfs_root,
        expected=expected,
        heartbeat_timeout=settings.heartbeat_timeout,
        clock=clock,
    )
    return Poller((sysfs,), expected=expected, interval=settings.refresh_interval, monotonic=clock.monotonic)


def make_app(poller: Poller, *, clock: Clock | None = None, poll: bool = True) -> web.Application:
    """Make the application around a poller, which runs as long as the application does.

    With ``poll`` off, whoever made the poller refreshes it.
    """
    registry = service_registry("neuron_exporter_build_info")
    registry.register(SnapshotCollector(lambda: poller.snapshot, monotonic=(clock or Clock()).monotonic))
    app = web.Application()
    app.router.add_get("/metrics", metrics_handler(registry))
    app.router.add_get("/", _landing_page)
    add_health_routes(app, poller.ready)

    async def polling(_app: web.Application) -> AsyncIterator[None]:
        async with poller.running():
            yield

    if poll:
        app.cleanup_ctx.append(polling)
    return app


async def _landing_page(_request: web.Request) -> web.Response:
    return web.Response(text=_LANDING_PAGE, content_type="text/html")
