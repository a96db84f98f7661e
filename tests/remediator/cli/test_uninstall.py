"""`neuron-remediator uninstall` on the real API server: all of ours goes, nothing else is written."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS
from exporter.service.flags import UsageError
from remediator import settings
from remediator.cli.uninstall_command import run
from remediator.lease_object import held as held_lease
from remediator.lease_object import new as new_lease
from remediator.node_records import ANNOTATION
from remediator.peer_object import PeerRule
from remediator.peer_object import to_object as to_peer_object
from remediator.records import MANAGED_BY, MANAGER, Key
from remediator.rule_records import object_name
from remediator.targets import Target
from tests.remediator.cli.conftest import RIGHTS, Said, held_on, written_by
from tests.remediator.cli.test_terminal import terminal
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY
from tests.stack.apiproxy import ApiProxy
from tests.stack.controlplane import NAMESPACE
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.remediator.cli.conftest import Held
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.shapes import Object

    Login = Callable[..., Path]
    Uninstall = Callable[..., Said]

HERE = ("--lease.namespace=default", "--lease.duration=1s")
FOREIGN = [
    {"key": "team.example.com/reserved", "value": "a", "effect": "NoSchedule"},
    {"key": "maintenance", "effect": "NoExecute", "timeAdded": "2026-11-30T10:00:00Z"},
]
UNKNOWN = "link_optical"
"""A fault that was in the table once."""


@pytest.fixture
def uninstall(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Give a way to run the command; its output is a pipe."""

    def run_line(*arguments: str) -> Said:
        code = run((*HERE, *arguments))
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run_line


@pytest.fixture
def file(login: Login) -> Path:
    """Give the kubeconfig of somebody who has the rights that the help lists and no others."""
    return login("uninstaller")


@pytest.fixture
def lease(admin: Admin) -> Iterator[Callable[..., None]]:
    """Give a way to make a Lease that a dead replica holds; it is gone after the test."""
    made: list[str] = []

    def make(name: str = "neuron-remediator", *, ours: bool = True) -> None:
        body = held_lease(new_lease("default", name), identity="dead_0a1b2c3d", duration=1, now=NOW)
        admin.create(body if ours else {**body, "metadata": {"name": name, "namespace": "default"}})
        made.append(name)

    yield make
    for name in made:
        admin.delete("Lease", name)


def by_hand(name: str, labels: dict[str, str], pool: str = NODE) -> Object:
    """A rule that stands for no fault."""
    selector = {"driver": DRIVER, "pool": pool, "device": "neuron-device-7"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name, "labels": labels},
        "spec": {"deviceSelector": selector, "taint": {"key": "mine", "effect": "NoExecute"}},
    }


def without_version(stored: Object) -> Object:
    """An object, but for what the server counts."""
    counted = ("resourceVersion", "managedFields", "annotations")
    return {**stored, "metadata": {name: value for name, value in stored["metadata"].items() if name not in counted}}


def test_all_of_ours_goes_and_nothing_else_is_written(
    held: Held, uninstall: Uninstall, file: Path, lease: Callable[..., None], control_plane: ControlPlane
) -> None:
    admin = held.admin
    ours = [held.put("hbm"), held.put("link_efa", 5)]
    admin.node("peer", ultraserver="block-1")
    flag = PeerRule(source=NODE, source_uid=held.uid, peer="peer", target=Target(DRIVER, "peer", "neuron-node"))
    admin.create(to_peer_object(flag, "resource.k8s.io/v1"))
    admin.create(by_hand("broken", {MANAGED_BY: MANAGER}))
    theirs = [by_hand("maintenance", {}), by_hand("helm", {MANAGED_BY: "Helm"})]
    for one in theirs:
        admin.create(one)
    marks = {"labels": {"neuron-remediator/opt-out": "false", "team": "x"}, "annotations": {"somebody": "was here"}}
    admin.patch("Node", NODE, {"metadata": marks})
    admin.change_node_taints(NODE, lambda _none: FOREIGN[:1])
    held.put_on_node("sram", 9)
    admin.change_node_taints(NODE, lambda before: [*before, FOREIGN[1]])
    lease()
    lease("theirs", ours=False)
    before, rules = admin.get("Node", NODE), {rule["metadata"]["name"]: rule for rule in admin.rules()}

    said = uninstall("--yes", f"--kubeconfig={file}")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-2:] == [
        "Removed: 4 DeviceTaintRules, annotation of 1 Node, with 1 taint, 1 Lease.",
        "Nothing with our mark is left.",
    ]
    assert "WARNING: 2 latched records will be forgotten. No clean reading ends such a fault" in said.out
    assert f"note: back in service: 2 targets: {NODE}/neuron-device-3, {NODE}/neuron-device-5" in said.out
    assert (
        f"note: Node {NODE} stays out of service: others taint it: team.example.com/reserved=a:NoSchedule" in said.out
    )

    assert {rule["metadata"]["name"]: rule for rule in admin.rules()} == {
        name: rules[name] for name in ("helm", "maintenance")
    }
    after = admin.get("Node", NODE)
    assert after["spec"].pop("taints") == FOREIGN
    assert [taint for taint in before["spec"].pop("taints") if taint["key"] != TAINT_KEY] == FOREIGN
    assert without_version(after) == without_version(before)
    assert before["metadata"]["annotations"].pop(ANNOTATION)
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert [one["metadata"]["name"] for one in admin.items("Lease")] == ["theirs"]

    names = [*(object_name(key) for key in ours), "broken", flag.name]
    expected = {
        ("patch", "nodes", NODE),
        ("delete", "leases", "neuron-remediator"),
        *(("delete", "devicetaintrules", name) for name in names),
    }
    wait_until(lambda: len(written_by(control_plane, file)) >= len(expected), timeout=10, what="the writes in the log")
    assert sorted(written_by(control_plane, file)) == sorted(expected)

    said = uninstall("--yes", f"--kubeconfig={file}")
    assert (said.code, said.out, said.err) == (0, "Nothing to remove: nothing in the cluster carries our mark.\n", "")
    assert len(written_by(control_plane, file)) == len(expected)


def test_it_is_shown_first_and_a_dry_run_ends_there(
    held: Held, uninstall: Uninstall, file: Path, lease: Callable[..., None], control_plane: ControlPlane
) -> None:
    key = held.put("hbm")
    held.put_on_node("link_efa", 5)
    lease()
    lease("unmarked", ours=False)
    said = uninstall("--dry-run", "--lease.name=unmarked", f"--kubeconfig={file}")
    assert (said.code, said.err) == (0, "")
    heading, *rows = [line.split() for line in said.out.splitlines()]
    assert heading == ["NODE", "KIND", "EFFECT", "WHAT", "NAME"]
    assert [(row[:3], row[-1]) for row in rows[:4]] == [
        ([NODE, "DeviceTaintRule", "NoExecute"], object_name(key)),
        ([NODE, "Node", "NoSchedule"], NODE),
        ([NODE, "Node", "NoSchedule"], NODE),
        (["-", "Lease", "-"], "default/neuron-remediator"),
    ]
    assert "note: Lease default/unmarked does not carry our mark, so it is left" in said.out
    assert (
        "note: a remediator may lead (Lease default/neuron-remediator of dead_0a1b2c3d, default/unmarked of "
        "dead_0a1b2c3d): without --dry-run, this watches for 1 s whether one does, and then refuses"
    ) in said.out
    assert said.out.endswith("Dry run: nothing was changed.\n")
    assert written_by(control_plane, file) == []
    assert held.rule(key)


def test_a_remediator_that_leads_makes_it_refuse(
    held: Held, uninstall: Uninstall, file: Path, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A real one, whose Lease carries our mark: it is seen whatever namespace the command was told."""
    key, old = held.put("hbm"), held.put("link_efa", 5)
    with Replicas(tmp_path, control_plane, count=1, lease_seconds=3) as replicas:
        replicas.wait_for_leader()
        option = f"--kubeconfig={file}"
        for scope in ((), ("--fault=hbm",), ("--fault=hbm", f"--fault={UNKNOWN}")):
            said = uninstall("--yes", *scope, option)
            assert said.code == 1
            assert said.err.splitlines()[-1].startswith(
                "neuron-remediator uninstall: nothing was changed: a remediator leads, neuron-remediator-0_"
            )
            assert said.err.endswith(f"scale deployment neuron-remediator --replicas=0 -n {NAMESPACE}\n")
        assert written_by(control_plane, file) == []
        assert {rule["metadata"]["name"] for rule in held.admin.rules()} == {object_name(key), object_name(old)}

        # Its Lease may be there again by the end, so that this may be no success.
        assert uninstall("--yes", "--force", option).code in (0, 1)
        assert held.admin.rules() == []
        wait_until(
            lambda: held.admin.find("Lease", "neuron-remediator", namespace=NAMESPACE), timeout=10, what="its Lease"
        )

        replicas.kill(0)
        held.put("sram")
        said = uninstall("--yes", option)
        assert said.code == 0, said.err
        assert held.admin.rules() == []
        assert held.admin.find("Lease", "neuron-remediator", namespace=NAMESPACE) is None


def test_a_fault_that_was_removed_from_the_table_may_go_at_any_time(
    held: Held, uninstall: Uninstall, file: Path, control_plane: ControlPlane, tmp_path: Path
) -> None:
    old = Key(NODE, 5, UNKNOWN)
    held.put("link_efa", key=old)
    stays, on_node = held.put("hbm"), held.put_on_node("sram", 9)
    held.put_on_node("link_efa", 8, key=Key(NODE, 8, UNKNOWN))
    assert UNKNOWN not in FAULTS
    with Replicas(tmp_path, control_plane, count=1, lease_seconds=3) as replicas:
        replicas.wait_for_leader()
        said = uninstall("--yes", f"--fault={UNKNOWN}", f"--kubeconfig={file}")
        assert said.code == 0, said.err
        assert said.out.endswith(f"Nothing of {UNKNOWN} is left.\n")
        replicas.end(0)
    assert [rule["metadata"]["name"] for rule in held.admin.rules()] == [object_name(stays)]
    assert held.on_node(on_node).key == on_node
    assert UNKNOWN not in held.admin.get("Node", NODE)["metadata"]["annotations"][ANNOTATION]
    said = uninstall("--yes", f"--fault={UNKNOWN}", f"--kubeconfig={file}")
    assert (said.code, said.out) == (
        0,
        f"Nothing to remove: there is no record of {UNKNOWN}; there are records of hbm, sram.\n",
    )


def test_a_dry_run_says_what_is_not_there(
    held: Held, uninstall: Uninstall, file: Path, lease: Callable[..., None]
) -> None:
    held.put("hbm")
    said = uninstall("--dry-run", "--fault=hbm", "--fault=nonsense", f"--kubeconfig={file}")
    assert said.code == 0
    assert "note: there is no record of nonsense; there are records of hbm\n" in said.out
    assert "may lead" not in said.out, "no Lease is held"
    lease()
    assert "may lead" in uninstall("--dry-run", "--fault=hbm", f"--kubeconfig={file}").out
    for options in (("--force",), ("--fault=nonsense",)):
        assert "may lead" not in uninstall("--dry-run", *options, f"--kubeconfig={file}").out


def test_conflicts_are_survived(
    held: Held, uninstall: Uninstall, control_plane: ControlPlane, tmp_path: Path, lease: Callable[..., None]
) -> None:
    for number in range(8):
        held.put("link_efa", number)
    held.put_on_node("sram", 9)
    lease()
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({Trouble.CONFLICT: 0.4}, seed=5, where=lambda method, _path: method in ("DELETE", "PATCH"))
        said = uninstall("--yes", f"--kubeconfig={proxy.kubeconfig('admin')}")
        assert proxy.done[Trouble.CONFLICT] > 0
    assert said.code == 0, said.err
    assert held.admin.rules() == []
    assert held.admin.node_taints(NODE) == []


@pytest.mark.parametrize("stays", [True, False])
def test_what_changed_meanwhile_is_looked_at_again(
    held: Held, uninstall: Uninstall, control_plane: ControlPlane, tmp_path: Path, *, stays: bool
) -> None:
    """A rule that a hand has taken over is its own by now; one that only differs is still ours."""
    name = object_name(held.put("hbm"))
    change: Object = {"labels": {MANAGED_BY: "by-hand"}} if stays else {"annotations": {"somebody": "was here"}}
    done: list[str] = []
    with ApiProxy(control_plane, tmp_path) as proxy:

        def edit(method: str, path: str) -> bool:
            if method == "DELETE" and not done:
                done.append(path)
                held.admin.patch("DeviceTaintRule", name, {"metadata": change})
            return False

        proxy.storm({Trouble.CONFLICT: 1.0}, seed=1, where=edit)
        said = uninstall("--yes", f"--kubeconfig={proxy.kubeconfig('admin')}")
    assert done
    assert said.code == 0, said.err
    assert [rule["metadata"]["name"] for rule in held.admin.rules()] == ([name] if stays else [])


def test_what_is_left_is_said_and_no_success(held: Held, uninstall: Uninstall, file: Path) -> None:
    held.put("hbm")
    name = object_name(held.put("link_efa", 5))
    held.admin.patch("DeviceTaintRule", name, {"metadata": {"finalizers": ["example.com/hold"]}})
    said = uninstall("--yes", f"--kubeconfig={file}")
    held.admin.patch("DeviceTaintRule", name, {"metadata": {"finalizers": None}})
    assert said.code == 1
    assert said.err.splitlines()[-1] == (
        f"neuron-remediator uninstall: 1 DeviceTaintRule left: DeviceTaintRule {name}; a finalizer holds the deletion "
        "up: see 'kubectl get devicetaintrule NAME -o yaml'; then run this again"
    )


def test_an_annotation_that_cannot_be_read_goes_and_its_taints_are_told_of(
    held: Held, uninstall: Uninstall, file: Path
) -> None:
    held.put_on_node("hbm")
    held.admin.patch("Node", NODE, {"metadata": {"annotations": {ANNOTATION: "{"}}})
    taints = held.admin.node_taints(NODE)
    said = uninstall("--yes", f"--kubeconfig={file}")
    assert said.code == 0, said.err
    note = (
        f"  note: left on Node {NODE}, as not known to be ours: {TAINT_KEY}=hbm-uncorrectable-error:NoSchedule; if it "
        f"is ours, take it off: kubectl --kubeconfig {file} taint node {NODE} {TAINT_KEY}:NoSchedule-"
    )
    assert said.out.splitlines()[-2:] == ["Nothing with our mark is left.", note]
    assert held.admin.node_taints(NODE) == taints
    assert ANNOTATION not in held.admin.get("Node", NODE)["metadata"].get("annotations", {})
    said = uninstall("--yes", f"--kubeconfig={file}")
    assert said.code == 0
    assert said.out.splitlines() == ["Nothing to remove: nothing in the cluster carries our mark.", note]


@pytest.mark.parametrize("trouble", [Trouble.ERROR, Trouble.CUT_BEFORE])
def test_what_could_not_be_removed_is_said(
    held: Held, uninstall: Uninstall, control_plane: ControlPlane, tmp_path: Path, trouble: Trouble
) -> None:
    names = [object_name(held.put("link_efa", number)) for number in range(3)]
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({trouble: 1.0}, seed=1, where=lambda method, path: method == "DELETE" and names[1] in path)
        said = uninstall("--yes", f"--kubeconfig={proxy.kubeconfig('admin')}")
    assert said.code == 1
    assert f"not removed: DeviceTaintRule {names[1]}: DELETE " in said.err
    assert f"1 DeviceTaintRule left: DeviceTaintRule {names[1]}; see that no remediator runs" in said.err


def test_somebody_without_rights_is_told_which_are_needed(held: Held, uninstall: Uninstall, login: Login) -> None:
    held.put("hbm")
    said = uninstall("--yes", f"--kubeconfig={login('operator')}")
    assert (said.code, said.out) == (1, "")
    assert "403" in said.err
    assert said.err.endswith("the rights it needs are listed by 'neuron-remediator uninstall --help'\n")


def test_the_help_fits_a_terminal(uninstall: Uninstall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = uninstall("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("-")] == [], "no name is split at a hyphen"


def test_the_help_lists_the_rights_that_suffice(uninstall: Uninstall) -> None:
    listed = uninstall("--help").out.partition("Rights needed")[2]
    for group, plural, verbs in RIGHTS["uninstaller"]:
        assert f"{group or '(core)':<20} {plural:<17} {', '.join(verbs)}" in listed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ((), "there is no terminal to ask for confirmation; expected --yes or --dry-run"),
        (("--fault=HBM", "--yes"), "expected a fault such as 'hbm', got 'HBM'"),
        (("--lease.duration=1.5s", "--yes"), "expected whole seconds"),
        (("--lease.name=../x", "--yes"), "expected a Kubernetes name"),
        (("everything",), "Got unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_sentence(uninstall: Uninstall, line: tuple[str, ...], text: str) -> None:
    said = uninstall(*line)
    assert (said.code, said.out) == (2, "")
    assert text in said.err
    assert said.err.rstrip().endswith("(see 'neuron-remediator uninstall --help')")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (("--kubeconfig", "F", "uninstall"), "; expected it first: neuron-remediator uninstall [OPTIONS]"),
        (("unistall",), "; did you mean 'uninstall'?"),
    ],
)
def test_a_command_that_is_not_one_is_corrected(line: tuple[str, ...], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.read(line, {})
    assert caught.value.problems == (f"reading the command line: unknown argument {line[-1]!r}{hint}",)
    assert settings.COMMANDS == (settings.UNINSTALL,)


def test_a_cluster_without_rules_is_cleared_too(
    bare_plane: ControlPlane, bare_admin: Admin, uninstall: Uninstall
) -> None:
    """Kubernetes 1.36 as its defaults are."""
    held = held_on(bare_admin)
    bare_admin.change_node_taints(NODE, lambda _none: FOREIGN)
    held.put_on_node("hbm")
    said = uninstall("--yes", f"--kubeconfig={bare_plane.kubeconfig('admin')}")
    assert said.code == 0, said.err
    assert "note: this cluster serves no DeviceTaintRules" in said.out
    assert bare_admin.node_taints(NODE) == FOREIGN


def test_rules_go_in_the_version_that_is_served(
    beta_plane: ControlPlane, beta_admin: Admin, uninstall: Uninstall
) -> None:
    """Kubernetes 1.36 with the gate, which serves v1beta2."""
    held = held_on(beta_admin)
    held.put("hbm")
    said = uninstall("--yes", f"--kubeconfig={beta_plane.kubeconfig('admin')}")
    assert said.code == 0, said.err
    assert beta_admin.rules() == []


COMMAND = (sys.executable, "-m", "remediator", "uninstall", *HERE)


@pytest.mark.parametrize("keys", ["\n", "n\n", "\x03"])
def test_nothing_goes_without_a_yes(held: Held, file: Path, keys: str) -> None:
    held.put("hbm")
    with terminal(f"--kubeconfig={file}", command=COMMAND) as shown:
        shown.shows("Remove all of this? [y/N]")
        assert "WARNING: 1 latched record will be forgotten" in shown.screen
        assert shown.answered(keys) == 1
        assert "neuron-remediator uninstall: stopped: nothing was changed" in shown.screen
    assert len(held.admin.rules()) == 1


def test_ctrl_c_on_the_way_says_what_is_known(held: Held, control_plane: ControlPlane, tmp_path: Path) -> None:
    stuck, gone = object_name(held.put("hbm")), object_name(held.put("sram", 5))
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({Trouble.HANG: 1.0}, seed=1, where=lambda method, path: method == "DELETE" and stuck in path)
        with terminal("--yes", f"--kubeconfig={proxy.kubeconfig('admin')}", command=COMMAND, width=200) as shown:
            wait_until(lambda: proxy.done[Trouble.HANG], timeout=20, what="the delete to be under way")
            held.admin.gone("DeviceTaintRule", gone)
            wait_until(lambda: re.search(r"Removing[^\r\n]* 50%", shown.screen), timeout=20, what="it to know so too")
            shown.types("\x03")
            assert shown.ends() == 1
            assert "Removed: 1 DeviceTaintRule." in shown.screen
            assert f"not removed: DeviceTaintRule {stuck}: it was interrupted, and may be gone" in shown.screen
            assert "Traceback" not in shown.screen


def test_the_service_loads_nothing_of_the_command_line() -> None:
    code = "import sys, remediator.__main__; sys.exit(bool({'click', 'rich'} & sys.modules.keys()))"
    assert subprocess.run((sys.executable, "-c", code), check=False, timeout=60).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_rules_go_in_seconds(held: Held, uninstall: Uninstall, file: Path) -> None:
    for number in range(1000):
        held.put("link_efa", number)
    said = uninstall("--yes", f"--kubeconfig={file}")
    assert said.code == 0, said.err
    assert "Removed: 1000 DeviceTaintRules." in said.out
    assert held.admin.rules() == []
