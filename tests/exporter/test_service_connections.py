"""How many connections a server keeps and for how long, over real sockets."""

import asyncio
import contextlib
import logging
import resource
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import web

from exporter.service.connections import Connections, Limits
from exporter.service.parsers import Address
from exporter.service.process import serve
from tests.stack.process import wait_for

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
BEGINNINGS = [b"", b"G", b"GET / HTTP/1.1\r\nHost: h\r\nX-Half: ", b"\r\n"]
LONG = 3_000.0
DEADLINE = 20


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        """Send without waiting for anything."""
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Read one response."""
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def ask(self) -> tuple[int, bytes]:
        """Send a request and read the response."""
        self.send(REQUEST)
        return await self.answer()

    async def rest(self) -> bytes:
        """Read until the server ends the connection."""
        received = bytearray()
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    received += data
        return bytes(received)


class Served:
    """A running server and its clients."""

    def __init__(
        self, address: Address, stop: asyncio.Event, task: asyncio.Task[None], connections: Connections
    ) -> None:
        self.address, self.stop, self.task, self.connections = address, stop, task, connections
        self.clients: list[Client] = []

    async def client(self, beginning: bytes = b"") -> Client:
        """Connect and send the beginning of something."""
        client = Client(*await asyncio.open_connection(self.address.host, self.address.port))
        self.clients.append(client)
        client.send(beginning)
        return client

    async def header_limit(self) -> None:
        """Wait until a connection opened now has been closed because its header did not come."""
        assert await (await self.client()).rest() == b""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


@asynccontextmanager
async def serving(handler: Handler = hello, *, shutdown_timeout: float = 10, **limits: float) -> AsyncIterator[Served]:
    app = web.Application()
    app.router.add_route("*", "/", handler)
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    given = Limits(**{"connections": 100, "header_seconds": LONG, "idle_seconds": LONG, **limits})  # type: ignore[arg-type]
    connections = Connections(given)
    task = asyncio.create_task(
        serve(
            app,
            Address("127.0.0.1", 0),
            stop=stop,
            started=started.set_result,
            connections=connections,
            shutdown_timeout=shutdown_timeout,
        )
    )
    served = Served(await started, stop, task, connections)
    try:
        yield served
    finally:
        stop.set()
        await task
        for client in served.clients:
            client.writer.transport.abort()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Callable[[], bool], what: str) -> None:
    async def asked() -> bool:
        return condition()

    await wait_for(asked, timeout=DEADLINE, what=what)


async def until_descriptors(at_most: int) -> None:
    await until(lambda: descriptors() <= at_most, f"at most {at_most} open descriptors")


def troubles(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged beyond the two messages a crowd may cause."""
    expected = ("connection refused: ", "connection without a request closed: ")
    return [
        record.getMessage()
        for record in caplog.records
        if record.exc_info or (record.levelno >= logging.WARNING and not record.getMessage().startswith(expected))
    ]


async def test_a_crowd_of_half_open_connections_does_not_keep_others_out(caplog: pytest.LogCaptureFixture) -> None:
    """Symptom: a thousand connections that send nothing, and no webhook is taken any more."""
    before = descriptors()
    async with serving(connections=100, header_seconds=2) as served:
        kept = await served.client()
        assert await kept.ask() == (200, b"hello")
        crowd = []
        for number in range(600):
            crowd.append(await served.client(BEGINNINGS[number % len(BEGINNINGS)]))
            if number % 50 == 0:
                assert await (await served.client()).ask() == (200, b"hello")
        # Both ends of a connection are in this process.
        await until_descriptors(before + 700)
        assert await kept.ask() == (200, b"hello")
        assert {await client.rest() for client in crowd} == {b""}
        assert await kept.ask() == (200, b"hello")
        for client in served.clients:
            client.writer.transport.abort()
        await until_descriptors(before + 3)
        assert len(caplog.records) < 10
    await until_descriptors(before)
    assert troubles(caplog) == []


async def test_a_header_that_trickles_has_no_more_time_than_another() -> None:
    loop = asyncio.get_running_loop()
    async with serving(header_seconds=0.5) as served:
        began = loop.time()
        client = await served.client(b"GET / HTTP/1.1\r\nX-Long: ")
        ended = asyncio.create_task(client.rest())
        while not ended.done():
            client.send(b"x")
            await asyncio.wait([ended], timeout=0.02)
        assert await ended == b""
        assert 0.5 <= loop.time() - began < 5


async def test_a_connection_is_kept_between_requests_for_longer_than_a_header_may_take() -> None:
    async with serving(header_seconds=0.1) as served:
        client = await served.client()
        for _ in range(3):
            assert await client.ask() == (200, b"hello")
            await served.header_limit()


@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_after_a_response_a_connection_without_another_request_is_closed(beginning: bytes) -> None:
    async with serving(header_seconds=0.1, idle_seconds=0.5) as served:
        client = await served.client()
        assert await client.ask() == (200, b"hello")
        client.send(beginning)
        await served.header_limit()
        assert not client.reader.at_eof()
        assert await client.rest() == b""


async def test_a_slow_body_is_the_business_of_its_handler() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with serving(echo, header_seconds=0.1, idle_seconds=0.1) as served:
        client = await served.client(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")
        for letter in (b"s", b"l", b"o", b"w"):
            await served.header_limit()
            client.send(letter)
        assert await client.answer() == (200, b"slow")


async def test_a_response_waits_for_a_client_that_reads_slowly() -> None:
    chunk, written = b"x" * 65_536, []

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000 * len(chunk)
        await response.prepare(request)
        for number in range(1000):
            await response.write(chunk)
            written.append(number)
        return response

    async with serving(stream, header_seconds=0.1) as served:
        client = await served.client(REQUEST)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: bool(written), "the beginning of the response")
        await served.header_limit()
        assert len(written) < 1000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await client.answer() == (200, 1000 * chunk)


async def test_who_does_not_read_the_response_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    big = b"x" * 50_000_000

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=big)

    before = descriptors()
    async with serving(page, header_seconds=0.1, idle_seconds=0.3) as served:
        client = await served.client(REQUEST)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        # The listener, and the client's end.
        await until(lambda: descriptors() == before + 3, "the connection")
        await until_descriptors(before + 2)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.rest()) < len(big)
    assert troubles(caplog) == []


async def test_who_does_not_read_the_response_does_not_outlast_the_server() -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 50_000_000)

    before = descriptors()
    async with serving(page, shutdown_timeout=0.1) as served:
        client = await served.client(REQUEST)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: descriptors() == before + 3, "the connection")
        served.stop.set()
        await served.task
        await until_descriptors(before + 1)


async def test_one_too_many_is_closed_at_once_and_requests_under_way_are_not(caplog: pytest.LogCaptureFixture) -> None:
    under_way, release = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        under_way.release()
        await release.wait()
        return web.Response(text="done")

    async with serving(slow, connections=3) as served:
        clients = [await served.client(REQUEST) for _ in range(3)]
        for _ in clients:
            await under_way.acquire()
        for _ in range(20):
            assert await (await served.client(REQUEST)).rest() == b""
        release.set()
        assert [await client.answer() for client in clients] == [(200, b"done")] * 3
        # None of the refused is counted.
        assert [await client.ask() for client in clients] == [(200, b"done")] * 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "connection refused: there are too many, all with a request"
    ]
    assert troubles(caplog) == []


async def test_who_holds_many_connections_loses_his_own() -> None:
    async with serving(connections=10) as served:
        # All places are taken by who sent a request once; the longest idle gives way.
        idle = [await served.client() for _ in range(10)]
        for client in idle:
            assert await client.ask() == (200, b"hello")
        assert await (await served.client()).ask() == (200, b"hello")
        assert await idle[0].rest() == b""
        # A crowd that sends nothing comes on top of it: it gets half of the places, and takes them from itself.
        crowd = [await served.client() for _ in range(50)]
        for client in crowd[:45]:
            assert await client.rest() == b""
        for client in crowd[45:]:
            assert await client.ask() == (200, b"hello")
        for client in idle[6:]:
            assert await client.ask() == (200, b"hello")
        assert await (await served.client()).ask() == (200, b"hello")


async def test_who_has_left_is_not_counted() -> None:
    async with serving(connections=2) as served:
        kept = await served.client()
        assert await kept.ask() == (200, b"hello")
        before = descriptors()
        for beginning in (*BEGINNINGS, REQUEST) * 4:
            client = await served.client(beginning)
            if beginning == REQUEST:
                assert await client.answer() == (200, b"hello")
            client.writer.transport.abort()
            await until_descriptors(before)
        assert await kept.ask() == (200, b"hello")


async def test_who_has_left_during_a_request_does_not_give_way_to_anybody() -> None:
    under_way, release, done = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        under_way.release()
        await release.wait()
        done.set()
        return web.Response(text="done")

    async with serving(slow, connections=2) as served:
        before = descriptors()
        gone = await served.client(REQUEST)
        await under_way.acquire()
        gone.writer.transport.abort()
        await until_descriptors(before)
        release.set()
        await done.wait()
        release.clear()
        clients = [await served.client(REQUEST) for _ in range(2)]
        for _ in clients:
            await under_way.acquire()
        assert await (await served.client(REQUEST)).rest() == b""
        release.set()
        assert [await client.answer() for client in clients] == [(200, b"done")] * 2


async def test_a_loop_that_was_held_up_cuts_nobody_whose_header_has_come() -> None:
    async with serving(header_seconds=0.2) as served:
        await served.header_limit()
        client = await served.client()
        first = await served.client()
        assert await first.ask() == (200, b"hello")  # so the other one has been accepted
        client.send(REQUEST)
        threading.Event().wait(0.5)
        assert await client.answer() == (200, b"hello")


async def test_idle_connections_are_closed_on_demand_and_no_others() -> None:
    """Symptom: after a change of leaders Alertmanager stays on its connection to the one that leads no more."""
    under_way, release = asyncio.Semaphore(0), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if "Slow" in request.headers:
            under_way.release()
            await release.wait()
        return web.Response(text="done")

    async with serving(answer) as served:
        idle = [await served.client() for _ in range(3)]
        for client in idle:
            assert await client.ask() == (200, b"done")
        busy = await served.client()
        assert await busy.ask() == (200, b"done")
        busy.send(b"GET / HTTP/1.1\r\nHost: h\r\nSlow: 1\r\n\r\n")
        await under_way.acquire()
        fresh = await served.client()
        assert await (await served.client()).ask() == (200, b"done")  # so the fresh one has been accepted

        served.connections.close_idle()

        assert {await client.rest() for client in idle} == {b""}
        release.set()
        assert await busy.answer() == (200, b"done")
        assert await busy.ask() == (200, b"done")
        assert await fresh.ask() == (200, b"done")


async def test_closing_idle_connections_cuts_no_response() -> None:
    big = b"x" * 20_000_000
    handled = asyncio.Semaphore(0)

    async def page(_request: web.Request) -> web.Response:
        handled.release()
        # Written piece by piece after the handler is done.
        return web.Response(body=BytesIO(big), headers={"Content-Length": str(len(big))})

    async with serving(page) as served:
        client = await served.client(REQUEST)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await handled.acquire()
        # At every moment of the response, not only while it is held up.
        for turn in range(1000):
            served.connections.close_idle()
            if turn == 10:
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert await client.answer() == (200, big)


async def test_half_open_connections_do_not_hold_up_the_end() -> None:
    loop = asyncio.get_running_loop()
    before = descriptors()
    async with serving(shutdown_timeout=LONG) as served:
        for number in range(50):
            await served.client(BEGINNINGS[number % len(BEGINNINGS)])
        assert await (await served.client()).ask() == (200, b"hello")
        began = loop.time()
        served.stop.set()
        await served.task
        assert loop.time() - began < 2
        assert {await client.rest() for client in served.clients} == {b""}
    await until_descriptors(before)


async def test_while_a_request_gets_its_time_to_end_nobody_else_is_let_in() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="done")

    async with serving(slow) as served:
        client = await served.client(REQUEST)
        await entered.wait()
        served.stop.set()

        async def refused() -> bool:
            try:
                return await (await served.client(REQUEST)).rest() == b""
            except ConnectionError:
                return True

        assert await wait_for(refused, timeout=DEADLINE, what="the end of listening")
        assert not served.task.done()
        release.set()
        assert await client.answer() == (200, b"done")


async def test_out_of_descriptors_it_says_so_seldom_and_goes_on_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    """Symptom: 100 MB of `socket.accept() out of system resource` within seconds."""

    def told() -> list[float]:
        return [record.created for record in caplog.records if record.name == "asyncio" and record.exc_info]

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as served, AsyncExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(20)]
        for client in sockets:
            client.setblocking(False)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(client.fileno() for client in sockets) + 1, limits[1]))
            for client in sockets:
                client.connect_ex((served.address.host, served.address.port))
                client.send(REQUEST)
            await until(lambda: len(told()) >= 3, "three attempts")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert told()[2] - told()[0] > 1.5
        loop = asyncio.get_running_loop()
        answers = [await loop.sock_recv(client, 1 << 16) for client in sockets]
        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)


@pytest.mark.parametrize(
    ("soft", "connections"), [(1024, 512), (1_000_000, 512), (256, 128), (1, 1), (resource.RLIM_INFINITY, 512)]
)
def test_half_of_the_descriptors_are_left_to_everything_else(
    monkeypatch: pytest.MonkeyPatch, soft: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, resource.RLIM_INFINITY))
    assert Limits.of_this_process() == Limits(connections=connections)
