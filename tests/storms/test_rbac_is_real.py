"""The shipped roles are what the remediator needs and no more: it runs with them, and the audit log tells the rest.

What they do not allow is `test_rbac_refuses`'s.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remediator.node_records import ANNOTATION
from remediator.peer_object import PEER_KEY
from remediator.records import Key
from tests.stack.client import Client
from tests.stack.controlplane import NAMESPACE
from tests.stack.http import HTTPError, request
from tests.stack.nodes import DRIVER_TAINT_KEY
from tests.stack.pipeline import LIFTED, TOKEN, install
from tests.stack.process import wait_until
from tests.stack.replicas import LEASE, Replicas
from tests.stack.sender import WEBHOOK
from tests.storms.rights import EVERYWHERE, VERBS, Right, asked, differences, shipped
from tests.storms.storm import AUDIT_SECONDS, USER, Fault, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.http import Response
    from tests.stack.kube import Admin
    from tests.stack.shapes import Object

SLICED, BARE, FAULTY, PEER = (f"ip-10-7-1-{number}.ec2.internal" for number in range(1, 5))
"""A node with devices, one without slices, and the two of an UltraServer."""

SECONDS = 20
ROLE = "neuron-remediator"
PATCH_NODES = Right(EVERYWHERE, "", "nodes", "patch")
DISCOVERY = ("system:discovery", "system:public-info-viewer")
"""Roles of the API server's own, which everybody with an account has."""


class Audit:
    """What the remediator has asked for since this was made."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._before = len(self._all())

    def _all(self) -> list[Object]:
        return self._control_plane.audit(user=USER, verbs=VERBS)

    def events(self) -> list[Object]:
        """Every request, oldest first; a watch is told when it has ended."""
        return self._all()[self._before :]

    @contextmanager
    def naming_refusals(self) -> Iterator[None]:
        """Add to whatever goes wrong which rights were missing then: it may be for want of them."""
        try:
            yield
        except Exception as error:
            for right in sorted(asked(self.events()).forbidden):
                error.add_note(f"missing: {right}")
            raise

    def differences(self, given: set[Right]) -> list[str]:
        """How what is given differs from what was asked for; a log that is not whole yet is waited for."""
        found: list[str] = []

        def none() -> bool:
            found[:] = differences(given, asked(self.events()))
            return not found

        try:
            wait_until(none, timeout=AUDIT_SECONDS, what="every right to be used and every request to be allowed")
        except TimeoutError:
            return found
        return []


class Scene:
    """Replicas of which one leads, and who sends it notifications."""

    def __init__(self, replicas: Replicas, admin: Admin) -> None:
        self.replicas, self.admin = replicas, admin
        self.leader = replicas.wait_for_leader()

    def post(self, body: bytes) -> Response:
        """Send a notification once."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return request("POST", self.replicas.url(self.leader) + WEBHOOK, body=body, headers=headers, check=False)

    def taken(self, body: bytes) -> None:
        """Send a notification until it is taken, as Alertmanager would."""
        wait_until(lambda: self.post(body).status == 200, timeout=SECONDS, what="a notification to be taken")

    def count(self, name: str, **labels: str) -> float | None:
        """One of the leader's counters."""
        return self.replicas.service(self.leader).value(f"neuron_remediator_{name}_total", **labels)


def _fault(node: str, fault: str = "link_host", device: int = 3) -> Fault:
    return Fault(Key(node, device, fault), datetime.now(UTC))


def test_every_right_is_used_and_none_is_missing(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> None:
    _fleet(admin)
    admin.delete("Lease", LEASE, namespace=NAMESPACE)
    audit, written = Audit(control_plane), Written(control_plane)
    with audit.naming_refusals(), Replicas(tmp_path, control_plane, flags=LIFTED) as replicas:
        scene = Scene(replicas, admin)
        _rules_come_change_and_go(scene)
        _a_rule_is_in_the_way(scene)
        _an_unknown_node(scene)
        _a_node_bears_its_records(scene)
        _a_peer_is_flagged(scene)
        _another_leads(scene)
    written.up_to_now(admin)
    found = audit.differences(shipped())
    assert not found, "\n".join(found)
    _discovery_needs_no_role_of_ours(audit.events())


def _fleet(admin: Admin) -> None:
    admin.serve_ultraservers()
    admin.node(SLICED)
    admin.node(BARE, devices=0)
    for node in (FAULTY, PEER):
        admin.node(node, ultraserver="block-1")
    admin.ultraserver("ultraserver-1", [FAULTY, PEER])


def _rules_come_change_and_go(scene: Scene) -> None:
    fault = _fault(SLICED)
    scene.taken(fault.firing())
    again = fault.again()
    scene.taken(again.firing())
    scene.taken(again.over())
    assert scene.admin.find("DeviceTaintRule", fault.name) is None


def _a_rule_is_in_the_way(scene: Scene) -> None:
    """A conflict: the rule is read as it is, and is not ours to write."""
    fault = _fault(SLICED, "hbm", device=4)
    metadata = {"name": fault.name}
    taint = {"key": "example.com/mine", "effect": "None"}
    rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": metadata}
    scene.admin.create({**rule, "spec": {"deviceSelector": {"pool": "none"}, "taint": taint}})
    assert scene.post(fault.firing()).status == 503
    scene.admin.delete("DeviceTaintRule", fault.name)
    scene.taken(fault.firing())


def _an_unknown_node(scene: Scene) -> None:
    scene.taken(_fault("ip-10-7-1-99.ec2.internal").firing())
    assert scene.count("alerts", outcome="ignored_unknown_node") == 1


def _a_node_bears_its_records(scene: Scene) -> None:
    fault = _fault(BARE)
    scene.taken(fault.firing())
    assert [taint["key"] for taint in scene.admin.node_taints(BARE)] == [DRIVER_TAINT_KEY]
    scene.taken(fault.over())
    assert scene.admin.node_taints(BARE) == []


def _a_peer_is_flagged(scene: Scene) -> None:
    scene.taken(_fault(FAULTY).firing())

    def flagged() -> bool:
        return PEER in {
            rule["spec"]["deviceSelector"]["pool"]
            for rule in scene.admin.rules()
            if rule["spec"]["taint"]["key"] == PEER_KEY
        }

    wait_until(flagged, timeout=SECONDS, what="the peer to be flagged")


def _another_leads(scene: Scene) -> None:
    before = scene.leader
    scene.replicas.end(before)
    scene.leader = scene.replicas.wait_for_leader(other_than=before)
    scene.taken(_fault(SLICED, "sram", device=5).firing())


def _discovery_needs_no_role_of_ours(events: Iterable[Object]) -> None:
    asked_for = [event for event in events if "objectRef" not in event]
    reasons = {event["annotations"]["authorization.k8s.io/reason"] for event in asked_for}
    assert asked_for
    assert all(any(f'ClusterRole "{role}"' in reason for role in DISCOVERY) for reason in reasons), reasons


def test_a_right_that_is_missing_is_told_and_made_up_for_once_it_is_given(
    control_plane: ControlPlane, admin: Admin, tmp_path: Path
) -> None:
    admin.node(BARE, devices=0)
    admin.node(SLICED)
    fault, audit = _fault(BARE), Audit(control_plane)
    with Replicas(tmp_path, control_plane, count=1, flags=LIFTED) as replicas:
        scene = Scene(replicas, admin)
        try:
            _take_away(control_plane, admin, PATCH_NODES)
            answer = scene.post(fault.firing())
            assert (answer.status, answer.text) == (503, "forbidden: ask again\n")
            assert _said(replicas)
            assert scene.count("notifications", result="failed") == 1
            assert scene.count("alerts", outcome="failed") == 1
            assert scene.count("actions", action="create", backend="node-taint", result="failed") == 1
            assert ANNOTATION not in admin.get("Node", BARE)["metadata"].get("annotations", {})
            scene.taken(_fault(SLICED).firing())
            missing = [one for one in differences(set(), asked(audit.events())) if one.startswith("missing")]
            assert missing == [f"missing: {PATCH_NODES}"]
        finally:
            install(control_plane)
        scene.taken(fault.firing())
        assert scene.count("actions", action="create", backend="node-taint", result="ok") == 1
    assert [taint["key"] for taint in admin.node_taints(BARE)] == [DRIVER_TAINT_KEY]


def _take_away(control_plane: ControlPlane, admin: Admin, right: Right) -> None:
    """Take one verb out of the ClusterRole; returns once that is in force."""
    rules = admin.get("ClusterRole", ROLE)["rules"]
    for rule in rules:
        if right.resource in rule["resources"]:
            rule["verbs"].remove(right.verb)
    admin.patch("ClusterRole", ROLE, {"rules": rules})
    own = Client(control_plane, USER)

    def refused() -> bool:
        try:
            own.patch("Node", BARE, {})
        except HTTPError as error:
            return error.status == 403
        return False

    wait_until(refused, timeout=SECONDS, what=f"{right} to be refused")


def _said(replicas: Replicas) -> bool:
    """Whether the log names what was refused."""
    log = replicas.service(0).process.log_path.read_text(encoding="utf-8")
    return "acting on an alert: failed" in log and 'cannot patch resource \\"nodes\\"' in log
