"""Events as `kubectl describe node` finds them, and what an API server in trouble costs: a count and a line."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import msgspec
import pytest

from remediator import cluster, events
from remediator.cluster import Api, connect
from remediator.errors import UnavailableError
from remediator.events import EVENTS, QUEUE_LIMIT, Events, Result
from remediator.names import is_subdomain
from remediator.records import Key
from remediator.traces import Change
from tests.remediator.apiserver import ScriptedCollection, Step, status, text
from tests.remediator.fakes import Clock, eventually
from tests.remediator.samples import NODE, record
from tests.stack.pipeline import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp import web
    from pytest_aiohttp import AiohttpServer

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

USER = "neuron-remediator"
CREATED = text("{}", 201)


class _Listed(msgspec.Struct):
    items: list[dict[str, Any]]


@asynccontextmanager
async def running(written: Events) -> AsyncIterator[None]:
    """Write events for the length of the block."""
    task = asyncio.create_task(written.run())
    yield
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def make(api: Api, counted: Counter[str], **changes: Any) -> Events:
    """Make events with a clock that stands, so that no message is logged twice."""

    def count(result: str) -> None:
        counted[result] += 1

    given = {"instance": "neuron-remediator-0", "clock": Clock(), "elapsed": lambda: 1000.0, "count": count}
    return Events(api, **cast("dict[str, Any]", given | changes))


def created(device: int = 3, *, node: str = NODE, uid: str = "uid-1") -> Change:
    """A new taint."""
    return Change("create", None, replace(record(node_uid=uid), key=Key(node, device, "hbm")))


# On the real API server


async def found(plane: ControlPlane, node: str, uid: str) -> list[dict[str, Any]]:
    """Search as kubectl 1.37 does: in all namespaces, by kind, name, UID, and an object that is in none."""
    selector = f"involvedObject.kind=Node,involvedObject.name={node},involvedObject.namespace=,involvedObject.uid={uid}"
    async with connect(plane.kubeconfig("admin")) as api:
        listed = await api.get("/api/v1/events", _Listed, fieldSelector=selector)
    assert listed is not None
    return listed.items


@pytest.mark.parametrize("node", [NODE, ".".join(["n" * 63] * 3) + "." + "n" * 61], ids=["usual", "longest"])
async def test_kubectl_finds_them(control_plane: ControlPlane, admin: Admin, node: str) -> None:
    """Written with the permissions that ship; two that are alike are two."""
    install(control_plane)
    made = admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    uid = made["metadata"]["uid"]
    counted: Counter[str] = Counter()
    async with connect(control_plane.kubeconfig(USER)) as api:
        written = make(api, counted, instance="p" * 253)
        async with running(written):
            raised = created(node=node, uid=uid)
            written.changed(raised)
            written.changed(raised)
            written.changed(Change("delete", raised.after, None))
            await eventually(lambda: counted.total() == 3, what="three events")
    assert counted == {Result.OK: 3}

    objects = await found(control_plane, node, uid)
    assert sorted(one["reason"] for one in objects) == [
        "NeuronDeviceTaintCleared",
        "NeuronDeviceTainted",
        "NeuronDeviceTainted",
    ]
    for one in objects:
        assert is_subdomain(one["metadata"]["name"])
        assert one["metadata"]["namespace"] == "default"
        assert one["metadata"]["name"].startswith(node[:100])
        assert one["source"] == {"component": "neuron-remediator"}
        assert one["reportingComponent"] == "neuron-remediator"
        assert one["reportingInstance"] == "p" * 128
        assert one["firstTimestamp"] == one["lastTimestamp"] == "2026-11-30T12:00:00Z"
        assert one["eventTime"] == "2026-11-30T12:00:00.000000Z"
        assert one["count"] == 1
    warning = next(one for one in objects if one["reason"] == "NeuronDeviceTainted")
    assert (warning["type"], warning["action"]) == ("Warning", "create")
    assert warning["message"].startswith("Neuron device 3, fault hbm: its taint on ")


async def test_the_account_may_create_events_of_nodes_and_no_more(control_plane: ControlPlane) -> None:
    install(control_plane)
    async with connect(control_plane.kubeconfig(USER)) as api:
        with pytest.raises(UnavailableError, match="forbidden"):
            await api.create(EVENTS.replace("default", "kube-system"), {"kind": "Event"}, _Listed)
        with pytest.raises(UnavailableError, match="forbidden"):
            await api.get(EVENTS, _Listed)


# On a scripted one


@dataclass
class Trouble:
    """Events on an API server that answers by a script, the bodies it was sent, and what was counted."""

    server: ScriptedCollection
    events: Events
    counted: Counter[str]
    sent: list[dict[str, Any]] = field(default_factory=list)


MakeTrouble = Callable[..., Awaitable[Trouble]]


@pytest.fixture
async def trouble(
    aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeTrouble]:
    """Give a way to connect to a server that answers each request with the next step, and with the last for ever."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(events, "_FIRST_WAIT", 0.002)
    monkeypatch.setattr(events, "_LONGEST_WAIT", 0.01)

    async def start(*steps: Step, **changes: Any) -> Trouble:
        sent: list[dict[str, Any]] = []

        def noting(step: Step) -> Step:
            async def note(request: web.Request) -> web.StreamResponse:
                sent.append(json.loads(await request.read()))
                return await step(request)

            return note

        server = ScriptedCollection(lists=[noting(step) for step in steps])
        listening = await aiohttp_server(server.app())
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "current-context: x\n"
            "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
            f"clusters: [{{name: x, cluster: {{server: 'http://{listening.host}:{listening.port}'}}}}]\n"
            "users: [{name: x, user: {token: t}}]\n"
        )
        api = await stack.enter_async_context(connect(kubeconfig))
        counted: Counter[str] = Counter()
        return Trouble(server, make(api, counted, **changes), counted, sent)

    async with AsyncExitStack() as stack:
        yield start


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def hang(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_failure_that_may_pass_is_asked_again_under_the_same_name(
    trouble: MakeTrouble,
) -> None:
    """So that an answer that was lost makes no second event: the last answer here is that the name is taken."""
    at = await trouble(status(500), status(429), text("<html>", 502), status(409))
    async with running(at.events):
        at.events.changed(created())
        await eventually(lambda: at.counted.total() == 1, what="the event")

    assert at.counted == {Result.OK: 1}
    assert len(at.sent) == 4
    assert len({body["metadata"]["name"] for body in at.sent}) == 1


async def test_names_differ(trouble: MakeTrouble) -> None:
    at = await trouble(CREATED)
    async with running(at.events):
        for _ in range(50):
            at.events.changed(created())
        await eventually(lambda: at.counted.total() == 50, what="the events")
    assert len({body["metadata"]["name"] for body in at.sent}) == 50


@pytest.mark.parametrize("code", [400, 403, 404, 422])
async def test_what_asking_again_does_not_mend_is_not_asked_again(
    trouble: MakeTrouble, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    at = await trouble(status(code))
    async with running(at.events):
        for device in range(20):
            at.events.changed(created(device))
        await eventually(lambda: at.counted.total() == 20, what="the events")

    assert at.counted == {Result.FAILED: 20}
    assert len(at.sent) == 20
    assert warnings(caplog) == ["writing an event: failed"]


@pytest.mark.parametrize("kind", ["refuses", "hangs"])
async def test_a_dead_api_server_costs_a_count_and_a_line(
    trouble: MakeTrouble,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    at = await trouble(hang if kind == "hangs" else status(500), limit=10)
    async with running(at.events):
        for device in range(15):
            at.events.changed(created(device))
        assert at.events.waiting == 10
        assert at.counted == {Result.DROPPED: 5}
        await eventually(lambda: at.counted.total() == 15, what="every event to be given up")

    assert at.counted == {Result.DROPPED: 5, Result.FAILED: 10}
    if kind == "refuses":  # else a request may time out before the server has noted it
        assert len(at.sent) == 10 * events._ATTEMPTS
    assert sorted(warnings(caplog)) == ["queueing an event: dropped, as too many wait", "writing an event: failed"]


async def test_few_are_written_at_once(trouble: MakeTrouble) -> None:
    """The others wait: the API server is needed for rules."""
    at = await trouble(hang)
    async with running(at.events):
        for device in range(100):
            at.events.changed(created(device))
        await eventually(lambda: len(at.sent) == events.WRITERS, what="the writers to be at work")
        assert at.events.waiting == 100 - events.WRITERS
    assert len(at.sent) == events.WRITERS
    assert at.counted == {Result.DROPPED: events.WRITERS}


async def test_ten_thousand_wait_and_one_is_dropped(trouble: MakeTrouble, caplog: pytest.LogCaptureFixture) -> None:
    at = await trouble(CREATED)
    change = created()
    for _ in range(QUEUE_LIMIT + 1):
        at.events.changed(change)

    assert QUEUE_LIMIT == 10_000
    assert at.events.waiting == QUEUE_LIMIT
    assert at.counted == {Result.DROPPED: 1}
    assert warnings(caplog) == ["queueing an event: dropped, as too many wait"]


async def test_what_people_do_not_care_for_is_not_queued(trouble: MakeTrouble) -> None:
    at = await trouble(CREATED)
    held = record()
    at.events.changed(Change("update", held, replace(held, episode="other")))
    assert (at.events.waiting, at.counted) == (0, {})


async def test_an_unexpected_error_ends_no_writer(
    trouble: MakeTrouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at = await trouble(CREATED, writers=1)
    monkeypatch.setattr(Api, "create", _raise)
    async with running(at.events):
        for _ in range(3):
            at.events.changed(created())
        await eventually(lambda: at.counted.total() == 3, what="the events")
    assert at.counted == {Result.FAILED: 3}
    assert vars(caplog.records[0])["error"] == "unexpected ZeroDivisionError"


async def _raise(*_given: object) -> None:
    raise ZeroDivisionError


async def test_at_the_end_what_is_queued_goes_out(trouble: MakeTrouble) -> None:
    at = await trouble(CREATED)
    async with running(at.events):
        for device in range(100):
            at.events.changed(created(device))
        await at.events.drain(5)
        assert at.counted == {Result.OK: 100}


async def test_the_end_is_not_held_up(trouble: MakeTrouble, caplog: pytest.LogCaptureFixture) -> None:
    """What is left is dropped, counted and said in one line; nobody who stops without a queue waits at all."""
    at = await trouble(hang)
    async with running(at.events):
        began = time.monotonic()
        await at.events.drain(60)
        for device in range(100):
            at.events.changed(created(device))
        await at.events.drain(0.1)
        assert time.monotonic() - began < 2
        assert at.counted == {Result.DROPPED: 100 - events.WRITERS}
    assert at.counted == {Result.DROPPED: 100}
    assert warnings(caplog) == ["writing events: dropped at the end, as there was no time"]
