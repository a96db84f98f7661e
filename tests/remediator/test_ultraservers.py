"""Which nodes make up an UltraServer, on the real API server with the permissions that ship."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from remediator import listwatch
from remediator.cluster import connect
from remediator.errors import Refusal, UnavailableError
from remediator.ultraservers import LARGEST, UltraServers, members_of, nodes_of
from tests.remediator.fakes import eventually
from tests.remediator.live import USER
from tests.stack import crds
from tests.stack.pipeline import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

ROLE = "neuron-remediator"
LOOK_SECONDS = 0.3


class Subject:
    """What is known of UltraServers, and how often a change was told."""

    def __init__(self, ultraservers: UltraServers, changes: list[None]) -> None:
        self.ultraservers = ultraservers
        self.changes = changes

    async def becomes(self, *groups: set[str]) -> None:
        """Wait until exactly these are the UltraServers, and that was told."""
        expected = members_of(map(frozenset, groups))
        await eventually(lambda: self.ultraservers.members() == expected, what=f"members {groups}")
        assert self.changes
        self.changes.clear()


@asynccontextmanager
async def running(kubeconfig: Path) -> AsyncIterator[Subject]:
    """Run one that looks more often than usual."""
    changes: list[None] = []
    async with connect(kubeconfig) as api, asyncio.TaskGroup() as group:
        ultraservers = UltraServers(
            api, elapsed=time.monotonic, on_change=lambda: changes.append(None), look_seconds=LOOK_SECONDS
        )
        assert ultraservers.members() is None
        task = group.create_task(ultraservers.run())
        yield Subject(ultraservers, changes)
        task.cancel()


@pytest.fixture
async def subject(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Subject]:
    """Give one on a cluster without such objects."""
    install(control_plane)
    async with running(control_plane.kubeconfig(USER)) as one:
        yield one


async def in_a_thread(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Do something in the cluster, while the loop goes on."""
    return await asyncio.to_thread(call, *arguments, **named)


async def ended(caplog: pytest.LogCaptureFixture) -> None:
    """Wait until it has heard that they are not served as they were, some seconds after that is so."""
    caplog.set_level("INFO")
    await eventually(lambda: "no longer served there" in caplog.text, what="the end of the watch")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_members_follow_the_objects_from_their_coming_to_their_end(
    subject: Subject, admin: Admin, version: crds.Version, caplog: pytest.LogCaptureFixture
) -> None:
    await subject.becomes()
    await in_a_thread(admin.serve_ultraservers, version)
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u2"])
    await subject.becomes({"u1", "u2"})
    await in_a_thread(admin.ultraserver, "us-1", ["u3"], namespace="kube-system")
    await subject.becomes({"u1", "u2"}, {"u3"})
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u4"])
    await subject.becomes({"u1", "u4"}, {"u3"})
    await in_a_thread(admin.delete, crds.KIND, "us-1")
    await subject.becomes({"u3"})
    await in_a_thread(admin.stop_serving_ultraservers)
    await subject.becomes()
    await ended(caplog)
    await in_a_thread(admin.serve_ultraservers, version)
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u2"])
    await subject.becomes({"u1", "u2"})


async def test_what_is_no_change_of_members_is_not_told(subject: Subject, admin: Admin) -> None:
    await in_a_thread(admin.serve_ultraservers, "v1")
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u2"])
    await subject.becomes({"u1", "u2"})
    await in_a_thread(admin.ultraserver, "us-1", ["u2", "u1"], state="Degraded")
    await in_a_thread(admin.ultraserver, "us-2", ["u3"])
    await subject.becomes({"u1", "u2"}, {"u3"})
    assert not subject.changes


async def test_they_are_followed_into_another_version(
    subject: Subject, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the operator is upgraded."""
    await in_a_thread(admin.serve_ultraservers, "v1beta1")
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u2"])
    await subject.becomes({"u1", "u2"})
    await in_a_thread(admin.serve_ultraservers, "v1")
    await ended(caplog)
    await subject.becomes({"u1", "u2"})
    await in_a_thread(admin.ultraserver, "us-1", ["u1", "u3"])
    await subject.becomes({"u1", "u3"})


async def allow(admin: Admin, *, allowed: bool) -> None:
    """Give the remediator the right to read them, or take it away."""

    def change() -> None:
        rules = admin.get("ClusterRole", ROLE)["rules"]
        others = [rule for rule in rules if rule["apiGroups"] != [crds.GROUP]]
        own = [{"apiGroups": [crds.GROUP], "resources": [crds.PLURAL], "verbs": ["list", "watch"]}]
        admin.patch("ClusterRole", ROLE, {"rules": others + (own if allowed else [])})

    await asyncio.to_thread(change)


async def test_without_the_right_to_read_them_there_are_none(
    control_plane: ControlPlane, admin: Admin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who upgrades has the ClusterRole of the version before; and rights may be taken away at any time."""
    monkeypatch.setattr(listwatch, "_WATCH_SECONDS", 1)
    monkeypatch.setattr(listwatch, "OUT_OF_TOUCH_SECONDS", 0.5)
    install(control_plane)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(allow, admin, allowed=True)
        await allow(admin, allowed=False)
        await in_a_thread(admin.serve_ultraservers, "v1")
        await in_a_thread(admin.ultraserver, "us-1", ["u1", "u2"])
        subject = await stack.enter_async_context(running(control_plane.kubeconfig(USER)))
        await subject.becomes()
        await allow(admin, allowed=True)
        await subject.becomes({"u1", "u2"})
        await allow(admin, allowed=False)
        await subject.becomes()
    told = [record for record in caplog.records if "not allowed" in record.message]
    assert len(told) == 1
    assert crds.PLURAL in vars(told[0])["error"]


async def test_one_refusal_is_no_proof_that_there_are_none() -> None:
    """An API server that has just started refuses everybody, for a moment: flags of peers must not go for that."""

    class Refusing:
        async def get(self, path: str, decode_as: type[Any], **_: str) -> Any:
            pages = {
                "/apis": {"groups": [{"name": crds.GROUP, "versions": [{"version": "v1"}]}]},
                f"/apis/{crds.GROUP}/v1": {"resources": [{"name": crds.PLURAL}]},
            }
            if path not in pages:
                raise UnavailableError(Refusal.FORBIDDEN, "403")
            return msgspec.convert(pages[path], decode_as)

    refusing: Any = Refusing()
    one = UltraServers(refusing, elapsed=time.monotonic, on_change=lambda: None)
    assert await one._find() is None
    assert one.members() is None
    assert await one._find() == ""
    assert one.members() == {}


async def test_while_nobody_answers_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        "clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    async with running(kubeconfig) as subject:
        await eventually(lambda: "failed, will retry" in caplog.text, what="the first failure")
        assert subject.ultraservers.members() is None


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({"topology": [{"nodeName": "a", "linkStatusVertical": "down"}, {"nodeName": "b"}]}, {"a", "b"}),
        ({"topology": [{"nodeName": "a"}, {"nodeName": ""}, {"nodeName": 3}, {"nodeId": "i-1"}, "c", None]}, {"a"}),
        ({"topology": None}, set()),
        ({"topology": {"nodeName": "a"}}, set()),
        ({}, set()),
        ("topology", set()),
        (None, set()),
    ],
)
def test_an_object_is_read_as_far_as_it_is_as_documented(spec: object, nodes: set[str]) -> None:
    assert nodes_of(spec) == nodes


def test_more_nodes_than_any_ultraserver_has_count_for_none() -> None:
    """An operator gone wrong must not fill the memory: who is a peer of whom grows with the square."""
    most = {"topology": [{"nodeName": f"u{index}"} for index in range(LARGEST)]}
    assert len(nodes_of(most)) == LARGEST
    assert nodes_of({"topology": [*most["topology"], {"nodeName": "one-more"}]}) == frozenset()
    shared = frozenset(nodes_of(most))
    assert all(members is shared for members in members_of([shared]).values())


def test_a_node_that_two_objects_name_belongs_to_both() -> None:
    both = members_of([frozenset({"a", "b"}), frozenset({"b", "c"})])
    assert both == {"a": {"a", "b"}, "b": {"a", "b", "c"}, "c": {"b", "c"}}
