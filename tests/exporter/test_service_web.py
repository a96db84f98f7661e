"""Metrics, health routes, and the life of a server, over real sockets."""

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from exporter.service.build_info import service_registry, version
from exporter.service.parsers import Address
from exporter.service.process import StartError, serve
from exporter.service.web import add_health_routes, metrics_handler

# What Prometheus 3.5 and 2.42 send.
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Failing(Collector):
    """Fails while ``failing``, after its first family, as a half-built page would."""

    failing = False

    def collect(self) -> Iterator[Metric]:
        """Yield nothing, or fail."""
        yield from ()
        if self.failing:
            raise RuntimeError("boom")


class Service:
    """One running server with a metrics page and a switch for readiness."""

    def __init__(self) -> None:
        self.registry = service_registry("some_build_info")
        self.failing = Failing()
        self.registry.register(self.failing)
        Counter("some_things", "Things.", registry=self.registry).inc()
        self.reason: str | None = "not yet"
        self.url = ""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.router.add_get("/metrics", metrics_handler(service.registry))
    add_health_routes(app, lambda: service.reason)
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, Address("127.0.0.1", 0), stop=stop, started=started.set_result))
    service.url = f"http://{await started}"
    yield service
    stop.set()
    await task


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_ACCEPT, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=abc", OPENMETRICS),
        ("application/openmetrics-text; version=99.x", OPENMETRICS),
        ("text/plain; version=1.0.0", TEXT),
        ("*/*", TEXT),
        ("\N{SNOWMAN}", TEXT),
    ],
)
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_the_page_is_complete_and_says_what_it_is(
    service: Service, client: aiohttp.ClientSession, accept: str, content_type: str, encoding: str
) -> None:
    headers = {"Accept": accept, "Accept-Encoding": encoding}
    async with client.get(f"{service.url}/metrics?name[]=nothing", headers=headers) as response:
        body = await response.read()
        assert response.status == 200
        assert response.headers["Content-Type"] == content_type
        assert int(response.headers["Content-Length"]) == len(body)
        assert response.headers.get("Content-Encoding", "identity") == encoding
    page = (gzip.decompress(body) if encoding == "gzip" else body).decode()
    parse = parse_openmetrics if content_type == OPENMETRICS else parse_text
    samples = {sample.name: sample for family in parse(page) for sample in family.samples}
    assert samples["some_build_info"].labels["version"] == version()
    assert samples["some_things_total"].value == 1
    assert "process_resident_memory_bytes" in samples
    assert not [name for name in samples if name.endswith("_created")]


async def test_a_collector_that_fails_costs_its_scrape_and_one_log_line(
    service: Service, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    service.failing.failing = True
    async with client.get(f"{service.url}/metrics") as response:
        assert response.status == 500
        assert "some_things" not in await response.text()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    service.failing.failing = False
    async with client.get(f"{service.url}/metrics") as response:
        assert response.status == 200


async def test_liveness_and_readiness(service: Service, client: aiohttp.ClientSession) -> None:
    async def get(route: str) -> tuple[int, str]:
        async with client.get(service.url + route) as response:
            return response.status, await response.text()

    for route in ("/livez", "/-/healthy"):
        assert await get(route) == (200, "ok\n")
    for route in ("/readyz", "/-/ready"):
        assert await get(route) == (503, "not yet\n")
    service.reason = None
    for route in ("/readyz", "/-/ready"):
        assert await get(route) == (200, "ok\n")


async def test_a_client_that_goes_while_it_is_written_to_leaves_no_trace(
    service: Service, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Symptom: a client gone while the page is written costs a traceback for each scrape."""
    address = service.url.removeprefix("http://").split(":")
    big = Counter("big", "Big.", ("label",), registry=service.registry)
    for number in range(5_000):
        big.labels(f"{number:0100}")
    requests = (b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", b"\x16\x03\x01\x00")
    for number in range(100):
        # Each one costs a page of 1 MB, so only a few are allowed to have it written.
        request = requests[1] if number % 10 == 0 else requests[2 * (number % 2)]
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(request)
        await writer.drain()
        writer.transport.abort()
    async with client.get(f"{service.url}/livez") as response:
        assert response.status == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) < 5


async def test_an_address_in_use_is_one_sentence(service: Service) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    with pytest.raises(StartError, match=f"listening on '127.0.0.1:{port}': address already in use"):
        await serve(web.Application(), Address("127.0.0.1", port))


async def test_a_request_under_way_is_answered_before_the_end() -> None:
    entered, release, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="done")

    app = web.Application()
    app.router.add_get("/", slow)
    started = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, Address("127.0.0.1", 0), stop=stop, started=started.set_result))
    url = f"http://{await started}"
    async with aiohttp.ClientSession() as session:

        async def fetch() -> str:
            async with session.get(url) as response:
                return await response.text()

        answer = asyncio.create_task(fetch())
        await entered.wait()
        stop.set()
        await asyncio.sleep(0)
        release.set()
        assert await answer == "done"
    await server


def test_the_registry_of_a_service_is_its_own() -> None:
    assert isinstance(service_registry("a_build_info"), CollectorRegistry)
    assert service_registry("a_build_info").get_sample_value("process_start_time_seconds")
