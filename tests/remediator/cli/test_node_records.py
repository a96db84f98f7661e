"""Records that are kept on Nodes, and clusters that serve rules in another version or not at all."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from alerts.faults import FAULTS, Effect
from remediator.cli.address import Address
from remediator.cli.explanation import explain
from remediator.cli.picture import Held
from remediator.inventory import DeviceTaint, Inventory, Node, NodeSpec
from remediator.level import NO_EVIDENCE
from remediator.node_records import ANNOTATION, node_target
from remediator.peer_object import PeerRule
from remediator.peer_object import to_object as to_peer_object
from remediator.records import Key, Record, State, Taint
from remediator.targets import Target
from tests.remediator.cli.conftest import held_on, written_by
from tests.remediator.cli.pictures import held as held_record
from tests.remediator.cli.pictures import inventory, picture
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, device, node
from tests.stack.apiproxy import ApiProxy
from tests.stack.process import wait_until
from tests.stack.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remediator.cli.picture import Picture
    from tests.remediator.cli.conftest import Held as OnCluster
    from tests.remediator.cli.conftest import Said
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

    Taints = Callable[..., Said]
    Login = Callable[..., Path]

HERE = Address(NODE, 3)
RELEASE = ("--for", "4h", "--reason", "burn-in test")
FOREIGN = [
    {"key": "team.example.com/reserved", "value": "a", "effect": "NoSchedule"},
    {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-11-30T10:00:00Z"},
]


@pytest.fixture
def both(login: Login) -> str:
    """Give the option with which an operator of Nodes logs in, who has the rights that the help lists and no others."""
    return f"--kubeconfig={login('both')}"


def test_a_record_on_a_node_is_listed_as_what_it_is(held: OnCluster, taints: Taints, login: Login) -> None:
    key, rule = held.put_on_node("hbm"), held.put("link_efa", 5)
    ours = f"--kubeconfig={login('operator')}"
    entry, other = json.loads(taints("list", "-o", "json", ours).out)
    assert (entry["node"], entry["device"], entry["fault"], entry["effect"]) == (NODE, 3, "hbm", "NoSchedule")
    assert entry["target"] == {"driver": DRIVER, "pool": NODE, "device": None, "placed": False}
    assert (entry["rule"], entry["node_uid"]) == (None, held.uid)
    assert entry.keys() == other.keys(), "all entries have the same fields"
    heading, *lines = (line.split() for line in taints("list", ours).out.splitlines())
    assert heading[-1] == "ON"
    assert [(line[2], line[-1]) for line in lines] == [(key.fault, "Node"), (rule.fault, "device")]
    assert f"Node {NODE}" in taints("list", "-o", "wide", ours).out


def test_who_may_not_list_nodes_is_told_what_is_missing(held: OnCluster, taints: Taints, login: Login) -> None:
    held.put_on_node("hbm")
    onlooker = f"--kubeconfig={login('onlooker')}"
    said = taints("list", onlooker)
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith("No record is a rule: records on Nodes are not listed: GET /api/v1/nodes: 403")
    assert said.err.endswith("have the ClusterRole neuron-taints-node-operator (deploy/rbac.yaml) bound to you\n")
    rule = held.put("link_efa", 5)
    said = taints("list", onlooker)
    assert rule.fault in said.out
    assert said.err.startswith("note: records on Nodes are not listed")
    assert "hbm" in taints("list", NODE, onlooker).out, "to look at the Node that is asked about, it needs no list"


def test_explain_says_where_the_taint_is_and_why_no_rule_is_used(held: OnCluster, taints: Taints, both: str) -> None:
    held.admin.wipe_slice(NODE)
    held.put_on_node("hbm")
    held.admin.change_node_taints(NODE, lambda ours: [FOREIGN[0], *ours])
    said = taints("explain", f"{NODE}/3", both)
    assert said.code == 0
    for text in (
        f"on the Node {NODE} as a whole: it keeps every new pod off the Node unless it tolerates the taint",
        f"a rule would select the device in the node's slices, and these are not there: driver {DRIVER} does not run",
        "a taint of a Node has no more than NoSchedule unless the remediator's --node-taint.allow-no-execute",
        f"in annotation {ANNOTATION} of Node {NODE}",
        f"{TAINT_KEY}=hbm-uncorrectable-error:NoSchedule (ours)",
        "team.example.com/reserved=a:NoSchedule (not ours)",
        f"get node {NODE} -o jsonpath='{{.metadata.annotations.{ANNOTATION}}}'",
        f"get pods -A -o wide --field-selector spec.nodeName={NODE}",
    ):
        assert text in said.out


def on_node(fault: str = "hbm", state: State = State.ACTIVE, **changes: Any) -> Record:
    """A record that taints the sample Node as a whole."""
    capped = Taint(TAINT_KEY, FAULTS[fault].value, Effect.NO_SCHEDULE if state is State.ACTIVE else Effect.NONE)
    standard: dict[str, Any] = {"target": node_target(DRIVER, NODE, 3), "taint": capped}
    return held_record(fault, state, **(standard | changes))


@pytest.mark.parametrize(
    ("looked", "text"),
    [
        (picture(on_node(), held=Held((on_node(),), served=False)), "this cluster serves no DeviceTaintRules"),
        (picture(on_node(), inventory=None), "not known: ResourceSlices could not be read"),
        (picture(on_node(), inventory=Inventory(DRIVER)), "and these are not there: driver neuron.aws.com does not"),
        (picture(on_node(), inventory=inventory(device("neuron-device-4", 4))), "and these have no such device"),
        (
            picture(on_node()),
            "unless the remediator's --backend asks for taints of Nodes, it moves the record to a rule",
        ),
    ],
)
def test_why_no_rule_is_used_is_said(looked: Picture, text: str) -> None:
    lines = {line.word: line.text for section in explain(HERE, looked).sections for line in section.lines}
    assert text in lines["no rule"]
    assert "rule" not in lines or lines["rule"].startswith("this cluster")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (on_node("link_efa"), "active: this is what NeuronDeviceEFALinkError leads to"),
        (on_node(), "a taint of a Node has no more than NoSchedule unless the remediator's --node-taint.allow-no-exec"),
        (on_node(state=State.COVERED), "covered: a taint on the Node that is not ours, or the driver's own on the dev"),
        (on_node(state=State.WITHHELD, reason="x"), "its taint or its annotation was changed by hand"),
        (
            on_node("link_efa", State.WITHHELD, reason=NO_EVIDENCE, taint=Taint("old", "x", Effect.NO_SCHEDULE)),
            "its taint is to have another key or another place, and the fault has not fired since",
        ),
    ],
)
def test_each_state_of_a_record_on_a_node_is_explained(record: Record, text: str) -> None:
    lines = {line.word: line.text for section in explain(HERE, picture(record)).sections for line in section.lines}
    assert text in lines["why"]


def tainted_by_others(*taints: dict[str, str]) -> Node:
    return msgspec.structs.replace(node(), spec=NodeSpec(list(taints)))


EVICTING = {"key": TAINT_KEY, "value": "by-hand", "effect": "NoExecute"}
BY_DRIVER = inventory(device("neuron-device-3", 3, DeviceTaint(TAINT_KEY, "x", Effect.NO_EXECUTE)))


@pytest.mark.parametrize(
    ("changes", "why", "done"),
    [
        (
            {"node": tainted_by_others(EVICTING)},
            f"covered: a taint on the Node that is not ours ({TAINT_KEY}=by-hand:NoExecute) is at least as strong",
            f"no effect of ours on the Node {NODE} as a whole; see `node taint` below",
        ),
        ({"inventory": BY_DRIVER}, "covered: the driver's own taint on the device is at least", "; see `driver` below"),
        (
            {"node": tainted_by_others(EVICTING), "inventory": BY_DRIVER},
            "a taint on the Node that is not ours",
            "; see `driver` and `node taint` below",
        ),
        ({}, "or the driver's own on the device, is at least", f"no effect of ours on the Node {NODE} as a whole"),
    ],
)
def test_what_others_do_is_not_said_to_be_nothing(changes: dict[str, Any], why: str, done: str) -> None:
    looked = picture(on_node(state=State.COVERED), **changes)
    lines = {line.word: line.text for section in explain(HERE, looked).sections for line in section.lines}
    assert why in lines["why"]
    assert lines["done"].endswith(done)
    assert all(word in lines for word in ("driver", "node taint") if word in done)


def test_whom_a_node_evicted_is_found_out_by_its_own_events() -> None:
    evicting = on_node(taint=Taint(TAINT_KEY, "x", Effect.NO_EXECUTE))
    document = explain(HERE, picture(evicting))
    commands = [command.command for section in document.sections for command in section.commands]
    assert "kubectl get events -A --field-selector reason=TaintManagerEviction" in commands
    assert not any("DeviceTaintManagerEviction" in command for command in commands)
    done = {line.word: line.text for section in document.sections for line in section.lines}["done"]
    assert "evicts every pod there unless it tolerates the taint" in done


def test_a_release_marks_the_record_and_takes_our_taint_alone(
    held: OnCluster, taints: Taints, login: Login, control_plane: ControlPlane
) -> None:
    file = login("both")
    both = f"--kubeconfig={file}"
    held.admin.change_node_taints(NODE, lambda _none: FOREIGN[:1])
    key = held.put_on_node("hbm")
    held.admin.change_node_taints(NODE, lambda ours: [*ours, FOREIGN[1]])
    before = held.admin.get("Node", NODE)
    said = taints("release", f"{NODE}/3", *RELEASE, "--by", "alice", "--yes", both)
    assert (said.code, said.err) == (0, "")
    assert f"released {key}" in said.out
    assert "note: the Node stays tainted by others: team.example.com/reserved=a:NoSchedule" in said.out
    record = held.on_node(key)
    assert (record.state, record.latched, record.taint.effect) == (State.RELEASED, False, Effect.NONE)
    assert (record.released_by, record.reason) == ("alice", "burn-in test")
    after = held.admin.get("Node", NODE)
    assert after["spec"]["taints"] == FOREIGN
    ours = {"annotations", "resourceVersion", "managedFields"}
    assert {**after["metadata"], **dict.fromkeys(ours)} == {**before["metadata"], **dict.fromkeys(ours)}
    wait_until(lambda: written_by(control_plane, file), timeout=10, what="the write in the audit log")
    assert written_by(control_plane, file) == [("patch", "nodes", NODE)]
    assert taints("release", f"{NODE}/3", "--end", "--yes", both).code == 0
    assert held.on_node(key).state is State.RELEASED, "the remediator withholds it at its next look"


def test_another_record_keeps_the_node_tainted(held: OnCluster, taints: Taints, both: str) -> None:
    held.put_on_node("hbm")
    other = held.put_on_node("link_efa", 7)
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", both)
    assert f"note: the Node stays tainted by {other}" in said.out
    (taint,) = held.admin.node_taints(NODE)
    assert (taint["key"], taint["value"]) == (TAINT_KEY, "link-efa-error")
    said = taints("release", NODE, "--all-devices", *RELEASE, "--yes", both)
    assert said.code == 0
    assert held.admin.node_taints(NODE) == []


def test_who_may_not_write_nodes_is_told_which_role_to_ask_for(held: OnCluster, taints: Taints, login: Login) -> None:
    key = held.put_on_node("hbm")
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", f"--kubeconfig={login('operator')}")
    assert said.code == 1
    assert said.err.startswith(f"failed: has not released {key}: PATCH /api/v1/nodes/{NODE}: 403")
    assert said.err.endswith("have the ClusterRole neuron-taints-node-operator (deploy/rbac.yaml) bound to you\n")
    assert held.on_node(key).state is State.ACTIVE


@pytest.mark.parametrize("trouble", [Trouble.CONFLICT, Trouble.ERROR, Trouble.CUT_AFTER])
def test_what_went_wrong_on_the_way_is_told_as_it_is(
    held: OnCluster, taints: Taints, control_plane: ControlPlane, tmp_path: Path, trouble: Trouble
) -> None:
    key = held.put_on_node("hbm")
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({trouble: 1.0}, seed=1, where=lambda method, _path: method == "PATCH")
        said = taints("release", f"{NODE}/3", *RELEASE, "--yes", f"--kubeconfig={proxy.kubeconfig('admin')}")
    landed = trouble is Trouble.CUT_AFTER
    assert held.on_node(key).state is (State.RELEASED if landed else State.ACTIVE)
    if landed:
        assert (said.code, said.err) == (0, "")
    elif trouble is Trouble.CONFLICT:
        assert said.err == f"failed: has not released {key}: it was changed by others 8 times in a row; try again\n"
    else:
        assert said.err.startswith(f"unknown: may have released {key}: PATCH ")


def test_a_conflict_is_survived(held: OnCluster, taints: Taints, control_plane: ControlPlane, tmp_path: Path) -> None:
    keys = [held.put_on_node(fault, device) for device in (1, 2, 3) for fault in ("hbm", "sram")]
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({Trouble.CONFLICT: 0.5}, seed=3, where=lambda method, _path: method == "PATCH")
        file = proxy.kubeconfig("admin")
        said = taints("release", NODE, "--all-devices", *RELEASE, "--yes", f"--kubeconfig={file}")
        assert proxy.done[Trouble.CONFLICT] > 0
    assert (said.code, said.err) == (0, "")
    assert {held.on_node(key).state for key in keys} == {State.RELEASED}


def test_records_that_cannot_be_read_are_told_of(held: OnCluster, taints: Taints, both: str) -> None:
    held.put_on_node("hbm")
    held.admin.patch("Node", NODE, {"metadata": {"annotations": {ANNOTATION: "{"}}})
    said = taints("list", both)
    assert said.code == 0
    assert f'warning: reading annotation "{ANNOTATION}" of Node "{NODE}": ' in said.err
    kubectl = f"kubectl --kubeconfig {both.partition('=')[2]}"
    annotate, taint = f"{kubectl} annotate node {NODE} {ANNOTATION}-", f"{kubectl} taint node {NODE} {TAINT_KEY}-"
    assert "; where faults are recorded on the Node, firings make its records anew; to end it: " in said.err
    assert said.err.endswith(f"; to end it: {annotate} && {taint}\n")
    told = taints("explain", NODE, both).out
    assert "where faults are recorded on the Node, firings make its records anew" in told
    assert f"  $ {annotate}\n" in told
    assert f"  $ {taint}\n" in told
    assert f"there is no record of {NODE}/3" in taints("release", f"{NODE}/3", *RELEASE, "--yes", both).err


def test_a_flag_on_a_peer_is_no_damaged_record(held: OnCluster, taints: Taints, both: str) -> None:
    held.admin.node("peer", ultraserver="block-1")
    flag = PeerRule(source=NODE, source_uid=held.uid, peer="peer", target=Target(DRIVER, "peer", "neuron-node"))
    held.admin.create(to_peer_object(flag, "resource.k8s.io/v1"))
    said = taints("list", both)
    assert said.err.startswith("Nothing is held in the cluster")
    assert "warning" not in said.err
    (entry,) = json.loads(taints("list", "--all", "-o", "json", both).out)
    assert (entry["source"], entry["node"], entry["effect"], entry["rule"]) == ("peer", "peer", "None", flag.name)
    since = held.admin.get("DeviceTaintRule", flag.name)["spec"]["taint"]["timeAdded"]
    assert (entry["tainted_since"], entry["fault"]) == (since, None)
    (row,) = (line.split() for line in taints("list", "--all", both).out.splitlines()[1:])
    assert (row[:3], row[-1]) == (["peer", "neuron-node", "-"], "peer")
    assert re.fullmatch("[0-9]+s", row[6]), "the age"
    assert f"  peer of {NODE}  " in taints("list", "--all", "-o", "wide", both).out
    told = taints("explain", "peer", both).out
    assert f"peer {NODE} is tainted; neuron-node bears neuron.aws.com/peer-tainted:None for it" in told
    assert "other rule" not in told
    assert "flagged" not in taints("explain", NODE, both).out


def test_a_cluster_without_rules_has_all_its_records_on_nodes(
    bare_plane: ControlPlane, bare_admin: Admin, taints: Taints
) -> None:
    """Kubernetes 1.36 as its defaults are."""
    ours = f"--kubeconfig={bare_plane.kubeconfig('admin')}"
    held = held_on(bare_admin)
    said = taints("list", ours)
    assert (said.code, said.out) == (0, "")
    assert "Nothing is held in the cluster" in said.err
    assert "This cluster serves no DeviceTaintRules" in said.err
    key = held.put_on_node("hbm")
    said = taints("list", "--all", ours)
    assert said.out.splitlines()[1].split()[1:4] == ["3", "hbm", "NoSchedule"]
    told = taints("explain", f"{NODE}/3", ours)
    assert told.code == 0
    assert "this cluster serves no DeviceTaintRules, by which the device alone could be tainted" in told.out
    assert taints("release", str(key), *RELEASE, "--yes", ours).code == 0
    assert held.on_node(key).state is State.RELEASED
    assert bare_admin.node_taints(NODE) == []


def test_rules_are_released_in_the_version_that_is_served(
    beta_plane: ControlPlane, beta_admin: Admin, taints: Taints
) -> None:
    """Kubernetes 1.36 with the gate, which serves v1beta2."""
    ours = f"--kubeconfig={beta_plane.kubeconfig('admin')}"
    held = held_on(beta_admin)
    key = held.put("hbm")
    assert beta_admin.served("DeviceTaintRule") == "v1beta2"
    (entry,) = json.loads(taints("list", "-o", "json", ours).out)
    assert (entry["fault"], entry["target"]["device"]) == ("hbm", "neuron-device-3")
    assert taints("release", str(key), *RELEASE, "--yes", ours).code == 0
    assert held.annotation(key, "state") == "released"
    assert held.rule(key)["spec"]["taint"]["effect"] == "None"


def test_a_record_that_moved_meanwhile_is_not_called_cleared(
    held: OnCluster, taints: Taints, control_plane: ControlPlane, tmp_path: Path
) -> None:
    key = held.put("hbm")
    with ApiProxy(control_plane, tmp_path) as proxy:

        def move(method: str, path: str) -> bool:
            """Move the record when its release is just under way."""
            if method == "PATCH" and "devicetaintrules" in path and held.admin.rules():
                held.put_on_node("hbm")
                held.admin.delete("DeviceTaintRule", path.rpartition("/")[2].partition("?")[0])
            return False

        proxy.storm({Trouble.CONFLICT: 1.0}, seed=1, where=move)
        said = taints("release", str(key), *RELEASE, "--yes", f"--kubeconfig={proxy.kubeconfig('admin')}")
    assert said.code == 1
    assert f"failed: has not released {key}: it was moved meanwhile; look at it again" in said.err
    assert held.on_node(Key(NODE, 3, "hbm")).state is State.ACTIVE
