"""A way to the API server on which trouble can be made, for one client: a reverse proxy on loopback.

The client reaches it by a kubeconfig; its token goes on to the real API server, which checks and audits as ever. What
happens to which request is planned in ``trouble``; here it is done.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.stack import trouble
from tests.stack.apisession import api_session
from tests.stack.controlplane import ControlPlane
from tests.stack.process import free_port
from tests.stack.threaded import Threaded
from tests.stack.trouble import Calm, Partition, Plan, Storm, Strike, Trouble, Where

_LINE_LIMIT = 2**21
_BODY_LIMIT = 2**24
_NOT_FORWARDED = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te"})
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# What is left of an event when a connection ends while nothing was on its way.
_BEGINNING = b'{"type":"MODIFIED","object":{"kind":"'


class _CutError(Exception):
    """The client's connection ends here, without an answer."""


class ApiProxy(Threaded):
    """Forwards to the API server of ``control_plane``; calm at first. Kubeconfigs are put into ``directory``.

    The audit log shows the directory's name as the user agent of what came this way.
    ``calm``, ``storm`` and ``partition`` may be called at any time from the test's thread, and hold once they return.
    ``done`` counts what was done to requests, by kind; ``passed`` those that were answered as the API server did.
    """

    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        self._control_plane = control_plane
        self._directory = directory
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.done: Counter[Trouble] = Counter()
        self.passed = 0
        self._plan: Plan = Calm()
        self._changed: asyncio.Event
        self._open: dict[asyncio.BaseTransport, bool] = {}  # connection -> whether its request watches
        self._session: aiohttp.ClientSession

    def kubeconfig(self, user: str = "neuron-remediator") -> Path:
        """Write a kubeconfig that leads here as one of the control plane's users; returns its path."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "contexts": [{"name": user, "context": {"cluster": "proxy", "user": user}}],
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": user, "user": {"token": self._control_plane.token(user)}}],
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"proxy-{self._port}-{user}.kubeconfig"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    def calm(self) -> None:
        """Let everything pass from now on. What hangs is cut; a watch that is open and well goes on."""
        self._on_loop(lambda: self._follow(Calm()))

    def storm(self, probabilities: Mapping[Trouble, float], seed: int, *, where: Where = trouble.everywhere) -> None:
        """Make trouble with these probabilities, for the requests that ``where`` names (e.g. ``trouble.but_leases``).

        Open watches are cut, so that the storm is on all of them.
        """
        plan = Storm(probabilities, seed, where)

        def begin() -> None:
            self._follow(plan)
            self._cut_open(watches_only=True)

        self._on_loop(begin)

    def partition(self, *, cut: bool = False) -> None:
        """Let nothing pass, of what is under way either. The client notices nothing, or with ``cut`` at once.

        Without ``cut`` requests hang and watches fall silent, until ``calm`` or ``storm`` cuts them. A request that
        was forwarded before may have been carried out.
        """

        def begin() -> None:
            self._follow(Partition(cut=cut))
            if cut:
                self._cut_open(watches_only=False)

        self._on_loop(begin)

    def _follow(self, plan: Plan) -> None:
        self._plan = plan
        self._changed.set()
        self._changed = asyncio.Event()

    def _cut_open(self, *, watches_only: bool) -> None:
        for connection, watches in self._open.items():
            if (watches or not watches_only) and isinstance(connection, asyncio.Transport):
                connection.abort()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._changed = asyncio.Event()
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._answer)
        # A request whose client has left is cancelled, at the API server too, as it would be without a proxy.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        async with api_session(
            self._control_plane,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=4),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            read_bufsize=_LINE_LIMIT,
        ) as self._session:
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", self._port).start()
                yield
            finally:
                self._cut_open(watches_only=False)
                await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        connection = request.transport
        if connection is None:  # gone already
            return web.Response()
        watches = request.query.get("watch", "") in ("1", "true")
        self._open[connection] = watches
        try:
            strike = self._plan.strike(trouble.WATCH if watches else request.method, request.path)
            return await (self._watch if watches else self._request)(request, strike)
        except (_CutError, aiohttp.ClientError, OSError):  # trouble on purpose, or the API server is away
            connection.abort()
            return web.Response()  # goes nowhere, but the library wants one
        finally:
            del self._open[connection]

    async def _request(self, request: web.Request, strike: Strike | None) -> web.Response:
        kind = strike.kind if strike else None
        body = await request.read()
        match kind:
            case None | Trouble.CUT_AFTER:
                pass
            case Trouble.DELAY:
                self.done[kind] += 1
                await asyncio.sleep(strike.delay if strike else 0)
            case _:
                return await self._refuse(kind, request.method)
        await self._unblocked()  # it may have been delayed until now
        async with self._forwarded(request, body) as upstream:
            answer = await upstream.read()
        if kind is Trouble.CUT_AFTER:
            self.done[kind] += 1
            raise _CutError
        await self._unblocked()
        self.passed += 1
        return web.Response(status=upstream.status, headers=_passed_on(upstream.headers), body=answer)

    async def _refuse(self, kind: Trouble, method: str) -> web.Response:
        """Do not forward, but hang, cut or refuse."""
        self.done[kind] += 1
        if kind is Trouble.HANG:
            await self._hang()
        if kind is Trouble.CUT_BEFORE:
            raise _CutError
        status, content_type, body, headers = trouble.refusal(kind, method)
        return web.Response(status=status, body=body, headers=headers, content_type=content_type)

    async def _watch(self, request: web.Request, strike: Strike | None) -> web.StreamResponse:
        if strike is not None and strike.kind in (Trouble.HANG, Trouble.CUT_BEFORE, Trouble.WATCH_GONE):
            return await self._refuse(strike.kind, request.method)
        async with self._forwarded(request, b"") as upstream:
            response = web.StreamResponse(status=upstream.status, headers=_passed_on(upstream.headers))
            await self._unblocked()
            await response.prepare(request)
            struck_in = await self._copy(upstream.content, response, strike)
            if strike is None or struck_in is None:
                self.passed += 1
                return response
            await self._unblocked()
            self.done[strike.kind] += 1
            match strike.kind:
                case Trouble.WATCH_ERROR:
                    await response.write(trouble.error_event())
                    return response
                case Trouble.WATCH_CUT:
                    await response.write(struck_in[: len(struck_in) // 2])
                    raise _CutError
                case _:
                    return await self._hang()

    async def _copy(
        self, source: aiohttp.StreamReader, response: web.StreamResponse, strike: Strike | None
    ) -> bytes | None:
        """Copy line by line to the end; or until trouble strikes, and return the line in which it does."""
        lines = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(strike.watch_seconds if strike else None):
                while line := await source.readline():
                    if strike is not None and lines == strike.watch_lines:
                        return line
                    await self._unblocked()
                    await response.write(line)
                    lines += 1
                return None
        return _BEGINNING

    @asynccontextmanager
    async def _forwarded(self, request: web.Request, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _passed_on(request.headers)
        headers["User-Agent"] = self._directory.name
        async with self._session.request(
            request.method,
            URL(request.raw_path, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
        ) as upstream:
            yield upstream

    async def _unblocked(self) -> None:
        """Hang if nothing may reach the client now."""
        if self._plan.blocks:
            self.done[Trouble.HANG] += 1
            await self._hang()

    async def _hang(self) -> web.Response:
        """Do nothing until the plan changes, then cut."""
        await self._changed.wait()
        raise _CutError


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the header fields without those that are about one connection."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_FORWARDED)
