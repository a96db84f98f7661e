"""The three commands on the real API server: what they say, what they write, and how they fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from alerts.faults import Effect
from remediator.cli.reading import Cluster
from remediator.cluster import connect
from remediator.records import NEVER, Key, State, Taint
from remediator.rule_records import object_name
from tests.remediator.cli.conftest import kubeconfig
from tests.remediator.samples import NODE, TAINT_KEY
from tests.stack.apiproxy import ApiProxy
from tests.stack.process import free_port, wait_until
from tests.stack.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.remediator.cli.conftest import Held, Said
    from tests.stack.controlplane import ControlPlane

    Taints = Callable[..., Said]
    Login = Callable[..., Path]

RELEASE = ("--for", "4h", "--reason", "burn-in test, ticket 4711")


@pytest.fixture
def ours(login: Login) -> str:
    """Give the option with which an operator logs in, who has the rights that the help lists and no others."""
    return f"--kubeconfig={login('operator')}"


def test_a_cluster_without_records_is_said_to_have_none(held: Held, taints: Taints, ours: str) -> None:
    said = taints("list", ours)
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith("Nothing is held in the cluster: there is no record.")
    assert json.loads(taints("list", "-o", "json", ours).out) == []


def test_records_are_listed_in_order(held: Held, taints: Taints, ours: str) -> None:
    for fault, device in (("hbm", 10), ("sram", 3), ("link_efa", 3)):
        held.put(fault, device)
    lines = taints("list", ours).out.splitlines()
    assert lines[0].split() == ["NODE", "DEVICE", "FAULT", "EFFECT", "STATE", "LATCHED", "AGE"]
    assert [line.split()[:6] for line in lines[1:]] == [
        [NODE, "3", "link_efa", "NoSchedule", "active", "no"],
        [NODE, "3", "sram", "NoExecute", "active", "yes"],
        [NODE, "10", "hbm", "NoExecute", "active", "yes"],
    ]


def test_the_json_document_tells_everything_of_a_record(held: Held, taints: Taints, ours: str) -> None:
    key = held.put("hbm")
    (entry,) = json.loads(taints("list", NODE, "-o", "json", ours).out)
    rule = held.rule(key)
    assert entry == {
        "source": "record",
        "node": NODE,
        "device": 3,
        "fault": "hbm",
        "key": TAINT_KEY,
        "value": "hbm-uncorrectable-error",
        "effect": "NoExecute",
        "state": "active",
        "latched": True,
        "tainted_since": rule["spec"]["taint"]["timeAdded"],
        "first_fired": "2026-11-30T11:59:55Z",
        "last_fired": "2026-11-30T11:59:55Z",
        "episode": held.annotation(key, "episode"),
        "reason": "NeuronDeviceHBMUncorrectableError",
        "released_until": None,
        "released_by": None,
        "target": {"driver": "neuron.aws.com", "pool": NODE, "device": "neuron-device-3", "placed": True},
        "node_uid": held.uid,
        "rule": object_name(key),
    }


def test_other_sources_are_listed_on_request(held: Held, taints: Taints, ours: str) -> None:
    held.put("hbm")
    slice_ = held.admin.slice_of(NODE)
    assert slice_ is not None
    devices: list[dict[str, Any]] = slice_["spec"]["devices"]
    devices[5]["taints"] = [{"key": TAINT_KEY, "value": "sram", "effect": "NoSchedule"}]
    held.admin.patch("ResourceSlice", slice_["metadata"]["name"], {"spec": {"devices": devices}})
    selector = {"driver": "neuron.aws.com", "pool": NODE, "device": "neuron-device-7"}
    held.admin.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "by-hand", "labels": {"app.kubernetes.io/managed-by": "neuron-remediator"}},
            "spec": {"deviceSelector": selector, "taint": {"key": "mine", "effect": "NoExecute"}},
        }
    )
    said = taints("list", "--all", "-o", "json", ours)
    found = {(entry["source"], entry["target"]["device"], entry["effect"]) for entry in json.loads(said.out)}
    assert found == {
        ("record", "neuron-device-3", "NoExecute"),
        ("driver", "neuron-device-5", "NoSchedule"),
        ("rule", "neuron-device-7", "NoExecute"),
    }
    assert len({tuple(entry) for entry in json.loads(said.out)}) == 1, "all entries have the same fields"
    assert "by-hand" in said.err, "it carries our mark and stands for nothing"
    assert len(taints("list", ours).out.splitlines()) == 2, "the heading, and the record alone"


def test_a_release_lifts_the_taint_and_the_latch_for_a_time(held: Held, taints: Taints, ours: str) -> None:
    key = held.put("hbm")
    before = held.rule(key)["spec"]["taint"]["timeAdded"]
    # The server keeps whole seconds.
    wait_until(lambda: _second_has_passed(held), timeout=5, what="a second to pass on the API server")
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", ours)
    assert said.code == 0, said.err
    assert f"released {key}" in said.out
    rule = held.rule(key)
    assert rule["spec"]["taint"]["effect"] == "None"
    assert rule["spec"]["taint"]["timeAdded"] > before
    assert rule["spec"]["deviceSelector"] == {"driver": "neuron.aws.com", "pool": NODE, "device": "neuron-device-3"}
    assert held.annotation(key, "state") == "released"
    assert held.annotation(key, "latched") == "false"
    assert held.annotation(key, "reason") == "burn-in test, ticket 4711"
    assert held.annotation(key, "released-by").startswith("system:serviceaccount:default:operator-")
    (entry,) = json.loads(taints("list", "--state", "released", "-o", "json", ours).out)
    assert entry["released_until"] > entry["tainted_since"]


def _second_has_passed(held: Held) -> bool:
    """Whether something made now gets a later time than the sample rule has."""
    name = "probe"
    selector = {"driver": "x.example.com", "pool": "x", "device": "x"}
    made = held.admin.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name},
            "spec": {"deviceSelector": selector, "taint": {"key": "x", "effect": "None"}},
        }
    )
    held.admin.delete("DeviceTaintRule", name)
    (rule,) = held.admin.rules()
    return bool(made["metadata"]["creationTimestamp"] > rule["metadata"]["creationTimestamp"])


def test_a_release_is_extended_and_ended(held: Held, taints: Taints, ours: str) -> None:
    key = held.put("sram")
    assert taints("release", f"{NODE}/3/sram", *RELEASE, "--by", "alice", "--yes", ours).code == 0
    first = held.annotation(key, "released-until")
    longer = ("--for", "1d", "--reason", "more time")
    said = taints("release", f"{NODE}/3/sram", *longer, "--by", "bob", "--yes", ours)
    assert said.code == 0
    assert "is released by alice until" in said.out
    assert held.annotation(key, "released-until") > first
    assert held.annotation(key, "released-by") == "bob"
    said = taints("release", f"{NODE}/3", "--end", "--by", "carol", "--yes", ours)
    assert (said.code, said.err) == (0, "")
    assert f"ended the release of {key}" in said.out
    assert held.annotation(key, "released-until") < first
    assert held.annotation(key, "state") == "released", "the remediator withholds it at its next look"
    assert held.annotation(key, "reason") == "more time"
    said = taints("release", f"{NODE}/3", "--end", "--yes", ours)
    assert said.code == 1
    assert "nothing to end" in said.err


def test_all_faults_of_a_device_are_released_and_each_is_said(held: Held, taints: Taints, ours: str) -> None:
    keys = [held.put(fault) for fault in ("hbm", "link_efa")]
    other = held.put("sram", 4)
    said = taints("release", f"{NODE}/neuron-device-3", *RELEASE, "--yes", ours)
    assert said.code == 0
    assert all(f"released {key}" in said.out for key in keys)
    assert held.annotation(other, "state") == "active"
    assert taints("release", NODE, "--all-devices", *RELEASE, "--yes", ours).code == 0
    assert held.annotation(other, "state") == "released"


def test_what_keeps_a_target_tainted_is_said(held: Held, taints: Taints, ours: str) -> None:
    held.put("hbm")
    other = held.put("sram")
    said = taints("release", f"{NODE}/3/hbm", *RELEASE, "--dry-run", ours)
    assert f"note: neuron-device-3 stays tainted by {other}" in said.out


def test_a_dry_run_writes_nothing(held: Held, taints: Taints, ours: str) -> None:
    before = held.rule(held.put("hbm"))
    said = taints("release", f"{NODE}/3", *RELEASE, "--dry-run", ours)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "Dry run: nothing was changed."
    (after,) = held.admin.rules()
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


def test_a_record_of_a_replaced_machine_is_void(held: Held, taints: Taints, ours: str) -> None:
    key = held.put("hbm")
    # Without its owner the garbage collector leaves it for the test to look at.
    annotations = {"neuron-remediator/node-uid": "11111111-2222-3333-4444-555555555555"}
    held.admin.patch("DeviceTaintRule", object_name(key), {"metadata": {"annotations": annotations}})
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", ours)
    assert said.code == 1
    assert "is void" in said.err
    assert held.annotation(key, "state") == "active"
    assert "void: it belongs to a machine that is gone" in taints("explain", f"{NODE}/3", ours).out


def test_somebody_who_may_only_look_can_look(held: Held, taints: Taints, login: Login) -> None:
    key = held.put("hbm")
    option = f"--kubeconfig={login('onlooker')}"
    assert taints("list", option).code == 0
    said = taints("explain", f"{NODE}/3", option)
    assert said.code == 0
    assert "not known: ResourceClaims could not be read" in said.out
    assert "Not known" in said.out
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", option)
    assert said.code == 1
    assert f"has not released {key}" in said.err
    assert "403" in said.err
    assert "not known whether" not in said.err, "a refusal is certain"
    assert held.annotation(key, "state") == "active"


def test_somebody_without_rights_is_told_which_to_ask_for(held: Held, taints: Taints, login: Login) -> None:
    option = f"--kubeconfig={login('nobody')}"
    for line in (("list",), ("explain", NODE), ("release", f"{NODE}/3", *RELEASE, "--yes")):
        said = taints(*line, option)
        assert (said.code, said.out) == (1, "")
        assert "403" in said.err
        assert said.err.endswith("have the ClusterRole neuron-taints-operator (deploy/rbac.yaml) bound to you\n")
        assert len(said.err.splitlines()) == 1


def test_what_was_done_and_what_was_not_is_said_exactly(held: Held, taints: Taints, login: Login) -> None:
    first, second, third = held.put("hbm"), held.put("link_efa"), held.put("sram")
    file = login("onlooker", only=(object_name(first), object_name(third)))
    said = taints("release", f"{NODE}/3", *RELEASE, "--yes", f"--kubeconfig={file}")
    assert said.code == 1
    assert said.out.splitlines()[-1] == f"released {first}"
    refused, untried = said.err.splitlines()
    assert refused.startswith(f"failed: has not released {second}: PATCH ")
    assert untried == f"failed: has not released {third}: not tried"
    assert [held.annotation(key, "state") for key in (first, second, third)] == ["released", "active", "active"]


@pytest.mark.parametrize("trouble", [Trouble.CONFLICT, Trouble.ERROR, Trouble.CUT_BEFORE, Trouble.CUT_AFTER])
def test_what_went_wrong_on_the_way_is_told_as_it_is(
    held: Held, taints: Taints, control_plane: ControlPlane, tmp_path: Path, trouble: Trouble
) -> None:
    key = held.put("hbm")
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({trouble: 1.0}, seed=1, where=lambda method, _path: method == "PATCH")
        file = proxy.kubeconfig("admin")
        said = taints("release", f"{NODE}/3", *RELEASE, "--yes", f"--kubeconfig={file}")
    released = trouble is Trouble.CUT_AFTER
    assert held.annotation(key, "state") == ("released" if released else "active")
    if released:
        assert (said.code, said.err) == (0, "")
    elif trouble is Trouble.CONFLICT:
        assert said.code == 1
        assert said.err == f"failed: has not released {key}: it was changed by others 8 times in a row; try again\n"
    else:
        assert said.code == 1
        assert said.err.startswith(f"unknown: may have released {key}: PATCH ")


def test_explain_tells_who_uses_the_device_and_what_to_do_next(held: Held, taints: Taints, ours: str) -> None:
    held.admin.pod("train", device="neuron-device-3")
    assert held.admin.scheduled("train") == "neuron-device-3"
    key = held.put("link_efa")
    said = taints("explain", f"{NODE}/3", ours)
    assert said.code == 0
    for text in (
        "the device reports an error of its EFA link",
        f"tainted NoSchedule since {held.rule(key)['spec']['taint']['timeAdded'].replace('T', ' ')}",
        "pod default/train, by claim default/train",
        "alerts/runbooks/NeuronDeviceEFALinkError.md",
        "list 16 devices",
        f"get devicetaintrule {object_name(key)} -o yaml",
        f"neuron-taints release {key} --for 4h --reason 'WHY' --kubeconfig",
        f"describe node {NODE}",
    ):
        assert text in said.out


def test_explain_says_when_nothing_is_held(held: Held, taints: Taints, ours: str) -> None:
    said = taints("explain", f"{NODE}/3", ours)
    assert said.code == 0
    assert "Nothing is held" in said.out
    assert f'neuron_device_fault{{node="{NODE}",device="3"}}' in said.out


@pytest.mark.parametrize(
    ("address", "text"), [(f"{NODE}/99", f"the slices of {NODE} list no device 99"), ("nowhere/3", "there is no Node")]
)
def test_what_does_not_exist_is_said_not_to(held: Held, taints: Taints, ours: str, address: str, text: str) -> None:
    held.put("hbm")
    said = taints("explain", address, ours)
    assert said.code == 1
    assert text in said.out
    said = taints("release", address, *RELEASE, "--yes", ours)
    assert said.code == 1
    assert f"there is no record of {address}" in said.err


@pytest.mark.parametrize("command", [("list",), ("explain",), ("release", *RELEASE, "--yes")])
def test_a_mistyped_node_is_said_not_to_be_there(
    held: Held, taints: Taints, ours: str, command: tuple[str, ...]
) -> None:
    mistyped = NODE.replace("200", "201")
    name, *options = command
    said = taints(name, f"{mistyped}/3", *options, ours)
    assert said.code == 1
    first = (said.out + said.err).splitlines()[0]
    assert f"there is no Node of that name; did you mean {NODE}?" in first
    assert mistyped in first


def test_who_may_not_look_at_slices_gets_names_from_records(held: Held, taints: Taints, login: Login) -> None:
    option = f"--kubeconfig={login('onlooker')}"
    mistyped = NODE.replace("200", "201")
    assert taints("list", mistyped, option).err == f"{mistyped}: there is no Node of that name\n"
    held.put("hbm")
    assert taints("list", mistyped, option).err.endswith(f"did you mean {NODE}?\n")


def test_a_node_that_is_there_and_holds_nothing_is_no_error(held: Held, taints: Taints, ours: str) -> None:
    said = taints("list", NODE, ours)
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith(f"Nothing is held on {NODE}: ")


@pytest.mark.parametrize("command", [("list",), ("explain",), ("release", *RELEASE, "--yes")])
def test_a_fault_that_nobody_knows_is_wrong_usage(
    held: Held, taints: Taints, ours: str, command: tuple[str, ...]
) -> None:
    name, *options = command
    said = taints(name, f"{NODE}/3/bogus", *options, ours)
    assert (said.code, said.out) == (2, "")
    assert "no fault 'bogus'; expected one of " in said.err
    assert ", hbm, " in said.err
    assert said.err.endswith(f"(see 'neuron-taints {name} --help')\n")


def test_a_fault_of_a_newer_remediator_can_be_named(held: Held, taints: Taints, ours: str) -> None:
    held.put("hbm", key=Key(NODE, 3, "new_kind"))
    assert taints("list", f"{NODE}/3/new_kind", ours).code == 0
    assert "a fault that this version does not know" in taints("explain", f"{NODE}/3/new_kind", ours).out


def test_runbooks_are_named_where_the_environment_says(
    held: Held, taints: Taints, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.put("link_efa")
    monkeypatch.setenv("NEURON_TAINTS_RUNBOOK_URL", "https://runbooks.example.com/")
    assert "  https://runbooks.example.com/NeuronDeviceEFALinkError.md" in taints("explain", f"{NODE}/3", ours).out


def test_a_release_says_who_gets_the_room(held: Held, taints: Taints, ours: str) -> None:
    held.put("link_efa")
    lifted = Taint(TAINT_KEY, "x", Effect.NONE)
    waiting = held.put("hbm", 4, state=State.WITHHELD, reason="withheld by the budget: unavailable", taint=lifted)
    said = taints("release", f"{NODE}/3", *RELEASE, "--dry-run", ours)
    assert said.code == 0
    room = "room in the budget goes to withheld records, latched ones at once, and effect NoExecute evicts"
    assert f"note: {room}: {waiting}\n" in said.out


def test_an_api_server_that_is_down_is_said_to_be(control_plane: ControlPlane, taints: Taints, tmp_path: Path) -> None:
    file = tmp_path / "config"
    server = f"https://127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(kubeconfig(server, str(control_plane.ca_file), "x")))
    said = taints("list", f"--kubeconfig={file}")
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("see whether the API server answers: kubectl get --raw /readyz\n")


def test_credentials_that_the_server_does_not_know(control_plane: ControlPlane, taints: Taints, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(kubeconfig(control_plane.url, str(control_plane.ca_file), "wrong")))
    said = taints("list", f"--kubeconfig={file}")
    assert said.code == 1
    assert "401" in said.err
    assert said.err.endswith("log in to the cluster again, or name another file with --kubeconfig\n")


def test_the_usual_file_is_that_of_kubectl(
    held: Held, taints: Taints, login: Login, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held.put("hbm")
    file = login("operator")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{file}")
    assert NODE in taints("list").out
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert taints("list").code == 1
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(file.read_text())
    assert NODE in taints("list").out


def test_states_choose_records(held: Held, taints: Taints, ours: str) -> None:
    held.put("hbm")
    held.put("link_efa", 4, state=State.WITHHELD, reason="withheld by the budget: new", released_until=NEVER)
    heading, *lines = taints("list", "--state", "withheld", ours).out.splitlines()
    assert [line.split()[1] for line in lines] == ["4"]
    assert (heading.split()[-1], lines[0].endswith("  budget: new")) == ("WHY", True)
    said = taints("list", "--state", "covered", ours)
    assert (said.code, said.err) == (0, "Nothing in the cluster is in state covered.\n")


async def test_the_time_of_a_release_is_the_servers(control_plane: ControlPlane) -> None:
    """A laptop's clock may be wrong by hours; a release by it would be over before it began, or stand for too long."""
    async with connect(control_plane.kubeconfig("admin")) as api:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        told = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review, dict)
        assert told["metadata"]["creationTimestamp"], "what `Cluster.caller` relies on"
        caller = await Cluster(api, "neuron.aws.com", "v1").caller()
    assert caller.name == "admin"
    assert caller.now.microsecond == 0, "as the API server writes times"
