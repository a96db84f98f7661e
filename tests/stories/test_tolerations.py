"""What a toleration in a claim is worth, and how long: the guide's claim template on a real control plane.

The guide leaves open when SIGTERM comes, what the default of `tolerationSeconds` is, how long it takes from detection
to eviction, and what a taint that is written again does to a clock that runs. On Kubernetes 1.37.2:

* A pod is asked to end at the taint's `timeAdded` + `tolerationSeconds`. `timeAdded` has whole seconds, cut off: a
  toleration of 5 s lasts between 4 and 5 s from the moment of the taint. SIGTERM comes then, and not before; the pod's
  `terminationGracePeriodSeconds` come on top.
* There is no default. Without a toleration the pod is asked to end at once, within 0.2 s of the taint; a toleration
  without `tolerationSeconds` has no end. Of several that match, the shortest counts, but one without an end outweighs
  all.
* A toleration must say `effect: NoExecute`. One for NoSchedule is none for NoExecute, and neither is one that names no
  effect, although Kubernetes documents that as every effect.
* The same rule written again changes no clock, be it by a newer alert, by `kubectl apply` or by a patch. An alert that
  is only repeated is not even a write.
* An effect that changes sets `timeAdded` anew: a lowered rule calls a pending eviction off, and the raise to NoExecute
  starts the clock from its beginning. So does a rule that was deleted and is made again.
* A toleration lets new pods in, too, also with its seconds long over: a pod made again from the same template comes
  onto the tainted device again and is evicted at once, until the node is recycled.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.stack import shapes
from tests.stack.process import wait_until
from tests.stories.conftest import NODE
from tests.stories.watching import (
    KEY,
    Rule,
    becomes,
    eviction,
    evictions,
    firing,
    moment,
    passed,
    rule_of,
    taint_added,
    tainted,
    writes,
)

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.pipeline import Pipeline

pytestmark = pytest.mark.stack

OTHER = "ip-10-1-1-201.us-west-2.compute.internal"
SECONDS = 5
TEMPLATE = f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: fault-tolerant-neurons
spec:
  spec:
    devices:
      requests:
      - name: neurons
        exactly:
          deviceClassName: neuron.aws.com
          allocationMode: All
          tolerations:
          - key: neuron.aws.com/device-unhealthy
            operator: Exists
            effect: NoExecute
            tolerationSeconds: {SECONDS}
"""
GRACE = 3
LATE = timedelta(seconds=3)
"""What a busy machine is given on top of what was promised."""

Toleration = dict[str, Any]


def toleration(seconds: int | None = None, *, effect: str | None = "NoExecute") -> Toleration:
    """The guide's toleration, with other seconds or none, and with another effect or none."""
    optional = {"effect": effect, "tolerationSeconds": seconds}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"key": KEY, "operator": "Exists", **given}


# Pod: the tolerations of its claim, and how many seconds it stays; None: it is left alone.
PODS: dict[str, tuple[list[Toleration], int | None]] = {
    "tolerates-nothing": ([], 0),
    "tolerates-without-end": ([toleration()], None),
    "tolerates-no-schedule": ([toleration(effect="NoSchedule")], 0),
    "tolerates-without-effect": ([toleration(effect=None)], 0),
    "tolerates-5-and-2": ([toleration(5), toleration(2)], 2),
    "tolerates-5-and-without-end": ([toleration(5), toleration()], None),
}


def guides_pod(admin: Admin, name: str) -> None:
    """Make a pod with a claim from the guide's template, and wait until it holds all devices of the node."""
    source = {"resourceClaimTemplateName": "fault-tolerant-neurons"}
    admin.create(shapes.pod(name, source, node=NODE, grace=GRACE))
    becomes(lambda: len(admin.allocated_devices(name)) == 16, f"16 devices for pod {name}")
    becomes(lambda: admin.get("Pod", name)["spec"].get("nodeName"), f"pod {name} to be bound")


def stays(admin: Admin, pod: str) -> bool:
    """Whether the pod is there, and nobody has asked it to end."""
    return "deletionTimestamp" not in admin.get("Pod", pod)["metadata"]


def ends_after(control_plane: ControlPlane, pod: str, rule: Rule, seconds: int) -> datetime:
    """Wait for the pod's one eviction, check that it comes when it must, and return when it came."""
    made, added, at = writes(control_plane, rule)[0], taint_added(rule), eviction(control_plane, pod)
    due = max(added + timedelta(seconds=seconds), made)
    told = f"{pod}: {at - made} from rule to eviction, {at - added} from timeAdded"
    print(told)
    assert due <= at <= due + LATE, told
    assert evictions(control_plane, pod) == [at]
    return at


def has_its_grace(admin: Admin, pod: str, asked: datetime) -> None:
    """Check that the pod, asked to end at that time, is there and has all of its own time to end in."""
    ending = admin.get("Pod", pod)
    assert "DeletionByDeviceTaintManager" in [one.get("reason") for one in ending["status"]["conditions"]]
    # The time in the object is when it would be killed, in whole seconds.
    killed = moment(ending["metadata"]["deletionTimestamp"])
    assert abs(killed - asked - timedelta(seconds=GRACE)) <= timedelta(seconds=1)


def test_a_pod_stays_for_the_seconds_it_tolerates_and_no_longer(
    pipeline: Pipeline, admin: Admin, control_plane: ControlPlane
) -> None:
    """The guide's template puts the eviction off for its seconds; the table has what other tolerations do.

    SIGTERM comes after the seconds, and the pod's own time to end after that. What comes next from the same template
    tolerates the taint, so it comes onto the same device and is evicted at once.
    """
    admin.create(yaml.safe_load(TEMPLATE))
    guides_pod(admin, "saves-its-state")
    admin.node(OTHER)
    for device, (pod, (tolerations, _)) in enumerate(PODS.items()):
        admin.pod(pod, device=shapes.device_name(device), node=OTHER, tolerations=tolerations, template=True)
    for device, pod in enumerate(PODS):
        assert admin.scheduled(pod) == shapes.device_name(device)

    began = datetime.now(UTC)
    alerts = [firing(OTHER, device, "hbm", began.isoformat()) for device in range(len(PODS))]
    assert pipeline.notify(*alerts).status == 200
    rules = dict(zip(PODS, (tainted(admin, device, "hbm") for device in range(len(PODS))), strict=True))
    print(f"alert: {writes(control_plane, rules['tolerates-nothing'])[0] - began} from its arrival to the rule")
    faulty = len(PODS)
    pipeline.driver.set_components(faulty, "hbm\n")
    rule = tainted(admin, faulty, "hbm")
    for pod, (_, seconds) in PODS.items():
        if seconds is not None:
            ends_after(control_plane, pod, rules[pod], seconds)

    at = ends_after(control_plane, "saves-its-state", rule, SECONDS)
    has_its_grace(admin, "saves-its-state", at)
    admin.finish_deletion("saves-its-state")

    guides_pod(admin, "made-again")
    lived = eviction(control_plane, "made-again") - moment(
        admin.get("Pod", "made-again")["metadata"]["creationTimestamp"]
    )
    print(f"made-again: evicted within {lived} of its creation")
    assert lived < timedelta(seconds=SECONDS)
    for pod, (_, seconds) in PODS.items():
        assert seconds is not None or stays(admin, pod)


WRITTEN_AGAIN, LOWERED, REMOVED = range(3)
DISTURBED = {WRITTEN_AGAIN: "rule-written-again", LOWERED: "rule-lowered-and-raised", REMOVED: "rule-removed-and-made"}


def test_what_starts_the_clock_anew(pipeline: Pipeline, admin: Admin, control_plane: ControlPlane) -> None:
    """The same content written again changes no clock; a raise and a rule made again start it from its beginning.

    Three pods tolerate the fault for 5 s, and in the second of these somebody meddles with their rules.
    """
    for device, pod in DISTURBED.items():
        admin.pod(pod, device=shapes.device_name(device), tolerations=[toleration(SECONDS)], template=True)
    for device, pod in DISTURBED.items():
        assert admin.scheduled(pod) == shapes.device_name(device)
    for device in DISTURBED:
        pipeline.driver.set_components(device, "hbm\n")
    before = {device: tainted(admin, device, "hbm") for device in DISTURBED}
    # Long enough for a new `timeAdded` to be another one.
    passed(max(taint_added(rule) for rule in before.values()) + timedelta(seconds=1))

    writes_again(pipeline, admin, before[WRITTEN_AGAIN])
    name = before[LOWERED]["metadata"]["name"]
    admin.patch("DeviceTaintRule", name, {"spec": {"taint": {"effect": "NoSchedule"}}})
    lowered = datetime.now(UTC)
    admin.delete("DeviceTaintRule", before[REMOVED]["metadata"]["name"])
    raised = wait_until(lambda: raised_again(admin, before[LOWERED]), timeout=20, what="the lowered rule to be raised")
    print(f"raised {writes(control_plane, raised)[-1] - lowered} after it was lowered")

    ends_after(control_plane, DISTURBED[WRITTEN_AGAIN], before[WRITTEN_AGAIN], SECONDS)
    assert taint_added(rule_of(admin, WRITTEN_AGAIN, "hbm") or {}) == taint_added(before[WRITTEN_AGAIN])
    # It was made, and has taken in the newer firing.
    assert len(writes(control_plane, before[WRITTEN_AGAIN])) == 2

    assert taint_added(raised) > taint_added(before[LOWERED])
    ends_after(control_plane, DISTURBED[LOWERED], raised, SECONDS)

    made_again = tainted(admin, REMOVED, "hbm")
    print(f"{writes(control_plane, made_again)[0] - lowered} from the removal of a rule to its return")
    assert stays(admin, DISTURBED[REMOVED])
    assert taint_added(made_again) > taint_added(before[REMOVED])
    ends_after(control_plane, DISTURBED[REMOVED], made_again, SECONDS)
    called_off = [
        event["involvedObject"]["name"] for event in admin.items("Event") if event["message"] == "Cancelling deletion"
    ]
    assert set(called_off) >= {DISTURBED[LOWERED], DISTURBED[REMOVED]}
    assert DISTURBED[WRITTEN_AGAIN] not in called_off


def raised_again(admin: Admin, before: Rule) -> Rule | None:
    """The rule, once it evicts again after it has been lowered."""
    now = admin.get("DeviceTaintRule", before["metadata"]["name"])
    changed = now["metadata"]["generation"] > before["metadata"]["generation"]
    return now if changed and now["spec"]["taint"]["effect"] == "NoExecute" else None


def writes_again(pipeline: Pipeline, admin: Admin, rule: Rule) -> None:
    """Say the alert again, and a newer one, and have somebody patch and apply what is there already."""
    told = rule["metadata"]["annotations"]["neuron-remediator/last-fired"]
    for started, outcome in ((told, "unchanged"), (datetime.now(UTC).isoformat(), "applied")):
        before = pipeline.outcome(outcome)
        assert pipeline.notify(firing(NODE, WRITTEN_AGAIN, "hbm", started)).status == 200
        assert pipeline.outcome(outcome) == before + 1
    name, taint = rule["metadata"]["name"], dict(rule["spec"]["taint"])
    del taint["timeAdded"]
    spec = {"spec": rule["spec"] | {"taint": taint}}
    admin.patch("DeviceTaintRule", name, spec)
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule"}
    admin.apply(kind | {"metadata": {"name": name}} | spec, manager="kubectl")
