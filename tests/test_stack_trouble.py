"""The stack's trouble makers: each kind of trouble looks to a client as it says, and replicas live through it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from tests.remediator.fakes import eventually
from tests.remediator.live import firing
from tests.remediator.samples import NODE, Json, body
from tests.stack import replicas, trouble
from tests.stack.apiproxy import ApiProxy
from tests.stack.controlplane import NAMESPACE
from tests.stack.http import Response, request
from tests.stack.pipeline import TOKEN
from tests.stack.process import free_port, wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import NO_ANSWER, WEBHOOK, Sender
from tests.stack.service_ip import REFUSED, ServiceIp
from tests.stack.threaded import Threaded
from tests.stack.trouble import EVERYTHING, OF_WATCHES, WATCH, Storm, Trouble

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAMES = ("written", "late", "seen", "second")
SECONDS = 20
SOON = 6
"""A seed that strikes the first watch of ConfigMaps early."""
REQUESTS = [("POST", "/a"), ("GET", "/a"), ("GET", "/b"), (WATCH, "/a")]


# Plans


@given(seed=st.integers(), order=st.permutations(REQUESTS * 8))
def test_what_a_storm_does_to_a_path_does_not_depend_on_the_others(seed: int, order: list[tuple[str, str]]) -> None:
    mixed, alone = Storm(EVERYTHING, seed), Storm(EVERYTHING, seed)
    struck: dict[tuple[str, str], list[object]] = {one: [] for one in REQUESTS}
    for one in order:
        struck[one].append(mixed.strike(*one))

    assert struck == {one: [alone.strike(*one) for _ in range(8)] for one in REQUESTS}


def test_a_storm_strikes_as_often_as_it_says_and_as_the_api_server_could() -> None:
    storm = Storm(EVERYTHING, seed=1)
    counts = {
        method: Counter(strike and strike.kind for strike in (storm.strike(method, "/a") for _ in range(5000)))
        for method in ("POST", "GET", WATCH)
    }

    for method, seen in counts.items():
        possible = {kind for kind in EVERYTHING if (kind in OF_WATCHES) == (method == WATCH)}
        possible -= {Trouble.CONFLICT} if method == "GET" else set()
        assert set(seen) - {None} == possible
        assert all(abs(seen[kind] / 5000 - EVERYTHING[kind]) < 0.03 for kind in possible)


def test_a_storm_spares_whom_it_is_told_to_spare() -> None:
    always = {Trouble.ERROR: 1.0}
    assert Storm(always, 1, trouble.but_leases).strike("PUT", LEASES) is None
    assert Storm(always, 1, trouble.but_leases).strike("PUT", CONFIGMAPS) is not None
    assert Storm(always, 1, trouble.leases).strike("PUT", CONFIGMAPS) is None
    assert Storm(always, 1).strike("PUT", LEASES) is not None


def test_a_storm_of_more_than_everything_is_refused() -> None:
    with pytest.raises(ValueError, match=r"add up to 1\.2; expected at most 1"):
        Storm({Trouble.ERROR: 0.6, Trouble.HANG: 0.6}, 1)


# The way to the API server


def configmap(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


class Reach:
    """The API server through the proxy, as the administrator."""

    def __init__(self, proxy: ApiProxy, control_plane: ControlPlane) -> None:
        self.proxy = proxy
        self.headers = {"Authorization": f"Bearer {control_plane.token('admin')}"}

    def create(self, name: str = "written", *, timeout: float = 10) -> Response:
        """Create a ConfigMap."""
        url = self.proxy.url + CONFIGMAPS
        return request("POST", url, body=configmap(name), headers=self.headers, check=False, timeout=timeout)

    async def watch(self) -> AsyncGenerator[Json]:
        """Watch ConfigMaps; an answer that is no watch comes as one event."""
        async with (
            aiohttp.ClientSession(headers=self.headers) as session,
            session.get(f"{self.proxy.url}{CONFIGMAPS}?watch=1") as answer,
        ):
            async for line in answer.content:
                yield json.loads(line)


@pytest.fixture
def reach(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> Iterator[Reach]:
    with ApiProxy(control_plane, tmp_path) as proxy:
        yield Reach(proxy, control_plane)
    for name in NAMES:
        admin.delete("ConfigMap", name)


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (Trouble.CONFLICT, 409, "AlreadyExists"),
        (Trouble.THROTTLED, 429, "TooManyRequests"),
        (Trouble.ERROR, 500, "InternalError"),
        (Trouble.UNAVAILABLE, 503, "ServiceUnavailable"),
    ],
)
def test_a_refusal_reads_like_the_api_servers(
    reach: Reach, admin: Admin, kind: Trouble, status: int, reason: str
) -> None:
    reach.proxy.storm({kind: 1.0}, seed=1)
    answer = reach.create()

    assert (answer.status, answer.json()["code"], answer.json()["reason"]) == (status, status, reason)
    assert answer.headers.get("retry-after") == ("1" if status == 429 else None)
    assert admin.find("ConfigMap", "written") is None
    assert reach.proxy.done == {kind: 1}
    reach.proxy.calm()
    assert reach.create().status == 201
    assert admin.get("ConfigMap", "written")
    assert reach.proxy.passed == 1


def test_a_page_for_people_is_no_json(reach: Reach) -> None:
    reach.proxy.storm({Trouble.HTML: 1.0}, seed=1)
    answer = reach.create()
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (503, "text/html")


@pytest.mark.parametrize(("kind", "landed"), [(Trouble.CUT_BEFORE, False), (Trouble.CUT_AFTER, True)])
def test_a_cut_loses_the_request_or_only_its_answer(reach: Reach, admin: Admin, kind: Trouble, *, landed: bool) -> None:
    reach.proxy.storm({kind: 1.0}, seed=1)
    with pytest.raises(ConnectionError):
        reach.create()
    assert (admin.find("ConfigMap", "written") is not None) == landed


def test_what_hangs_is_not_answered_and_ends_with_the_storm(reach: Reach, admin: Admin) -> None:
    reach.proxy.storm({Trouble.HANG: 1.0}, seed=1)
    with pytest.raises(TimeoutError):
        reach.create(timeout=0.2)
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(reach.create)
        wait_until(lambda: reach.proxy.done[Trouble.HANG] == 2, timeout=SECONDS, what="the second request to hang")
        reach.proxy.calm()
        assert isinstance(hanging.exception(SECONDS), ConnectionError)
    assert admin.find("ConfigMap", "written") is None


def test_a_delay_changes_nothing_else(reach: Reach) -> None:
    reach.proxy.storm({Trouble.DELAY: 1.0}, seed=7)
    assert reach.create().status == 201
    assert reach.proxy.done == {Trouble.DELAY: 1}


def test_in_a_partition_nothing_passes_until_it_heals(reach: Reach, admin: Admin) -> None:
    for cut, expected in ((False, TimeoutError), (True, ConnectionError)):
        reach.proxy.partition(cut=cut)
        with pytest.raises(expected):
            reach.create(timeout=0.2 if expected is TimeoutError else 10)
    assert admin.find("ConfigMap", "written") is None
    reach.proxy.calm()
    assert reach.create().status == 201


async def test_a_watch_streams_through(reach: Reach) -> None:
    async with aclosing(reach.watch()) as events:
        for name in ("seen", "second"):
            assert (await asyncio.to_thread(reach.create, name)).status == 201
            await _saw(events, name)


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        (Trouble.WATCH_GONE, "Status"),
        (Trouble.WATCH_ERROR, "ERROR"),
        (Trouble.WATCH_CUT, "ClientPayloadError"),
    ],
)
async def test_trouble_ends_a_watch(reach: Reach, kind: Trouble, last: str) -> None:
    reach.proxy.storm({kind: 1.0}, seed=SOON)
    assert (await _to_the_end(reach.watch()))[-1] == last
    assert reach.proxy.done == {kind: 1}


async def test_a_storm_reaches_watches_that_were_open_before(reach: Reach) -> None:
    async with aclosing(reach.watch()) as events:
        await asyncio.to_thread(reach.create, "seen")
        await _saw(events, "seen")
        reach.proxy.storm({}, seed=1)
        assert await _to_the_end(events) == ["ClientPayloadError"]


async def test_a_watch_that_hangs_is_silent_until_the_storm_is_over(reach: Reach, admin: Admin) -> None:
    reach.proxy.storm({Trouble.WATCH_HANG: 1.0}, seed=SOON)
    watching = asyncio.create_task(_to_the_end(reach.watch()))
    await eventually(lambda: reach.proxy.done[Trouble.WATCH_HANG], what="the watch to fall silent")
    await asyncio.to_thread(admin.create, configmap("late"))
    reach.proxy.calm()
    assert "late" not in await watching


async def test_a_partition_silences_an_open_watch(reach: Reach, admin: Admin) -> None:
    async with aclosing(reach.watch()) as events:
        await asyncio.to_thread(reach.create, "seen")
        await _saw(events, "seen")
        reach.proxy.partition()
        await asyncio.to_thread(admin.create, configmap("late"))
        await eventually(lambda: reach.proxy.done[Trouble.HANG], what="the event to be held")
        reach.proxy.calm()
        assert await _to_the_end(events) == ["ClientPayloadError"]


async def test_a_partition_may_cut_an_open_watch(reach: Reach) -> None:
    async with aclosing(reach.watch()) as events:
        await asyncio.to_thread(reach.create, "seen")
        await _saw(events, "seen")
        reach.proxy.partition(cut=True)
        assert await _to_the_end(events) == ["ClientPayloadError"]


async def _saw(events: AsyncIterator[Json], name: str) -> None:
    """Wait for an event about that object."""
    async with asyncio.timeout(SECONDS):
        async for event in events:
            if event["object"]["metadata"]["name"] == name:
                return
    raise AssertionError(f'watching for "{name}": the watch has ended')


async def _to_the_end(events: AsyncIterator[Json]) -> list[str]:
    """The names of all objects that come, and at last the error, or what there is instead of an object."""
    seen: list[str] = []
    try:
        async with asyncio.timeout(SECONDS):
            seen.extend([_name(event) async for event in events])
    except aiohttp.ClientError as error:
        seen.append(type(error).__name__)
    return seen


def _name(event: Json) -> str:
    name: str = event.get("object", {}).get("metadata", {}).get("name") or event.get("type") or event["kind"]
    return name


# The Service


class Named(Threaded):
    """Answers with its name, and keeps connections."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.address = f"127.0.0.1:{free_port()}"

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", int(self.address.rpartition(":")[2])).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._name)


async def test_new_connections_go_to_the_labelled_pod_and_old_ones_stay(
    control_plane: ControlPlane, admin: Admin
) -> None:
    pods = ("pod-a", "pod-b")
    for name in pods:
        await asyncio.to_thread(admin.create, replicas.pod(name))

    async def label(name: str, role: str | None, *, endpoints: tuple[str, ...]) -> None:
        change = {"metadata": {"labels": {"neuron-remediator/role": role}}}
        await asyncio.to_thread(admin.patch, "Pod", name, change)
        await eventually(lambda: service.endpoints == endpoints, what=f"the endpoints {endpoints}")

    with Named("pod-a") as one, Named("pod-b") as other:
        addresses = {"pod-a": one.address, "pod-b": other.address}
        with ServiceIp(control_plane, addresses, namespace="default") as service:
            async with aiohttp.ClientSession(service.url) as warm, aiohttp.ClientSession(service.url) as fresh:
                with pytest.raises(aiohttp.ClientError):
                    await _asked(warm)
                await label("pod-a", "leader", endpoints=("pod-a",))
                assert await _asked(warm) == "pod-a"
                await label("pod-a", None, endpoints=())
                await label("pod-b", "leader", endpoints=("pod-b",))
                assert [await _asked(warm), await _asked(fresh)] == ["pod-a", "pod-b"]
                one.stop()
                assert await _asked(warm) == "pod-b"
                other.stop()
                with pytest.raises(aiohttp.ClientError):
                    await _asked(warm)
            assert service.connections["pod-a"] == 1
            assert service.connections[REFUSED] > 0


async def _asked(session: aiohttp.ClientSession) -> str:
    async with session.get("/") as answer:
        return await answer.text()


# Deliveries


async def test_a_delivery_is_repeated_until_it_is_taken() -> None:
    answers = iter((503, None, 500, 200))

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        status = next(answers)
        if status is None and request.transport is not None:
            request.transport.abort()
        return web.Response(status=status or 200)

    async with _webhook(answer) as url, Sender(url, token=TOKEN) as sender:
        delivery = await sender.send(b"{}")
    assert delivery.copies == [[503, NO_ANSWER, 500, 200]]
    assert delivery.accepted
    assert sender.statuses() == {503: 1, NO_ANSWER: 1, 500: 1, 200: 1}


async def test_a_refusal_is_final_and_a_deadline_ends_the_rest() -> None:
    statuses = {b"malformed": 400, b"too early": 503}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=statuses[await request.read()])

    async with _webhook(answer) as url, Sender(url, token=TOKEN, deadline=0.1) as sender:
        delivery = await sender.send(b"malformed")
        assert (delivery.copies, delivery.accepted) == ([[400]], False)
        with pytest.raises(TimeoutError, match=r"not within 0\.1 s; statuses seen \{503: "):
            await sender.send(b"too early")


async def test_copies_are_under_way_together_and_go_around_the_addresses() -> None:
    together = asyncio.Barrier(4)
    taken: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        taken[request.host] += 1
        await together.wait()
        return web.Response()

    async with _webhook(answer) as one, _webhook(answer) as other, Sender(one, other, token=TOKEN, copies=4) as sender:
        (delivery,) = await sender.send_all([b"{}"])
    assert delivery.copies == [[200]] * 4
    assert sorted(taken.values()) == [2, 2]


@asynccontextmanager
async def _webhook(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(WEBHOOK, answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


# Replicas


@pytest.fixture
def one_replica(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> Iterator[Replicas]:
    """One replica behind a proxy, and a node of sixteen devices."""
    admin.node(NODE)
    with Replicas(tmp_path, control_plane, count=1, lease_seconds=None, proxied=True) as running:
        yield running


async def test_faults_end_as_rules_through_any_trouble(one_replica: Replicas, admin: Admin) -> None:
    proxy = one_replica.proxy(0)
    proxy.storm(EVERYTHING, seed=7)
    async with Sender(one_replica.url(0), token=TOKEN, copies=2) as sender:
        await sender.send_all(body(firing(device=str(device))) for device in range(16))

    assert all(delivery.accepted for delivery in sender.deliveries)
    assert set(sender.statuses()) <= {200, 503}
    assert sum(proxy.done.values()) > 16
    proxy.calm()
    rules = await asyncio.to_thread(admin.rules)
    assert {rule["spec"]["deviceSelector"]["device"] for rule in rules} == {f"neuron-device-{n}" for n in range(16)}
    assert len(rules) == 16


@pytest.fixture
def in_memory(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Replicas]:
    """One replica that needs no Lease to lead, and labels no Pod."""
    with Replicas(tmp_path, control_plane, count=1, lease_seconds=None, flags=("--backend=memory",)) as running:
        yield running


def test_a_replica_is_killed_started_and_paused(in_memory: Replicas, admin: Admin) -> None:
    assert in_memory.leading() == [0]
    assert in_memory.labelled() == []
    assert in_memory.leader() is None
    change = {"metadata": {"labels": {"neuron-remediator/role": "leader"}}}
    admin.patch("Pod", in_memory.pod(0), change, namespace=NAMESPACE)
    assert in_memory.wait_for_leader() == 0

    in_memory.kill(0)
    assert (in_memory.leading(), in_memory.labelled()) == ([], [0])
    in_memory.start(0)
    assert in_memory.leader() == 0
    in_memory.pause(0)
    assert in_memory.leading() == []
    with pytest.raises(TimeoutError):
        request("GET", f"{in_memory.url(0)}/livez", timeout=0.2)
    in_memory.resume(0)
    assert in_memory.leading() == [0]


def test_nothing_of_the_replicas_stays(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> None:
    running = Replicas(tmp_path, control_plane, count=2, lease_seconds=None, flags=("--backend=memory",))
    with running:
        assert len(running.addresses()) == len(running) == 2
        running.pause(1)
    assert admin.items("Pod", namespace=NAMESPACE) == []
    assert not any(running.service(index).process.running for index in range(2))


def test_a_replica_that_does_not_start_takes_everything_with_it(
    control_plane: ControlPlane, admin: Admin, tmp_path: Path
) -> None:
    running = Replicas(tmp_path, control_plane, count=2, lease_seconds=None, flags=("--nonsense",))
    with pytest.raises(RuntimeError, match="nonsense"):
        running.start()
    assert admin.items("Pod", namespace=NAMESPACE) == []


# Threads


def test_what_keeps_a_thread_from_serving_is_raised_where_it_is_started() -> None:
    with Named("one") as one:
        other = Named("other")
        other.address = one.address
        with pytest.raises(OSError, match="address already in use"):
            other.start()
        with pytest.raises(RuntimeError, match="it does not run"):
            other._on_loop(lambda: None)
