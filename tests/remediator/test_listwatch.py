"""List and watch against a server that does what servers do: pages, cuts, expiry, silence, nonsense.

A watch must come back from all of it by itself, see every change, and never ask in a tight loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from remediator import listwatch
from remediator.cluster import connect
from remediator.errors import NotServedError
from remediator.inventory import Node
from remediator.listwatch import OUT_OF_TOUCH_SECONDS, ListWatch, as_it_came
from tests.remediator.apiserver import ScriptedCollection, Step, bookmark, events, page, status, text
from tests.remediator.fakes import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

    from remediator.cluster import Api

PATH = "/api/v1/nodes"


@dataclass
class Names:
    """A sink that keeps the names, and how often it was filled anew."""

    names: set[str] = field(default_factory=set)
    fills: int = 0

    def replace(self, objects: list[Node], resource_version: str) -> None:
        """Take a list."""
        assert resource_version.isdigit()
        self.fills += 1
        self.names = {node.metadata.name for node in objects}

    def put(self, object_: Node) -> None:
        """Take one."""
        self.names.add(object_.metadata.name)

    def remove(self, object_: Node) -> None:
        """Drop one."""
        self.names.discard(object_.metadata.name)


def node(name: str, version: int = 1, **metadata: Any) -> dict[str, Any]:
    """A Node as the API server writes it."""
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-30T11:00:00Z",
        }
        | metadata,
    }


@dataclass
class Seconds:
    """A monotonic clock that stands until it is moved."""

    now: float = 0.0

    def __call__(self) -> float:
        """Say what time it is."""
        return self.now


@dataclass(frozen=True)
class Watching:
    """A running watch, its server and its sink."""

    server: ScriptedCollection
    sink: Names
    watch: ListWatch[Node, Node]
    clock: Seconds
    task: asyncio.Task[None]
    kept: list[tuple[str, int]]
    """Each object that was made compact, and how many pages had been asked for by then."""


Watch = Callable[..., Awaitable[Watching]]


@asynccontextmanager
async def api_of(server: ScriptedCollection, aiohttp_server: AiohttpServer, folder: Path) -> AsyncIterator[Api]:
    """Connect to the scripted server as to any cluster."""
    running = await aiohttp_server(server.app())
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"clusters: [{{name: x, cluster: {{server: 'http://{running.host}:{running.port}'}}}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    async with connect(kubeconfig) as api:
        yield api


@pytest.fixture
async def watch(aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watch]:
    """Give a way to start watching a scripted server; it stops after the test."""
    monkeypatch.setenv("NO_PROXY", "*")
    async with AsyncExitStack() as stack:

        async def start(server: ScriptedCollection, pause: float = 0.0) -> Watching:
            api = await stack.enter_async_context(api_of(server, aiohttp_server, tmp_path))
            sink, clock = Names(), Seconds()
            kept: list[tuple[str, int]] = []

            def keep(object_: Node) -> Node:
                kept.append((object_.metadata.name, len(server.listed)))
                return as_it_came(object_)

            watching = ListWatch(api, PATH, Node, keep, sink, {"labelSelector": "a=b"}, clock, pause)
            task = asyncio.create_task(watching.run())
            stack.push_async_callback(ended, task)
            return Watching(server, sink, watching, clock, task, kept)

        yield start


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel the watch and see that it was alive until now."""
    assert not task.done(), task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_list_comes_in_pages_and_is_taken_whole(watch: Watch) -> None:
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a"), following="t1"), page(node("b"), following="t2"), page(node("c"), version=9)],
            watches=[events(then="stay")],
        )
    )
    await eventually(lambda: watching.server.watched, what="the watch")

    assert watching.watch.current
    assert (watching.sink.names, watching.sink.fills) == ({"a", "b", "c"}, 1)
    assert [query.get("continue") for query in watching.server.listed] == [None, "t1", "t2"]
    assert {query["limit"] for query in watching.server.listed} == {"500"}
    assert {query["labelSelector"] for query in watching.server.listed + watching.server.watched} == {"a=b"}
    assert watching.server.watched[0]["resourceVersion"] == "9"
    assert watching.server.watched[0]["allowWatchBookmarks"] == "true"


async def test_a_list_whose_next_page_has_expired_begins_anew(watch: Watch) -> None:
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a"), following="t1"), status(410), page(node("b"), version=2)],
            watches=[events(then="stay")],
        )
    )
    await eventually(lambda: watching.watch.current, what="a list that succeeds")

    assert watching.sink.names == {"b"}
    assert "continue" not in watching.server.listed[2]


async def test_events_change_what_is_kept(watch: Watch) -> None:
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a"), node("b"))],
            watches=[
                events(
                    ("ADDED", node("c", 2)),
                    ("MODIFIED", node("a", 3)),
                    ("DELETED", node("b", 4)),
                    ("INVENTED", node("d", 5)),
                    bookmark(6),
                    then="stay",
                )
            ],
        )
    )

    await eventually(lambda: watching.sink.names == {"a", "c"}, what="the events")


async def test_a_watch_that_ends_goes_on_where_it_was_without_a_new_list(watch: Watch) -> None:
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a"))],
            watches=[
                events(("ADDED", node("b", 5)), bookmark(8)),
                events(),
                events(("ADDED", node("c", 9)), then="stay"),
            ],
        )
    )
    await eventually(lambda: "c" in watching.sink.names, what="the event of the third watch")

    assert [query["resourceVersion"] for query in watching.server.watched] == ["1", "8", "8"]
    assert (watching.sink.fills, watching.sink.names) == (1, {"a", "b", "c"})


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(events(("ERROR", {"kind": "Status", "code": 410, "message": "too old"})), id="expired-event"),
        pytest.param(status(410), id="expired"),
        pytest.param(events(("ERROR", {"kind": "Status", "code": 500})), id="error-event"),
        pytest.param(status(500), id="error"),
        pytest.param(status(403), id="forbidden"),
        pytest.param(text("<html>", 502), id="proxy"),
        pytest.param(events('{"type":"ADDED","obj', then="cut"), id="cut-in-a-line"),
        pytest.param(events('{"type":"ADDED","obj'), id="ended-in-a-line"),
        pytest.param(events(("ADDED", node("b")), then="cut"), id="cut"),
        pytest.param(events("nonsense\n"), id="nonsense"),
        pytest.param(events("<html>\n<body>please log in</body>\n</html>\n"), id="page-of-a-proxy-that-says-200"),
        pytest.param(events(("ERROR", node("b"))), id="error-that-looks-like-a-node"),
        pytest.param(events(("BOOKMARK", {"metadata": {}})), id="bookmark-without-version"),
        pytest.param(events(("ADDED", node("b", resourceVersion="x"))), id="version-no-number"),
        pytest.param(events("\n"), id="empty-line"),
        pytest.param(events(("ADDED", {"metadata": {}})), id="no-node"),
        pytest.param(events("x" * 5_000_000), id="line-without-end"),
    ],
)
async def test_after_trouble_with_a_watch_everything_is_listed_anew(
    watch: Watch, trouble: Step, caplog: pytest.LogCaptureFixture
) -> None:
    """What was missed meanwhile is in the list (python-base#57, kubernetes#104171)."""
    watching = await watch(
        ScriptedCollection(lists=[page(node("a")), page(node("z"), version=7)], watches=[trouble, events(then="stay")])
    )
    await eventually(lambda: len(watching.server.watched) == 2, what="the second watch")

    assert (watching.sink.names, watching.sink.fills) == ({"z"}, 2)
    assert watching.server.watched[1]["resourceVersion"] == "7"
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_silent_watch_is_given_up(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is gone sends nothing, for ever; bookmarks tell a quiet collection from it."""
    monkeypatch.setattr(listwatch, "_WATCH_TIMEOUT", aiohttp.ClientTimeout(total=30, sock_read=0.1))
    watching = await watch(
        ScriptedCollection(lists=[page(node("a")), page(node("z"), version=7)], watches=[events(then="stay")])
    )

    await eventually(lambda: watching.sink.names == {"z"}, what="the list after the silence")


async def test_a_watch_that_is_never_answered_is_given_up(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that took the request and hangs: until it is given up nothing is watched at all."""
    monkeypatch.setattr(listwatch, "_WATCH_BEGINS_SECONDS", 0.1)
    watching = await watch(ScriptedCollection(lists=[page(node("a")), page(node("z"), version=7)], watches=[hang]))

    await eventually(lambda: watching.sink.names == {"z"}, what="the list after the wait")


async def hang(_request: web.Request) -> web.StreamResponse:
    """Answer nothing, not even the headers."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_an_answered_watch_may_be_quiet_for_long(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the beginning of the answer is awaited with impatience."""
    monkeypatch.setattr(listwatch, "_WATCH_BEGINS_SECONDS", 0.2)
    quiet = asyncio.Event()
    watching = await watch(ScriptedCollection(lists=[page(node("a"))], watches=[quiet_then(quiet, node("b", 2))]))
    await eventually(lambda: watching.server.watched, what="the watch")
    started = time.monotonic()
    await eventually(lambda: time.monotonic() - started > 0.4, what="twice the time to begin")
    quiet.set()

    await eventually(lambda: watching.sink.names == {"a", "b"}, what="the event after the silence")
    assert len(watching.server.watched) == 1


def quiet_then(event: asyncio.Event, object_: dict[str, Any]) -> Step:
    """A watch that sends its headers, and one event when it is told to."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await event.wait()
        await response.write(json.dumps({"type": "ADDED", "object": object_}).encode() + b"\n")
        await asyncio.Event().wait()
        return response

    return step


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param([status(500)], id="error"),
        pytest.param([status(401)], id="unauthorized"),
        pytest.param([status(404)], id="not-served"),
        pytest.param([status(429), text("<html>")], id="throttled-then-nonsense"),
        pytest.param([text('{"metadata":{},"items":[{"metadata":{}}]}')], id="no-nodes"),
    ],
)
async def test_until_a_list_succeeds_nothing_is_known(
    watch: Watch, trouble: list[Step], caplog: pytest.LogCaptureFixture
) -> None:
    watching = await watch(ScriptedCollection(lists=[*trouble, page(node("a"))], watches=[events(then="stay")]))
    await eventually(lambda: watching.watch.current, what="a list that succeeds")

    assert (watching.sink.names, watching.sink.fills) == ({"a"}, 1)
    retries = [record for record in caplog.records if record.getMessage() == "listing: will retry"]
    assert len(retries) == len(trouble)
    assert all(vars(record)["path"] == PATH and vars(record)["error"] for record in retries)


@pytest.mark.parametrize("before", [[], [page(node("a"))]], ids=["never-served", "served-before"])
@pytest.mark.parametrize("trouble", [[], [status(500), text("<html>")]], ids=["at-once", "after-trouble"])
async def test_one_that_is_to_end_when_there_is_no_such_collection_does(
    before: list[Step],
    trouble: list[Step],
    aiohttp_server: AiohttpServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And for no other trouble. What is kept is not relied on then, and is still there."""
    monkeypatch.setenv("NO_PROXY", "*")
    not_served = status(404, "the server could not find the requested resource")
    server = ScriptedCollection(lists=[*before, *trouble, not_served], watches=[not_served])
    sink = Names()
    async with api_of(server, aiohttp_server, tmp_path) as api:
        watch = ListWatch(api, PATH, Node, as_it_came, sink, {}, Seconds(), ends_when_not_served=True)
        with pytest.raises(NotServedError):
            await asyncio.wait_for(watch.run(), timeout=20)

    assert not watch.current
    assert len(server.listed) == len(before) + len(trouble) + 1
    assert (sink.names, sink.fills) == (({"a"}, 1) if before else (set(), 0))


async def test_a_server_that_ends_every_watch_is_not_asked_in_a_tight_loop(watch: Watch) -> None:
    """Watches that answered 200 with an empty body came in a loop (kubernetes-client/python#728)."""
    watching = await watch(ScriptedCollection(lists=[page(node("a"))], watches=[events()]))
    await eventually(lambda: len(watching.server.watched) == 4, what="some watches")

    times = watching.server.watched_at
    assert all(later - earlier >= 0.09 for earlier, later in pairwise(times))


async def test_a_server_that_refuses_every_watch_is_not_asked_in_a_tight_loop(watch: Watch) -> None:
    watching = await watch(ScriptedCollection(lists=[page(node("a"))], watches=[status(500)]))
    await eventually(lambda: len(watching.server.watched) == 4, what="some watches")

    times = watching.server.watched_at
    assert all(later - earlier >= 0.09 for earlier, later in pairwise(times))


async def test_each_watch_that_tells_nothing_is_followed_by_a_longer_pause(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal costs a whole list; an event or a bookmark shows that watching works again."""
    pauses: list[float] = []

    def shortest(low: float, high: float) -> float:
        pauses.append(high)
        return low / 10

    monkeypatch.setattr(listwatch, "random", SimpleNamespace(uniform=shortest))
    refused, told = status(500), events(bookmark(5))
    watches = [*[refused] * 5, told, refused, events(then="stay")]
    watching = await watch(ScriptedCollection(lists=[page(node("a"))], watches=watches))
    await eventually(lambda: len(watching.server.watched) == len(watches), what="the last watch")

    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0, 0.5, 0.5]


async def test_of_the_wide_form_one_page_is_in_memory_at_most(watch: Watch) -> None:
    """Ten thousand objects as they come are hundreds of megabytes."""
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a"), node("b"), following="t1"), page(node("c"))],
            watches=[events(("ADDED", node("d", 2)), ("DELETED", node("a", 3)), then="stay")],
        ),
    )
    await eventually(lambda: watching.sink.names == {"b", "c", "d"}, what="the events")

    assert watching.kept == [("a", 1), ("b", 1), ("c", 2), ("d", 2), ("a", 2)]


async def test_a_collection_out_of_touch_for_long_is_not_relied_on(watch: Watch) -> None:
    """Once listed is not current for ever: while lists fail, decisions on old knowledge must end."""
    watching = await watch(
        ScriptedCollection(
            lists=[page(node("a")), *[status(403)] * 3, page(node("b"))], watches=[events(), status(500)]
        )
    )
    await eventually(lambda: len(watching.server.listed) > 1, what="a list that fails")
    before = watching.watch.current
    watching.clock.now += OUT_OF_TOUCH_SECONDS
    assert (before, watching.watch.current) == (True, False)

    await eventually(lambda: watching.watch.current, what="a list that succeeds again")
    assert watching.sink.names == {"b"}


async def test_who_must_be_certain_has_it_listed_anew(watch: Watch) -> None:
    """A watch whose peer is dead looks like one of a collection in which nothing happens."""
    gate = asyncio.Event()

    async def later(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await page(node("b"), version=5)(request)

    watching = await watch(ScriptedCollection(lists=[page(node("a")), later], watches=[events(then="stay")]))
    await eventually(lambda: watching.server.watched, what="the watch")
    watching.clock.now += 1
    watching.watch.renew(older_than=2)
    told = [watching.watch.current]
    watching.watch.renew(older_than=1)
    told.append(watching.watch.current)
    await eventually(lambda: len(watching.server.listed) == 2, what="the new list")
    told.append(watching.watch.current)
    assert told == [True, False, False], "it was young enough, and then it was not"
    gate.set()
    await eventually(lambda: watching.watch.current, what="its end")

    assert watching.sink.names == {"b"}
    await eventually(lambda: len(watching.server.watched) == 2, what="the new watch")
    assert watching.server.watched[1]["resourceVersion"] == "5"


async def test_events_may_be_taken_in_bursts_and_none_is_lost(watch: Watch) -> None:
    """Larger together than what is read at once, with the end of the watch right behind them."""
    sent = [("ADDED", node(f"n-{number}", number + 2, annotations={"x": "y" * 20_000})) for number in range(300)]
    watching = await watch(
        ScriptedCollection(lists=[page()], watches=[events(*sent), events(bookmark(400), then="stay")]), pause=0.05
    )
    await eventually(lambda: len(watching.server.watched) == 2, what="the next watch")

    assert len(watching.sink.names) == 300
    assert watching.server.watched[1]["resourceVersion"] == "301"


async def test_a_burst_may_be_left_in_the_middle(watch: Watch) -> None:
    """The process ends while nothing is taken from the connection: the fixture sees that no task is left."""
    watching = await watch(
        ScriptedCollection(lists=[page()], watches=[events(("ADDED", node("a", 2)), then="stay")]), pause=60
    )
    await eventually(lambda: watching.sink.names == {"a"}, what="the event")

    assert watching.watch.current
