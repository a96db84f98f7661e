"""Taints of Nodes on a real control plane: one a Node, in one request with the records, among those of others.

Kubernetes 1.36 as its defaults are serves no rules, so there every fault goes to its Node. On 1.37 that is so for nodes
without Neuron slices alone.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS
from remediator.records import Key
from tests.stack.pipeline import LIFTED, TOKEN, Service
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import Sender
from tests.stack.trouble import Trouble
from tests.storms.on_nodes import (
    ANNOTATION,
    KEY,
    as_it_was,
    becomes,
    held,
    node_writes,
    ours,
    record,
    records,
    restarted_with,
    settled_node,
    shown_state,
    tell,
    without_time,
)
from tests.storms.storm import Fault, Written, seen, shown
from tests.storms.versions import Versions, watching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.nodes import Taint
    from tests.stack.shapes import Object

pytestmark = pytest.mark.stack

NODE = "ip-10-8-0-1.ec2.internal"
OTHER = "ip-10-8-0-2.ec2.internal"
OPT_OUT = "neuron-remediator/opt-out"
FOREIGN: list[Taint] = [
    {"key": "example.com/first", "value": "1", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"},
    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    {"key": "example.com/first", "value": "2", "effect": "PreferNoSchedule"},
]
"""What others have put on a Node."""


@pytest.fixture(scope="module")
def replicas(bare_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """One remediator for the tests that need no flags; what it knows goes with the Nodes of each test."""
    with Replicas(tmp_path_factory.mktemp("replica"), bare_plane, count=1, proxied=True, flags=LIFTED) as running:
        running.wait_for_leader()
        yield running


@pytest.fixture
def remediator(replicas: Replicas) -> Service:
    """Give the one that runs."""
    return replicas.service(0)


def fault(kind: str, device: int, node: str = NODE) -> Fault:
    """A fault that begins now."""
    return Fault(Key(node, device, kind), datetime.now(UTC))


def value_of(kind: str) -> str:
    return FAULTS[kind].value


def opt_out(admin: Admin, value: str | None) -> None:
    admin.patch("Node", NODE, {"metadata": {"labels": {OPT_OUT: value}}})


BEFORE: dict[str, tuple[Object, list[Taint]]] = {
    "absent": ({}, []),
    "null": ({"spec": {"taints": None}}, []),
    "empty": ({"spec": {"taints": []}}, []),
    "foreign": ({"spec": {"taints": FOREIGN}}, FOREIGN),
}
"""What is written of a Node's taints before, and what is read of them."""


@pytest.mark.parametrize("before", BEFORE)
def test_several_faults_are_one_taint_of_the_gravest_and_leave_nothing_behind(
    remediator: Service, bare_plane: ControlPlane, bare_admin: Admin, before: str
) -> None:
    """Three faults of three devices come and go: each is one request, in which taint and annotation change together."""
    change, theirs = BEFORE[before]
    settled_node(bare_admin, NODE)
    node = bare_admin.patch("Node", NODE, change) if change else bare_admin.get("Node", NODE)
    assert without_time(node["spec"].get("taints", [])) == without_time(theirs)
    mild, graver, gravest = fault("link_efa", 7), fault("link_host", 5), fault("device_unreachable", 3)
    written = Written(bare_plane)
    steps = [
        (mild.firing(), [mild], mild),
        (graver.firing(), [mild, graver], graver),
        (gravest.firing(), [mild, graver, gravest], gravest),
        (graver.firing(), [mild, graver, gravest], gravest),
        (gravest.over(), [mild, graver], graver),
        (mild.over(), [graver], graver),
    ]
    times = []
    for notification, standing, shows in steps:
        tell(remediator, notification)
        now = bare_admin.get("Node", NODE)
        assert {Fault(Key(NODE, *key), mild.started).key for key in records(now)} == {one.key for one in standing}
        assert now["spec"]["taints"][: len(theirs)] == node["spec"].get("taints", [])
        (taint,) = now["spec"]["taints"][len(theirs) :]
        assert without_time([taint]) == [{"key": KEY, "value": value_of(shows.key.fault), "effect": "NoSchedule"}]
        times.append(taint["timeAdded"])
    assert len(set(times)) == 1, "the taint is as old as its effect"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", times[0])

    tell(remediator, graver.over(), graver.over())
    assert as_it_was(bare_admin.get("Node", NODE)) == as_it_was(node)
    written.up_to_now(bare_admin)
    assert node_writes(written) == ["patch"] * 6, "one request for each change, none for a repetition"


def test_taints_of_others_come_and_go_around_ours(remediator: Service, bare_admin: Admin) -> None:
    """Before and after ours, and of our key with another effect: each stays where it is, as it is."""
    settled_node(bare_admin, NODE)
    bare_admin.patch("Node", NODE, {"spec": {"taints": FOREIGN}})
    first, second = fault("link_efa", 1), fault("link_host", 2)
    tell(remediator, first.firing())
    later: list[Taint] = [
        {"key": "example.com/later", "effect": "NoExecute", "timeAdded": "2026-02-03T04:05:06Z"},
        {"key": KEY, "value": "theirs", "effect": "PreferNoSchedule"},
    ]
    bare_admin.change_node_taints(NODE, lambda taints: [*taints, *later])
    before = bare_admin.node_taints(NODE)
    assert without_time(before)[len(FOREIGN)]["value"] == value_of("link_efa")

    tell(remediator, second.firing())
    after = bare_admin.node_taints(NODE)
    assert after == [
        {**taint, "value": value_of("link_host")} if n == len(FOREIGN) else taint for n, taint in enumerate(before)
    ]
    bare_admin.untaint_node(NODE, "node.kubernetes.io/unschedulable")
    tell(remediator, second.over(), first.over())
    left = [taint for taint in before if taint["key"] != "node.kubernetes.io/unschedulable"]
    assert bare_admin.node_taints(NODE) == [taint for taint in left if taint.get("value") != value_of("link_efa")]


def test_a_foreign_taint_of_our_key_and_effect_covers_ours(remediator: Service, bare_admin: Admin) -> None:
    """It is not ours to take away, and two of one key and effect cannot be; when it goes, ours is due."""
    settled_node(bare_admin, NODE)
    bare_admin.taint_node(NODE, KEY, "NoSchedule", "somebody-elses")
    theirs = bare_admin.node_taints(NODE)
    latched, unlatched = fault("hbm", 1), fault("link_host", 2)
    tell(remediator, latched.firing(), unlatched.firing())
    both = [("None", "covered")] * 2
    becomes(lambda: [held(bare_admin, one).brief for one in (latched, unlatched)], both, "both to be covered")
    assert bare_admin.node_taints(NODE) == theirs
    tell(remediator, unlatched.over())
    assert bare_admin.node_taints(NODE) == theirs

    tell(remediator, unlatched.firing())
    bare_admin.untaint_node(NODE, KEY)
    becomes(lambda: held(bare_admin, latched).brief, ("NoSchedule", "active"), "the latched record to rise by itself")
    becomes(lambda: held(bare_admin, unlatched).brief, ("None", "withheld"), "the other one to wait for a firing")
    tell(remediator, unlatched.firing())
    assert held(bare_admin, unlatched).brief == ("NoSchedule", "active")
    assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoSchedule")]


def test_a_hand_takes_our_taint_away(remediator: Service, bare_admin: Admin) -> None:
    """What is shown is what is there: a withheld record, until the fault fires again. A latched one needs no firing."""
    settled_node(bare_admin, NODE)
    settled_node(bare_admin, OTHER)
    unlatched, latched = fault("link_host", 3), fault("hbm", 3, OTHER)
    tell(remediator, unlatched.firing(), latched.firing())
    bare_admin.untaint_node(NODE, KEY)
    becomes(lambda: shown_state(remediator, unlatched), ("None", "withheld"), "the metrics to say what is there")
    assert ours(bare_admin, NODE) == []
    tell(remediator, unlatched.firing())
    assert ours(bare_admin, NODE) == [(value_of("link_host"), "NoSchedule")]
    assert shown_state(remediator, unlatched) == ("NoSchedule", "active")

    before = held(bare_admin, latched)
    bare_admin.untaint_node(OTHER, KEY)
    becomes(
        lambda: ours(bare_admin, OTHER), [(value_of("hbm"), "NoSchedule")], "the taint of a latched fault to return"
    )
    assert held(bare_admin, latched) == before

    bare_admin.patch("Node", NODE, {"metadata": {"annotations": {ANNOTATION: "{broken"}}})
    becomes(lambda: shown_state(remediator, unlatched), None, "a broken annotation to hold nothing")
    tell(remediator, unlatched.firing())
    assert held(bare_admin, unlatched).brief[1] in {"active", "covered"}
    assert ours(bare_admin, NODE) == [(value_of("link_host"), "NoSchedule")], "the device was never free"


def test_a_node_that_is_opted_out_has_no_taint_of_ours(remediator: Service, bare_admin: Admin) -> None:
    settled_node(bare_admin, NODE)
    bare_admin.patch("Node", NODE, {"spec": {"taints": FOREIGN}})
    unlatched, latched = fault("link_host", 1), fault("sram", 2)
    tell(remediator, unlatched.firing(), latched.firing())
    opt_out(bare_admin, "true")
    becomes(lambda: ours(bare_admin, NODE), [], "the taint to go")
    for one in (unlatched, latched):
        assert held(bare_admin, one).brief == ("None", "opted-out")
    tell(remediator, unlatched.firing())
    assert ours(bare_admin, NODE) == []
    opt_out(bare_admin, None)
    becomes(lambda: ours(bare_admin, NODE), [(value_of("sram"), "NoSchedule")], "the latched one to return")
    becomes(lambda: held(bare_admin, unlatched).brief, ("None", "withheld"), "the other one to wait for a firing")
    assert without_time(bare_admin.node_taints(NODE))[:-1] == without_time(FOREIGN)


def test_a_released_record_has_no_taint_until_its_time_is_over(
    remediator: Service, bare_plane: ControlPlane, bare_admin: Admin
) -> None:
    """The operator's word lifts one record of two; a firing does not raise it, and after it ends a firing is needed."""
    settled_node(bare_admin, NODE)
    released, other = fault("hbm", 3), fault("link_efa", 5)
    tell(remediator, released.firing(), other.firing())
    assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoSchedule")]
    release(bare_plane, "--for", "1h", "--reason", "burn-in")
    assert held(bare_admin, released).brief == ("None", "released")
    assert ours(bare_admin, NODE) == [(value_of("link_efa"), "NoSchedule")]
    becomes(lambda: shown_state(remediator, released), ("None", "released"), "the remediator to know of it")
    tell(remediator, released.firing(), other.over())
    assert held(bare_admin, released).brief == ("None", "released")
    assert ours(bare_admin, NODE) == []

    release(bare_plane, "--end")
    becomes(lambda: held(bare_admin, released).brief, ("None", "withheld"), "the record to ask for a firing")
    assert ours(bare_admin, NODE) == []
    tell(remediator, released.firing())
    assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoSchedule")]
    assert held(bare_admin, released).latched == "true", "a firing latches it again"


def release(plane: ControlPlane, *options: str) -> None:
    """Release device 3 of the node, by the command."""
    command = (sys.executable, "-m", "remediator.cli", "release", f"{NODE}/3", "--yes", "--by", "alice", *options)
    subprocess.run((*command, f"--kubeconfig={plane.kubeconfig('admin')}"), check=True, capture_output=True, timeout=20)


def test_a_node_is_deleted_with_its_records_and_made_again(remediator: Service, bare_admin: Admin) -> None:
    """A machine's latch ends with it; what was copied to the next one counts for nothing there."""
    settled_node(bare_admin, NODE)
    latched = fault("hbm", 4)
    tell(remediator, latched.firing())
    text = bare_admin.get("Node", NODE)["metadata"]["annotations"][ANNOTATION]
    bare_admin.delete("Node", NODE)
    becomes(lambda: shown_state(remediator, latched), None, "the record to go with its Node")
    tell(remediator, latched.firing())
    assert bare_admin.find("Node", NODE) is None

    # The age of a Node has whole seconds.
    wait_until(lambda: datetime.now(UTC) - latched.started > timedelta(seconds=1), timeout=2, what="a second to pass")
    settled_node(bare_admin, NODE)
    bare_admin.patch("Node", NODE, {"metadata": {"annotations": {ANNOTATION: text}}})
    tell(remediator, latched.firing())
    assert ours(bare_admin, NODE) == [], "it fired before this machine was there"
    other, again = fault("link_efa", 6), latched.again()
    tell(remediator, other.firing())
    assert set(records(bare_admin.get("Node", NODE))) == {(6, "link_efa")}
    tell(remediator, again.firing())
    assert set(records(bare_admin.get("Node", NODE))) == {(6, "link_efa"), (4, "hbm")}
    assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoSchedule")]


def test_a_restart_writes_nothing(
    replicas: Replicas, remediator: Service, bare_plane: ControlPlane, bare_admin: Admin
) -> None:
    nodes = [f"ip-10-8-1-{number}.ec2.internal" for number in range(1, 11)]
    of = [
        fault(kind, device, node) for node in nodes for device, kind in enumerate(("hbm", "link_efa", "fabric_error"))
    ]
    for node in nodes:
        settled_node(bare_admin, node)
    tell(remediator, *(one.firing() for one in of))
    before = [as_it_was(bare_admin.get("Node", node)) for node in nodes]
    written = Written(bare_plane)
    for end in (replicas.end, replicas.kill):
        end(0)
        replicas.start(0)
        replicas.wait_for_leader()
        assert shown_state(remediator, of[0]) == ("NoSchedule", "active")
    tell(remediator, *(one.firing() for one in of))
    written.up_to_now(bare_admin)
    assert node_writes(written) == []
    assert [as_it_was(bare_admin.get("Node", node)) for node in nodes] == before


# The flag, and trouble on the way


def plain_pod(name: str, node: str, *tolerations: Object) -> Object:
    """A pod without devices on a node."""
    container = {"name": "agent", "image": "registry.k8s.io/pause:3.10"}
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "tolerations": [*tolerations],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def stays(admin: Admin, pod: str) -> bool:
    found = admin.find("Pod", pod)
    return found is not None and "deletionTimestamp" not in found["metadata"]


def test_a_taint_of_a_node_evicts_with_the_flag_alone(
    replicas: Replicas, remediator: Service, bare_plane: ControlPlane, bare_admin: Admin, tmp_path: Path
) -> None:
    """Without it nobody is evicted, and nobody new comes; with it all go that do not tolerate it, whatever they use."""
    settled_node(bare_admin, NODE, devices=4)
    tolerates = {"key": KEY, "operator": "Exists", "effect": "NoExecute"}
    bare_admin.pod("uses-another-device", device="neuron-device-0", node=NODE)
    assert bare_admin.scheduled("uses-another-device") == "neuron-device-0"
    bare_admin.create(plain_pod("observer", NODE))
    bare_admin.create(plain_pod("tolerates-it", NODE, tolerates))
    grave = fault("hbm", 3)
    tell(remediator, grave.firing())
    bare_admin.pod("comes-late", device="neuron-device-1", node=NODE)
    assert "untolerated taint" in bare_admin.unschedulable("comes-late")
    assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoSchedule")]
    assert all(stays(bare_admin, pod) for pod in ("uses-another-device", "observer", "tolerates-it"))

    with restarted_with(bare_plane, tmp_path, *LIFTED, "--node-taint.allow-no-execute", instead_of=replicas) as allowed:
        becomes(lambda: ours(bare_admin, NODE), [(value_of("hbm"), "NoExecute")], "the latched record to rise")
        for pod in ("uses-another-device", "observer"):
            bare_admin.gone("Pod", pod)
        assert stays(bare_admin, "tolerates-it")
        mild = fault("link_efa", 2)
        tell(allowed, mild.firing())
        assert ours(bare_admin, NODE) == [(value_of("hbm"), "NoExecute")]
        assert held(bare_admin, mild).effect == "NoSchedule"
    becomes(lambda: ours(bare_admin, NODE), [(value_of("hbm"), "NoSchedule")], "it to be lowered without the flag")


async def test_conflicts_and_lost_answers_end_in_the_right_taints(replicas: Replicas, bare_admin: Admin) -> None:
    """Half of the patches meet a 409 or are carried out unheard: each fault is there once, or is not, in the end."""
    await asyncio.to_thread(settled_node, bare_admin, NODE)
    await asyncio.to_thread(bare_admin.patch, "Node", NODE, {"spec": {"taints": FOREIGN}})
    theirs = await asyncio.to_thread(bare_admin.node_taints, NODE)
    of = [fault("link_host" if device % 2 else "link_efa", device) for device in range(16)]
    proxy, trouble = replicas.proxy(0), {Trouble.CONFLICT: 0.4, Trouble.CUT_AFTER: 0.2}
    proxy.storm(trouble, seed=3, where=lambda method, path: method == "PATCH" and "/nodes/" in path)
    try:
        async with Sender(replicas.url(0), token=TOKEN) as sender:
            await sender.send_all(one.firing() for one in of)
            node = await asyncio.to_thread(bare_admin.get, "Node", NODE)
            assert {key: one.brief for key, one in records(node).items()} == {
                (one.key.device, one.key.fault): ("NoSchedule", "active") for one in of
            }
            assert node["spec"]["taints"][:-1] == theirs
            assert without_time(node["spec"]["taints"][-1:]) == [
                {"key": KEY, "value": value_of("link_host"), "effect": "NoSchedule"}
            ]
            await sender.send_all(one.over() for one in of)
            shown("conflicts", struck=dict(proxy.done), statuses=dict(sender.statuses()))
    finally:
        proxy.calm()
    assert min(proxy.done[kind] for kind in trouble) > 3
    node = await asyncio.to_thread(bare_admin.get, "Node", NODE)
    assert (node["spec"]["taints"], ANNOTATION in node["metadata"]["annotations"]) == (theirs, False)


# 1.37: rules where there are slices


@pytest.fixture(scope="module")
def with_rules(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One remediator on a cluster that serves rules."""
    with restarted_with(control_plane, tmp_path_factory.mktemp("remediator"), *LIFTED) as running:
        yield running


def test_a_node_without_slices_is_tainted_and_one_with_slices_has_a_rule(with_rules: Service, admin: Admin) -> None:
    settled_node(admin, NODE, devices=0)
    settled_node(admin, OTHER, devices=16)
    on_node, on_device = fault("hbm", 3), fault("hbm", 3, OTHER)
    tell(with_rules, on_node.firing(), on_device.firing())
    assert ours(admin, NODE) == [(value_of("hbm"), "NoSchedule")]
    assert seen(admin) == {on_device.name: on_device.standing()}
    assert (admin.node_taints(OTHER), records(admin.get("Node", OTHER))) == ([], {})


@pytest.mark.parametrize("kind", ["hbm", "link_host", "link_efa"])
async def test_a_slice_that_is_published_later_makes_it_a_rule(
    with_rules: Service, control_plane: ControlPlane, admin: Admin, kind: str
) -> None:
    """The record moves as it is, and its device is free at no version; only what is latched may rise on the way."""
    await asyncio.to_thread(settled_node, admin, NODE)
    admin.patch("Node", NODE, {"spec": {"taints": FOREIGN}})
    theirs, one = admin.node_taints(NODE), fault(kind, 3)
    await asyncio.to_thread(tell, with_rules, one.firing())
    before = held(admin, one)
    nodes = f"/api/v1/nodes?fieldSelector=metadata.name={NODE}"
    async with watching(control_plane, Node=nodes, DeviceTaintRule=admin.path("DeviceTaintRule")) as versions:
        await asyncio.to_thread(admin.publish_slice, NODE)
        await asyncio.to_thread(becomes, lambda: record(admin, one), None, "the record to leave the Node")
        node, (rule,) = admin.get("Node", NODE), admin.rules()
        await versions.until({**node, "kind": "Node"})
        await versions.until({**rule, "kind": "DeviceTaintRule"})
    assert node["spec"]["taints"] == theirs
    assert free_at(versions) == []
    wanted = one.standing()
    if not FAULTS[kind].latched and before.effect != wanted.effect:
        wanted = wanted._replace(effect=before.effect, state="withheld")
    assert seen(admin) == {one.name: wanted}
    notes = rule["metadata"]["annotations"]
    assert notes["neuron-remediator/first-fired"] == before.first_fired
    assert notes["neuron-remediator/latched"] == before.latched
    assert ANNOTATION not in node["metadata"]["annotations"]

    await asyncio.to_thread(tell, with_rules, one.firing())
    assert seen(admin) == {one.name: one.standing()}


def free_at(versions: Versions) -> list[int]:
    """The versions from which on neither the Node had a taint of our key nor there was a rule with an effect."""
    by_node, by_rule, free = False, False, []
    for number, change, object_ in versions.in_order():
        if object_["kind"] == "Node":
            by_node = any(taint["key"] == KEY for taint in object_["spec"].get("taints", ()))
        else:
            by_rule = change != "DELETED" and object_["spec"]["taint"]["effect"] != "None"
        if not (by_node or by_rule):
            free.append(number)
    return free
