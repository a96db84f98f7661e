"""The Lease on the real API server, and against one that stalls, cuts, refuses and talks nonsense."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from remediator import lease_object
from remediator.cluster import connect
from remediator.election import VALID
from remediator.errors import UnavailableError
from remediator.lease import Lease, LeaseSettings, since_boot
from tests.remediator.fakes import eventually
from tests.remediator.live import USER, now
from tests.stack.controlplane import NAMESPACE
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

    from remediator.cluster import Api
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

NAME = "neuron-remediator"
DURATION = 2
PERIOD = DURATION / 7.5
OLD = datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=-5)))
"""A wall clock that is years behind, in another zone, at a full second: what is written, and never compared."""


@dataclass
class Replica:
    """One contender, what it was told, and its loop."""

    lease: Lease
    told: list[str] = field(default_factory=list)
    ready: bool = True
    task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether it leads now."""
        return self.lease.not_leading() is None

    def start(self) -> None:
        """Begin to contend."""
        self.task = asyncio.create_task(self.lease.run())

    async def die(self) -> None:
        """End without a word."""
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task


Make = Callable[..., Replica]


def replicas_of(api: Api, stack: AsyncExitStack) -> Make:
    def make(pod: str, *, duration: int = DURATION, clock: Callable[[], datetime] = now) -> Replica:
        told: list[str] = []
        replica = Replica(
            Lease(
                api,
                LeaseSettings(namespace=NAMESPACE, name=NAME, duration=duration, pod=pod),
                elapsed=since_boot,
                clock=clock,
                ready=lambda: replica.ready,
                on_leading=lambda: told.append("leading"),
                on_demotion=lambda: told.append("demotion"),
            ),
            told,
        )
        stack.push_async_callback(replica.die)
        return replica

    return make


@pytest.fixture
async def make(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Make]:
    """Give a way to make replicas on the real API server, where no Lease is yet."""
    install(control_plane)
    admin.delete("Lease", NAME, namespace=NAMESPACE)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(control_plane.kubeconfig(USER)))
        yield replicas_of(api, stack)
    admin.delete("Lease", NAME, namespace=NAMESPACE)


@pytest.fixture
def stored(admin: Admin) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Give a way to read the Lease as it is stored."""

    async def read() -> dict[str, Any]:
        return await asyncio.to_thread(admin.get, "Lease", NAME, namespace=NAMESPACE)

    return read


Stored = Callable[[], Awaitable[dict[str, Any]]]


async def test_one_leads_and_says_so_in_the_lease(make: Make, stored: Stored) -> None:
    one = make("pod-a", clock=lambda: OLD)
    one.start()
    await eventually(lambda: one.leads, what="a leader")

    spec = (await stored())["spec"]
    assert spec["holderIdentity"] == one.lease.identity
    assert re.fullmatch(r"pod-a_[0-9a-f]{8}", one.lease.identity)
    assert spec["leaseDurationSeconds"] == DURATION
    assert spec["leaseTransitions"] == 0
    assert spec["acquireTime"] == spec["renewTime"] == "2001-02-03T09:05:06.000000Z"
    assert 0 < one.lease.remaining() <= VALID * DURATION


async def test_when_the_leader_dies_another_takes_over_after_its_duration_and_not_before(
    make: Make, stored: Stored
) -> None:
    """Not even when the leader's clock is years behind, so that its Lease looks long expired."""
    first, second = make("pod-a", duration=3, clock=lambda: OLD), make("pod-b", clock=lambda: OLD)
    first.start()
    await eventually(lambda: first.leads, what="a leader")
    second.start()
    await eventually(lambda: "held by" in str(second.lease.not_leading()), what="the second to look")
    await first.die()
    died = time.monotonic()
    ends = died + first.lease.remaining()

    await eventually(lambda: second.leads, what="the second to lead")
    # The last renewal was up to a period before, and lasts for the holder's duration.
    assert 3 - 3 / 7.5 - 0.3 <= time.monotonic() - died < 3 + 3 * PERIOD + 1
    assert ends < time.monotonic()
    assert not first.leads
    spec = (await stored())["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (second.lease.identity, 1)


async def test_a_released_lease_is_taken_at_the_next_look(make: Make, stored: Stored) -> None:
    first, second = make("pod-a", duration=6), make("pod-b", duration=6)
    first.start()
    await eventually(lambda: first.leads, what="a leader")
    second.start()
    await eventually(lambda: "held by" in str(second.lease.not_leading()), what="the second to look")
    await first.die()
    await first.lease.release()
    began = time.monotonic()
    assert not first.leads
    assert first.told == ["leading", "demotion"]

    await eventually(lambda: second.leads, what="the second to lead")
    assert time.monotonic() - began < 2 * 6 / 7.5
    assert (await stored())["spec"]["leaseTransitions"] == 1
    # Nothing to give back for who does not hold it.
    await first.lease.release()
    assert (await stored())["spec"]["holderIdentity"] == second.lease.identity


async def test_of_several_that_start_at_once_one_leads(make: Make) -> None:
    replicas = [make(f"pod-{number}") for number in range(5)]
    for one in replicas:
        one.start()
    await eventually(lambda: all("nobody" not in str(one.lease.not_leading()) for one in replicas), what="all to look")
    assert sum(one.leads for one in replicas) == 1


async def test_a_restarted_container_does_not_take_itself_for_the_leader(make: Make) -> None:
    first = make("pod-a")
    first.start()
    await eventually(lambda: first.leads, what="a leader")
    await first.die()
    again = make("pod-a")
    again.start()
    await eventually(lambda: "held by" in str(again.lease.not_leading()), what="the new process to look")
    assert first.lease.identity in str(again.lease.not_leading())


async def test_what_others_have_written_survives(make: Make, stored: Stored, admin: Admin) -> None:
    one = make("pod-a")
    one.start()
    await eventually(lambda: one.leads, what="a leader")
    mark = {"metadata": {"annotations": {"somebody": "was here"}, "labels": {"team": "x"}}}
    edited = await asyncio.to_thread(admin.patch, "Lease", NAME, mark, namespace=NAMESPACE)

    async def renewed() -> bool:
        return bool((await stored())["spec"]["renewTime"] > edited["spec"]["renewTime"])

    await wait_for(renewed, timeout=10, what="a renewal")
    metadata = (await stored())["metadata"]
    assert metadata["annotations"]["somebody"] == "was here"
    assert metadata["labels"]["team"] == "x"
    assert one.leads
    assert one.told == ["leading"]


async def test_a_lease_deleted_by_hand_is_put_back_by_the_leader(make: Make, stored: Stored, admin: Admin) -> None:
    first, second = make("pod-a"), make("pod-b")
    first.start()
    await eventually(lambda: first.leads, what="a leader")
    second.start()
    await eventually(lambda: "held by" in str(second.lease.not_leading()), what="the second to look")
    await asyncio.to_thread(admin.delete, "Lease", NAME, namespace=NAMESPACE)

    async def is_back() -> bool:
        return await asyncio.to_thread(admin.find, "Lease", NAME, namespace=NAMESPACE) is not None

    await wait_for(is_back, timeout=10, what="the Lease")
    assert (await stored())["spec"]["holderIdentity"] == first.lease.identity
    assert (first.told, second.told) == (["leading"], [])


async def test_who_is_not_ready_does_not_lead_and_gives_way_to_who_is(make: Make) -> None:
    first, second = make("pod-a"), make("pod-b")
    first.start()
    await eventually(lambda: first.leads, what="a leader")
    second.start()
    first.ready = False
    await eventually(lambda: second.leads, what="the ready one to lead")
    assert first.told == ["leading", "demotion"]
    first.ready = True
    await eventually(lambda: second.lease.identity in str(first.lease.not_leading()), what="the first to look")


async def test_an_outage_of_the_api_server_ends_leadership_in_time_and_it_comes_back(
    make: Make, control_plane: ControlPlane
) -> None:
    one = make("pod-a")
    one.start()
    await eventually(lambda: one.leads, what="a leader")
    await asyncio.to_thread(control_plane.stop_apiserver)
    try:
        assert one.lease.remaining() <= VALID * DURATION
        await eventually(lambda: one.told == ["leading", "demotion"], what="the end")
        assert one.lease.not_leading() == "not the leader: the Lease is not renewed in time"
    finally:
        await asyncio.to_thread(control_plane.start_apiserver)
    await eventually(lambda: one.leads, what="a leader again")


async def test_a_loop_that_was_held_up_leads_no_longer_than_the_clock_says(make: Make) -> None:
    one = make("pod-a", duration=1)
    one.start()
    await eventually(lambda: one.leads, what="a leader")
    time.sleep(one.lease.remaining())  # noqa: ASYNC251 - this is the trouble
    assert one.lease.remaining() == 0
    assert not one.leads


# Against a server with trouble on demand


@dataclass
class TroubledServer:
    """Keeps one Lease as the API server does. `trouble` answers in its place, or returns None to let it answer."""

    lease: dict[str, Any] | None = None
    version: int = 0
    trouble: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    troubled: int = 0
    after: bool = False
    """Whether a write is carried out before the trouble with its answer begins."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if self.after and request.method != "GET":
            await self._serve(request)
        if self.trouble is not None:
            self.troubled += 1
            response = await self.trouble(request)
            if response is not None:
                return response
        return await self._serve(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            missing = {"kind": "Status", "reason": "NotFound", "details": {"name": "it"}}
            return web.json_response(self.lease or missing, status=200 if self.lease else 404)
        body = json.loads(await request.read())
        expected = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != expected:
            return web.json_response({"kind": "Status", "reason": "Conflict"}, status=409)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.lease = body
        return web.json_response(body)


@pytest.fixture
def server() -> TroubledServer:
    """Give the server."""
    return TroubledServer()


@pytest.fixture
async def contender(
    server: TroubledServer, aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Replica]:
    """Give one that leads on that server."""
    monkeypatch.setenv("NO_PROXY", "*")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    running = await aiohttp_server(app)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"clusters: [{{name: x, cluster: {{server: 'http://{running.host}:{running.port}'}}}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(kubeconfig))
        one = replicas_of(api, stack)("pod-a", duration=1)
        one.start()
        await eventually(lambda: one.leads, what="a leader")
        yield one


async def hang(_request: web.Request) -> None:
    await asyncio.sleep(5)


async def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def says(text: str, status: int = 200, content_type: str = "application/json") -> Callable[[web.Request], Any]:
    async def step(_request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type=content_type)

    return step


async def cut_the_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'{"kind": "Lease", ')
    await cut(request)
    return response


async def another_answers_writes(request: web.Request) -> web.StreamResponse | None:
    if request.method == "GET":
        return None
    return web.json_response(STORED | {"spec": {"holderIdentity": "somebody else"}})


STORED = {"kind": "Lease", "metadata": {"name": NAME, "resourceVersion": "1"}}

TROUBLES = {
    "hangs": hang,
    "cuts": cut,
    "cuts the body": cut_the_body,
    "conflict": says('{"kind": "Status", "reason": "Conflict"}', 409),
    "throttled": says('{"kind": "Status"}', 429),
    "server error": says("<html>", 502, "text/html"),
    "a proxy's page": says("<html>please log in</html>", 200, "text/html"),
    "a proxy's 404": says("<html>nothing here</html>", 404, "text/html"),
    "a proxy's JSON": says("{}"),
    "another object": says('{"kind": "Lease", "metadata": {"name": "another", "resourceVersion": "1"}}'),
    "not what was written": another_answers_writes,
    "no version": says(json.dumps(STORED | {"metadata": {"name": NAME, "resourceVersion": ""}})),
    "a list": says("[]"),
    "forbidden": says('{"kind": "Status"}', 403),
    "redirect": says("", 302),
}


CARRIED_OUT = ("hangs", "cuts", "a proxy's page", "a proxy's JSON")


@pytest.mark.parametrize(
    ("trouble", "after"), [*((one, "lost") for one in TROUBLES), *((one, "done") for one in CARRIED_OUT)]
)
async def test_trouble_ends_leadership_in_time_and_is_met_by_another_attempt(
    contender: Replica, server: TroubledServer, trouble: str, after: str
) -> None:
    """Whether the write behind it is lost or carried out."""
    server.trouble, server.after = TROUBLES[trouble], after == "done"
    began, granted = time.monotonic(), contender.lease.remaining()
    await eventually(lambda: not contender.leads, what="the end")
    # One renewal may have been under way when the trouble began.
    assert time.monotonic() - began < granted + 1 / 7.5 + 0.3
    await eventually(lambda: contender.told == ["leading", "demotion"], what="the word of it")
    tried = server.troubled
    await eventually(lambda: server.troubled > tried, what="another attempt")
    server.trouble, server.after = None, False
    await eventually(lambda: contender.leads, what="a leader again")
    assert contender.told == ["leading", "demotion", "leading"]


async def test_a_short_trouble_costs_nothing(contender: Replica, server: TroubledServer) -> None:
    async def once(request: web.Request) -> None:
        server.trouble = None
        await cut(request)

    server.trouble = once
    version = server.version
    await eventually(lambda: server.trouble is None and server.version >= version + 3, what="more renewals")
    assert contender.told == ["leading"]


async def test_a_release_ends_in_time_whatever_the_server_does(contender: Replica, server: TroubledServer) -> None:
    server.trouble = hang
    await contender.die()
    began = time.monotonic()
    await contender.lease.release()
    assert time.monotonic() - began < 2
    assert not contender.leads


async def test_a_release_finds_what_a_lost_renewal_has_made(contender: Replica, server: TroubledServer) -> None:
    server.trouble, server.after = cut, True
    tried = server.troubled
    await eventually(lambda: server.troubled > tried, what="a renewal without an answer")
    await contender.die()
    server.trouble, server.after = None, False
    await contender.lease.release()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""


async def test_one_renewal_is_one_request(contender: Replica, server: TroubledServer) -> None:
    methods: list[str] = []

    async def count(request: web.Request) -> None:
        methods.append(request.method)

    server.trouble = count
    await eventually(lambda: len(methods) >= 3, what="three requests")
    assert set(methods) == {"PUT"}
    assert contender.leads


async def test_a_hook_that_fails_does_not_cost_the_lease(
    server: TroubledServer, contender: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    contender.lease._on_demotion = fail
    server.trouble = cut
    await eventually(lambda: "unexpected error" in caplog.text, what="the failure in the log")
    server.trouble = None
    await eventually(lambda: contender.leads, what="a leader again")


async def test_what_goes_wrong_for_long_is_logged_seldom(
    server: TroubledServer, contender: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    server.trouble = says('{"kind": "Status", "message": "leases is forbidden"}', 403)
    await eventually(lambda: server.troubled >= 5, what="some attempts")
    warnings = [record for record in caplog.records if record.getMessage().startswith("looking after the Lease")]
    assert len(warnings) == 1
    assert "leases is forbidden" in str(vars(warnings[0]))


@pytest.mark.parametrize("duration", [0, -1])
def test_a_duration_below_a_second_is_refused(duration: int) -> None:
    with pytest.raises(ValueError, match="at least 1 s"):
        LeaseSettings(namespace="n", name="x", duration=duration, pod="p")


def test_the_times_are_as_in_the_design() -> None:
    settings = LeaseSettings(namespace="n", name="x", duration=15, pod="p")
    assert (settings.period, settings.attempt_seconds) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "name", "version"), [("Status", "x", "1"), ("Lease", "y", "1"), ("Lease", "x", ""), ("Lease", "x", None)]
)
def test_what_is_not_the_lease_is_not_read_as_one(kind: str, name: str, version: str | None) -> None:
    """A proxy's own JSON would look like a Lease that nobody holds."""
    with pytest.raises(UnavailableError, match='reading Lease "x"'):
        lease_object.sight_of({"kind": kind, "metadata": {"name": name, "resourceVersion": version}}, "x")


def test_a_renewal_changes_three_fields_and_leaves_what_it_does_not_know() -> None:
    before = lease_object.held(lease_object.new("n", "x"), identity="a", duration=15, now=OLD)
    before["spec"] |= {"strategy": "s", "unknown": {"deep": 1}}
    after = lease_object.held(before, identity="a", duration=20, now=OLD + timedelta(seconds=1))
    changed = {"leaseDurationSeconds": 20, "renewTime": "2001-02-03T09:05:07.000000Z"}
    assert after == {**before, "spec": {**before["spec"], **changed}}
