"""Rules that are served in one version, in another, or not at all, as a cluster is upgraded under the remediator.

The server is scripted, so that each moment of an upgrade can be held; real upgrades are in tests/storms.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from alerts.faults import Effect
from remediator import rules_served
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.placement import Choice
from remediator.records import State
from remediator.rule_records import to_object
from remediator.targets import NodeTarget, Target
from tests.remediator.fakes import eventually
from tests.remediator.samples import DRIVER, NODE, record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

    from remediator.records import Record

GROUP = "/apis/resource.k8s.io"
HELD = record("link_efa")
SLICE = {
    "metadata": {"name": "s", "resourceVersion": "2"},
    "spec": {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "neuron-device-3", "attributes": {"deviceId": {"int": 3}}}],
    },
}


@dataclass
class Server:
    """An API server with one node and one rule of ours, which it serves in the version `serving`, if any."""

    serving: str | None
    page_in_the_way: bool = False
    discovered: int = 0
    refusing: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def serve(self, version: str | None) -> None:
        """Go on as another release: every watch ends."""
        self.serving = version
        self.cut()

    def cut(self) -> None:
        """End every watch."""
        self.moved.set()
        self.moved = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if self.page_in_the_way:
            return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")
        path = request.path
        if path == GROUP:
            self.discovered += 1
            return web.json_response({"versions": [{"version": version} for version in ("v1", "v1beta2")]})
        if path in (f"{GROUP}/v1", f"{GROUP}/v1beta2"):
            rules = [{"name": "devicetaintrules"}] if path.endswith(f"/{self.serving}") else []
            return web.json_response({"resources": [{"name": "resourceslices"}, *rules]})
        kind = path.rpartition("/")[2]
        known = kind in ("nodes", "resourceslices", "resourceclaims") or path == f"{GROUP}/{self.serving}/{kind}"
        if kind == "devicetaintrules" and self.refusing > 0:
            self.refusing -= 1
            known = False
        if not known:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        if request.query.get("watch"):
            return await self._watch(request)
        items = {"devicetaintrules": [self._rule()], "resourceslices": [SLICE]}.get(kind, [])
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await self.moved.wait()
        return response

    def _rule(self) -> dict[str, Any]:
        written = to_object(HELD, f"resource.k8s.io/{self.serving}")
        written["metadata"] |= {"uid": "rule-1", "resourceVersion": "5"}
        return written


@dataclass
class Subject:
    """Running caches, their server, and what is told of records."""

    caches: Caches
    server: Server
    changes: list[None]
    told: list[tuple[Record | None, Record | None, bool]]

    def held(self) -> list[Record]:
        """The records on rules."""
        return list(self.caches.records.all())

    async def ready(self) -> None:
        """Wait until decisions can be made."""
        await eventually(lambda: self.caches.not_ready() is None, what="the caches to be ready")

    async def served_as(self, version: str) -> None:
        """Wait until rules are followed in that version, or known not to be served, and decisions can be made."""
        await eventually(lambda: self.caches.records.version == version, what=f'rules served as "{version}"')
        await self.ready()


Run = Callable[..., AbstractAsyncContextManager[Subject]]


@pytest.fixture
def run(aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a way to run caches on a server that serves rules in some version; quicker to ask again than in life."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(rules_served, "AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(rules_served, "DOUBT_SECONDS", 1.0)
    monkeypatch.setattr(rules_served, "_SOON_SECONDS", 0.2)

    @asynccontextmanager
    async def running(serving: str | None, choice: Choice = Choice.AUTO) -> AsyncIterator[Subject]:
        server = Server(serving)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        listening = await aiohttp_server(app)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "current-context: x\n"
            "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
            f"clusters: [{{name: x, cluster: {{server: 'http://{listening.host}:{listening.port}'}}}}]\n"
            "users: [{name: x, user: {token: t}}]\n"
        )
        changes, told = list[None](), list[tuple["Record | None", "Record | None", bool]]()
        async with connect(kubeconfig) as api, asyncio.TaskGroup() as group:
            caches = Caches(
                api, driver=DRIVER, elapsed=time.monotonic, choice=choice, on_change=lambda: changes.append(None)
            )
            caches.records.on_change = lambda *change: told.append(change)
            assert caches.not_ready() == "waiting for the API server to say how it serves DeviceTaintRules"
            task = group.create_task(caches.run())
            yield Subject(caches, server, changes, told)
            task.cancel()
            server.cut()

    return running


ON_NODE = NodeTarget(NODE, Target(DRIVER, NODE, "neuron-device-3"))


@pytest.mark.parametrize("choice", [Choice.AUTO, Choice.NODES])
async def test_where_no_rules_are_served_nodes_are_tainted(run: Run, choice: Choice) -> None:
    async with run(None, choice) as subject:
        await subject.served_as("")

        assert subject.caches.locate(NODE, 3) == ON_NODE
        assert subject.held() == []


async def test_where_the_operator_wants_rules_it_waits_for_them_and_says_so(run: Run) -> None:
    async with run(None, Choice.RULES) as subject:
        said = "the API server serves no version of DeviceTaintRule; expected one, or --backend=auto"
        await eventually(lambda: subject.caches.not_ready() == said, what="what it waits for")
        subject.server.serve("v1")
        await subject.served_as("v1")

        assert subject.caches.locate(NODE, 3) == Target(DRIVER, NODE, "neuron-device-3")


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
async def test_rules_that_are_served_later_are_found(run: Run, version: str) -> None:
    async with run(None) as subject:
        await subject.served_as("")
        assert subject.caches.locate(NODE, 3) == ON_NODE
        subject.changes.clear()
        subject.server.serve(version)
        await subject.served_as(version)

        assert [one.key for one in subject.held()] == [HELD.key]
        assert subject.caches.locate(NODE, 3) == HELD.target
        assert subject.changes, "whoever levels the records must know"


async def test_a_cluster_without_rules_is_asked_every_five_seconds_at_least(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, float]] = []

    def shortest(low: float, high: float) -> float:
        asked.append((low, high))
        return 0.01

    monkeypatch.setattr(rules_served, "AGAIN_SECONDS", 5.0)
    monkeypatch.setattr(rules_served, "random", SimpleNamespace(uniform=shortest))
    async with run(None) as subject:
        await eventually(lambda: subject.server.discovered > 2, what="some looks")

    assert asked
    assert all(0.1 <= low <= high <= 5 for low, high in asked), "and not in a tight loop"


async def test_an_upgrade_from_one_version_to_another_keeps_every_record(run: Run) -> None:
    """At no moment is there none: their devices would be free for what comes in between."""
    async with run("v1beta2") as subject:
        await subject.served_as("v1beta2")
        (before,) = subject.held()
        subject.server.serve("v1")
        await subject.served_as("v1")

        assert subject.held() == [before]
        assert [after for _, after, _ in subject.told] == [before], "it came once, and nothing has happened to it since"


async def test_what_was_on_rules_that_are_served_no_more_is_out_of_force_and_not_lost(run: Run) -> None:
    """Its latch, above all: whoever levels the records puts it on the Node, without a firing where it is latched."""
    async with run("v1") as subject:
        await subject.served_as("v1")
        (before,) = subject.held()
        subject.changes.clear()
        subject.server.serve(None)
        await subject.served_as("")

        (after,) = subject.held()
        assert after == replace(
            before, target=ON_NODE, taint=replace(before.taint, effect=Effect.NONE), state=State.WITHHELD
        )
        assert subject.told[-1] == (before, after, True)
        assert subject.caches.locate(NODE, 3) == ON_NODE
        assert subject.changes
        subject.server.serve("v1")
        await subject.served_as("v1")
        assert subject.held() == [before]


async def test_rules_that_some_server_does_not_know_stay_in_force(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a control plane is upgraded, its servers differ: nothing is decided then, and nothing moves."""
    monkeypatch.setattr(rules_served, "DOUBT_SECONDS", 600.0)
    async with run("v1") as subject:
        await subject.served_as("v1")
        held, discovered = subject.held(), subject.server.discovered
        subject.server.serve(None)
        await eventually(lambda: subject.server.discovered > discovered + 2, what="several looks")
        assert subject.caches.not_ready() == "waiting for a list of devicetaintrules"
        subject.server.serve("v1")
        await subject.ready()

        assert subject.held() == held
        assert len(subject.told) == 1


async def test_one_404_is_no_proof(run: Run) -> None:
    """Discovery still says that rules are served: they stay as they were, until they can be listed again."""
    async with run("v1") as subject:
        await subject.served_as("v1")
        held, discovered = subject.held(), subject.server.discovered
        subject.server.refusing = 2  # a watch, and the list that follows
        subject.server.cut()
        await eventually(lambda: subject.server.discovered > discovered, what="a new look")
        assert subject.held() == held
        await subject.ready()

        assert subject.held() == held
        assert len(subject.told) == 1


async def test_a_page_that_somebody_in_between_puts_up_is_no_proof(run: Run) -> None:
    """It would put every rule there is out of force, and taint Nodes instead."""
    async with run("v1") as subject:
        await subject.served_as("v1")
        held = subject.held()
        subject.server.page_in_the_way = True
        subject.server.cut()
        await eventually(lambda: subject.caches.not_ready() is not None, what="it to be noticed")
        assert (subject.held(), subject.caches.records.version) == (held, "v1")
        subject.server.page_in_the_way = False
        await subject.ready()

        assert subject.held() == held
        assert len(subject.told) == 1
