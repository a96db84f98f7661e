"""The webhook as it runs, on the memory backend, with a clock that stands still."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestServer

from alerts.faults import Effect
from exporter.service.process import SERVER_OPTIONS
from remediator.app import BODY_SECONDS, WEBHOOK, Webhook, make_app
from remediator.assembly import Parts, Terms, assemble
from remediator.audit import AllTraces, Audit
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.node_taint import NodeTaintBackend
from remediator.backends.per_node import PerNodeBackend
from remediator.budget import DEFAULT, Limits
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.credentials import Token
from remediator.election import AlwaysLeads
from remediator.policy import Policy
from tests.remediator.fakes import Clock, FakeCluster, FaultyBackend, Heard, Leads
from tests.remediator.live import USER, Live, now, running
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, Json, body
from tests.stack.pipeline import install

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.test_utils import TestClient
    from pytest_aiohttp import AiohttpClient

    from remediator.metrics import Metrics
    from remediator.records import Record
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

TOKEN = "webhook-token-0123456789"

MakeService = Callable[..., Awaitable["Service"]]
Start = Callable[..., Awaitable[Live]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a sender gets to see."""

    status: int
    text: str
    closes: bool


@dataclass(frozen=True, kw_only=True)
class Service:
    """The running app, what is around it, and short ways to use and to look at it."""

    client: TestClient[Any, Any]
    backend: FaultyBackend
    cluster: FakeCluster
    clock: Clock
    leads: Leads
    heard: Heard
    parts: Parts

    @property
    def metrics(self) -> Metrics:
        """What it exports."""
        return self.parts.metrics

    async def send(self, given_body: bytes, authorization: str | None = f"Bearer {TOKEN}") -> Answer:
        """Post a body as it is."""
        headers = {} if authorization is None else {"Authorization": authorization}
        # As a file: the client warns of large bodies that come as bytes.
        async with self.client.post(WEBHOOK, data=BytesIO(given_body), headers=headers) as response:
            closes = response.headers.get("Connection", "").lower() == "close"
            return Answer(status=response.status, text=await response.text(), closes=closes)

    async def post(self, *alerts: Json, **fields: Any) -> int:
        """Post alerts in one notification; returns the status."""
        return (await self.send(body(*alerts, **fields))).status

    def record(self, fault: str = "hbm", device: int = 3, node: str = NODE) -> Record | None:
        """The record of a fault, if there is one."""
        found = [
            one
            for one in self.backend.records()
            if (one.key.node, one.key.device, one.key.fault) == (node, device, fault)
        ]
        return found[0] if found else None

    def count(self, counter: str, **labels: str) -> float:
        """One of our counters now."""
        value = self.metrics.registry.get_sample_value(f"neuron_remediator_{counter}_total", labels)
        assert value is not None, f"no series {counter} {labels}"
        return value

    def counts(self, counter: str, label: str) -> dict[str, float]:
        """One of our counters by one label, without what is zero."""
        samples = (
            sample
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"neuron_remediator_{counter}_total"
        )
        return {sample.labels[label]: sample.value for sample in samples if sample.value}


class AsServed(TestServer):
    """A server with the options of the real one: the library's own for tests cancels a handler whose client leaves."""

    async def _make_runner(self, **kwargs: Any) -> web.BaseRunner:
        return await super()._make_runner(**{**kwargs, **SERVER_OPTIONS})


@pytest.fixture
def make_service(aiohttp_client: AiohttpClient) -> MakeService:
    """Give a factory of running services: with the default token and no cluster name unless told otherwise."""

    async def make(
        *,
        cluster: str | None = None,
        token: str | None = TOKEN,
        body_seconds: float = BODY_SECONDS,
        limits: Limits = DEFAULT,
        max_effect: Effect = Effect.NO_EXECUTE,
    ) -> Service:
        backend, surroundings, clock, leads, heard = FaultyBackend(), FakeCluster(), Clock(), Leads(), Heard()
        parts = assemble(
            backend=backend,
            held=backend.records,
            surroundings=surroundings,
            leadership=leads,
            terms=Terms(policy=Policy(taint_key=TAINT_KEY, max_effect=max_effect), limits=limits, cluster=cluster),
            traces=AllTraces((heard, Audit())),
            clock=clock,
            elapsed=time.monotonic,
        )
        admitted = None if token is None else Token(token.encode())
        webhook = Webhook(parts.remediator, parts.metrics, admitted, body_seconds=body_seconds)
        client: TestClient[Any, Any] = await aiohttp_client(
            AsServed(make_app(webhook, parts.remediator, parts.metrics))
        )
        return Service(
            client=client,
            backend=backend,
            cluster=surroundings,
            clock=clock,
            leads=leads,
            heard=heard,
            parts=parts,
        )

    return make


@pytest.fixture
async def service(make_service: MakeService) -> Service:
    """Give the service with a token and no cluster name."""
    return await make_service()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Give everything logged so far, with the fields and tracebacks of each record."""
    caplog.set_level("DEBUG")

    def everything() -> str:
        return json.dumps([vars(record) for record in caplog.records], default=str) + caplog.text

    return everything


async def half_open(service: Service, *, length: int = 1000) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the headers of a request and nothing of its body."""
    server = service.client.server
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"POST {WEBHOOK} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
    writer.write(head.encode())
    return reader, writer


@pytest.fixture
async def start(control_plane: ControlPlane, admin: Admin, aiohttp_client: AiohttpClient) -> AsyncIterator[Start]:
    """Give a way to start a remediator, or several, with a node of sixteen devices around it."""
    install(control_plane)
    admin.node(NODE)
    async with AsyncExitStack() as stack:

        async def run(limits: Limits = DEFAULT) -> Live:
            api = await stack.enter_async_context(connect(control_plane.kubeconfig(USER)))
            caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
            backend = PerNodeBackend(
                rules=DeviceTaintRuleBackend(api, caches.records),
                nodes=NodeTaintBackend(api, caches.node_cache, caches.node_records, now),
            )
            parts = assemble(
                backend=backend,
                held=backend.records,
                surroundings=caches,
                fleet=caches,
                leadership=AlwaysLeads(),
                terms=Terms(policy=Policy(taint_key=TAINT_KEY), limits=limits),
                traces=Audit(),
                clock=now,
                elapsed=time.monotonic,
            )
            client: TestClient[Any, Any] = await aiohttp_client(
                AsServed(make_app(Webhook(parts.remediator, parts.metrics, None), parts.remediator, parts.metrics))
            )
            await stack.enter_async_context(running(caches))
            return Live(client, backend, parts.metrics, admin, control_plane)

        yield run


@pytest.fixture
async def live(start: Start) -> Live:
    """Give one running remediator."""
    return await start()
