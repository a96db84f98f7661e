"""What the caches know, when they say that something changed, and how seldom they ask for a Node that is not there.

The server is scripted; the same caches on a real one are in test_cluster.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from alerts.faults import Effect
from remediator import node_cache
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.errors import UnavailableError
from remediator.inventory import (
    DeviceTaint,
    Node,
    NodeAnnotations,
    NodeLabels,
    NodeMetadata,
    NodeSpec,
    Slice,
)
from remediator.placement import Choice
from remediator.targets import NodeTarget, Place, Target
from tests.remediator.fakes import eventually
from tests.remediator.samples import DRIVER, LONG_AGO, NODE, device, resource_slice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

    from remediator.node_records import NodeTaint

TAINT = DeviceTaint("neuron.aws.com/device-unhealthy", "hbm-uncorrectable-error", Effect.NO_EXECUTE)


@dataclass
class Nodes:
    """An API server that answers reads of single Nodes when `gate` opens: with one of that name, a 404 or a failure."""

    there: set[str] = field(default_factory=set)
    failing: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one read."""
        name = request.path.rpartition("/")[2]
        self.asked.append(name)
        await self.gate.wait()
        if self.failing:
            return web.json_response({"kind": "Status", "reason": "InternalError"}, status=500)
        if name not in self.there:
            return web.json_response({"kind": "Status", "reason": "NotFound", "details": {"name": "it"}}, status=404)
        return web.json_response(
            {"metadata": {"name": name, "uid": "live", "creationTimestamp": "2026-11-30T11:00:00Z"}}
        )


@dataclass
class Subject:
    """The caches, their server, a clock, and how often a change was told."""

    caches: Caches
    server: Nodes
    seconds: list[float]
    changes: list[None]

    def told(self) -> int:
        """How many changes were told since the last look."""
        count = len(self.changes)
        self.changes.clear()
        return count


@pytest.fixture
async def subject(
    aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Subject]:
    """Give caches that are not running: tests tell them what the watches would."""
    monkeypatch.setenv("NO_PROXY", "*")
    server = Nodes()
    server.gate.set()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    running = await aiohttp_server(app)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"clusters: [{{name: x, cluster: {{server: 'http://{running.host}:{running.port}'}}}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    seconds, changes = [0.0], list[None]()
    async with connect(kubeconfig) as api:
        caches = Caches(api, driver=DRIVER, elapsed=lambda: seconds[0], on_change=lambda: changes.append(None))
        caches._served_as("v1")
        changes.clear()
        yield Subject(caches, server, seconds, changes)


def opted_out(caches: Caches, name: str) -> bool:
    """What a decision is told of the Node that memory has, if it has it."""
    found = caches.known_node(name)
    return found is not None and found.opted_out


def node(
    name: str = NODE,
    *,
    uid: str = "uid-1",
    kind: str = "trn2.48xlarge",
    opt_out: str = "",
    version: str = "1",
    records: str = "",
    taints: list[NodeTaint] | None = None,
) -> Node:
    metadata = NodeMetadata(name, uid, LONG_AGO, NodeLabels(opt_out, kind), version, NodeAnnotations(records))
    return Node(metadata, NodeSpec(taints))


def slice_of(name: str, *taints: DeviceTaint, count: int = 2) -> Slice:
    devices = [device(f"neuron-device-{number}", number, *taints) for number in range(count)]
    return resource_slice(*devices, name=f"slice-of-{name}", node_name=name, pool=name)


async def test_a_heartbeat_is_no_change(subject: Subject) -> None:
    """Thirty-three a second of them come in a large cluster."""
    nodes = subject.caches.node_cache
    nodes.put(node())
    assert subject.told() == 1
    for version in range(2, 10):
        nodes.put(node(version=str(version)))
    assert subject.told() == 0


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(node(uid="uid-2", version="2"), id="another-machine"),
        pytest.param(node(opt_out="true", version="2"), id="opted-out"),
        pytest.param(node(kind="trn2u.48xlarge", version="2"), id="another-type"),
        pytest.param(node(records="{}", version="2"), id="records"),
        pytest.param(node(taints=[{"key": "a", "effect": "NoSchedule"}], version="2"), id="tainted"),
    ],
)
async def test_what_decisions_depend_on_is_a_change(subject: Subject, changed: Node) -> None:
    nodes = subject.caches.node_cache
    nodes.put(node())
    subject.told()
    nodes.put(changed)
    assert (subject.told(), subject.caches.known_node(NODE)) == (1, changed)
    nodes.remove(changed)
    assert (subject.told(), subject.caches.known_node(NODE)) == (1, None)
    nodes.remove(changed)
    assert subject.told() == 0


async def test_a_list_that_says_what_is_known_is_no_change(subject: Subject) -> None:
    caches = subject.caches
    caches.node_cache.replace([node("a"), node("b")], "5")
    caches._slices.replace([slice_of("a"), slice_of("b")], "5")
    assert subject.told() == 2
    caches.node_cache.replace([node("b", version="9"), node("a")], "9")
    caches._slices.replace([slice_of("b"), slice_of("a")], "9")
    assert subject.told() == 0
    caches.node_cache.replace([node("b")], "10")
    caches._slices.replace([slice_of("a", TAINT), slice_of("b")], "10")
    assert subject.told() == 2


async def test_changed_slices_are_told(subject: Subject) -> None:
    slices = subject.caches._slices
    slices.put(slice_of("a"))
    slices.put(slice_of("a"))
    assert subject.told() == 1
    slices.put(slice_of("a", TAINT))
    assert subject.told() == 1
    slices.remove(slice_of("a", TAINT))
    assert subject.told() == 1


async def test_a_change_is_told_after_it_is_known(subject: Subject) -> None:
    seen: list[tuple[bool, int]] = []
    caches = subject.caches
    caches._on_change = lambda: seen.append((opted_out(caches, NODE), caches.targets()))
    caches.node_cache._on_change = caches._on_change
    caches.node_cache.put(node(opt_out="true"))
    caches._slices.put(slice_of(NODE))

    assert seen == [(True, 1), (True, 2)]


async def test_the_budget_is_a_share_of_devices_and_of_neuron_nodes_without_slices(subject: Subject) -> None:
    caches = subject.caches
    caches.node_cache.replace([node("a"), node("b", kind="inf2.xlarge"), node("c", kind="m5.large")], "5")
    assert caches.targets() == 2
    caches._slices.put(slice_of("a", TAINT, count=16))
    assert caches.targets() == 17
    assert caches.unavailable() == {Place("a", f"neuron-device-{number}") for number in range(16)}
    assert set(caches.taints()) == caches.unavailable()
    caches.node_cache.put(node("d"))
    assert caches.targets() == 18
    caches._slices.remove(slice_of("a", TAINT, count=16))
    assert caches.targets() == 3
    assert caches.unavailable() == set()
    caches.node_cache.remove(node("a"))
    assert caches.targets() == 2


def by_node_alone(subject: Subject, why: str) -> None:
    """Nothing but Nodes can be tainted, as the operator wants it or as no rules are served."""
    if why == "not-served":
        subject.caches._served_as("")
    else:
        subject.caches._choice = Choice.NODES


@pytest.mark.parametrize("why", ["not-served", "asked-for"])
async def test_where_nothing_but_nodes_can_be_tainted_the_budget_counts_those(subject: Subject, why: str) -> None:
    caches = subject.caches
    caches.node_cache.replace([node("a"), node("b"), node("c", kind="m5.large")], "5")
    caches._slices.put(slice_of("a", TAINT, count=16))
    assert (caches.targets(), len(caches.unavailable())) == (17, 16)
    by_node_alone(subject, why)

    assert caches.targets() == 2
    assert caches.unavailable() == {Place("a", "")}
    caches._slices.put(slice_of("b", count=16))
    assert caches.targets() == 2
    assert caches.unavailable() == {Place("a", "")}


async def test_what_a_device_is_tainted_by_follows_slices_and_rules(subject: Subject) -> None:
    """With the operator's word above both."""
    caches, device = subject.caches, Target(DRIVER, NODE, "neuron-device-1")
    assert caches.locate(NODE, 1) == NodeTarget(NODE, replace(device, placed=False))
    assert not caches.locate(NODE, 1).placed
    caches._slices.put(slice_of(NODE))
    assert caches.locate(NODE, 1) == device
    by_node_alone(subject, "not-served")
    assert caches.locate(NODE, 1) == NodeTarget(NODE, device)
    assert caches.locate(NODE, 1).placed
    caches._choice = Choice.RULES
    assert caches.locate(NODE, 1) == device


async def test_only_taints_of_others_on_a_node_are_told(subject: Subject) -> None:
    mine = {"key": TAINT.key, "value": TAINT.value, "effect": "NoExecute"}
    other = {"key": TAINT.key, "effect": "NoSchedule", "timeAdded": "2026-11-30T12:00:00Z"}
    book = json.dumps({"uid": "uid-1", "taints": [mine], "records": []})
    subject.caches.node_cache.put(node(records=book, taints=[mine, other, {"key": "x", "effect": "PreferNoSchedule"}]))

    assert list(subject.caches.node_taints(NODE)) == [
        DeviceTaint(TAINT.key, "", Effect.NO_SCHEDULE),
        DeviceTaint("x", "", Effect.NONE),
    ]
    assert not subject.caches.node_taints("not-there")


async def test_nodes_of_interest(subject: Subject) -> None:
    """Those with devices, and those that an alert spoke of, as long as they are there."""
    caches = subject.caches
    others = [node(name, kind="m5.large") for name in "cd"]
    caches.node_cache.replace([node("a", kind=""), node("b"), *others], "5")
    caches._slices.put(slice_of("a"))
    caches._slices.put(slice_of("gone"))
    await caches.node("c")
    assert set(caches.nodes()) == {"a", "b", "c"}

    caches.node_cache.remove(node("c"))
    caches.node_cache.put(node("c", kind="m5.large"))
    assert set(caches.nodes()) == {"a", "b"}


async def test_only_the_word_true_opts_out(subject: Subject) -> None:
    nodes = subject.caches.node_cache
    nodes.put(node("a", opt_out="true"))
    nodes.put(node("b", opt_out="yes"))

    assert [opted_out(subject.caches, name) for name in ("a", "b", "unknown")] == [True, False, False]


async def test_a_known_node_is_not_asked_for(subject: Subject) -> None:
    subject.caches.node_cache.put(node())

    assert await subject.caches.node(NODE) == node()
    assert subject.server.asked == []


async def test_an_unknown_node_is_asked_for_once_a_second(subject: Subject) -> None:
    """An exporter on a machine that is not in this cluster must not become load on its API server."""
    for _ in range(20):
        assert await subject.caches.node("other") is None
    assert subject.server.asked == ["other"]
    subject.seconds[0] += node_cache.ANSWER_SECONDS
    subject.server.there.add("other")

    found = await subject.caches.node("other")
    assert found is not None
    assert subject.server.asked == ["other"] * 2


async def test_an_event_stands_above_every_answer(subject: Subject) -> None:
    nodes = subject.caches.node_cache
    assert await subject.caches.node(NODE) is None
    nodes.put(node())
    assert await subject.caches.node(NODE) == node()
    nodes.remove(node())
    subject.server.there.add(NODE)

    assert await subject.caches.node(NODE) is not None, "the answer from before the events still counts"


async def test_an_event_that_comes_while_the_answer_is_under_way_wins(subject: Subject) -> None:
    subject.server.gate.clear()
    asking = asyncio.create_task(subject.caches.node(NODE))
    await eventually(lambda: subject.server.asked, what="the read")
    subject.caches.node_cache.put(node())
    subject.server.gate.set()

    assert await asking == node()


async def test_many_who_want_to_know_ask_once(subject: Subject) -> None:
    subject.server.gate.clear()
    subject.server.there.add(NODE)
    asking = [asyncio.create_task(subject.caches.node(NODE)) for _ in range(30)]
    await eventually(lambda: subject.server.asked, what="the read")
    subject.server.gate.set()

    assert {found.metadata.uid for found in await asyncio.gather(*asking) if found} == {"live"}
    assert subject.server.asked == [NODE]


async def test_many_who_want_to_know_learn_of_a_failure_together(subject: Subject) -> None:
    """One after the other would each wait until the request before it has timed out."""
    subject.server.gate.clear()
    subject.server.failing = True
    asking = [asyncio.create_task(subject.caches.node(NODE)) for _ in range(30)]
    await eventually(lambda: subject.server.asked, what="the read")
    subject.server.gate.set()

    results = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    assert subject.server.asked == [NODE]
    subject.server.failing = False
    assert await subject.caches.node(NODE) is None, "a failure says nothing about the node"


async def test_who_asks_for_others_may_be_cancelled(subject: Subject) -> None:
    subject.server.gate.clear()
    asking = [asyncio.create_task(subject.caches.node(NODE)) for _ in range(3)]
    await eventually(lambda: subject.server.asked, what="the read")
    asking[0].cancel()
    await eventually(lambda: len(subject.server.asked) == 2, what="the read of the next one")
    subject.server.gate.set()

    cancelled, *others = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert others == [None, None]


async def test_a_live_look_is_always_a_new_one(subject: Subject) -> None:
    subject.caches.node_cache.put(node())
    assert await subject.caches.node(NODE, live=True) is None
    subject.server.there.add(NODE)
    found = await subject.caches.node(NODE, live=True)

    assert found is not None
    assert found.metadata.uid == "live"
    assert subject.server.asked == [NODE] * 2


async def test_names_that_alerts_invent_do_not_fill_the_memory(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_cache, "_ANSWERS", 5)
    for number in range(20):
        assert await subject.caches.node(f"invented-{number}") is None

    assert len(subject.caches.node_cache._answers) == 5
    assert await subject.caches.node("invented-19") is None
    assert len(subject.server.asked) == 20
