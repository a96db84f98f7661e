"""A whole fleet reports every device unreachable within seconds, as after a bad rollout of an agent.

What must hold is looked at in the API server's own order of changes, not now and then: never more devices disturbed
than the budget allows, and what it holds back comes and goes without ever having disturbed anybody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import UNREACHABLE, WITHHELD
from remediator.records import Key
from remediator.rule_records import object_name
from tests.stack.binaries import require
from tests.stack.fleet import Fleet
from tests.stack.many_exporters import DEVICES
from tests.stack.pipeline import LIFTED
from tests.stack.process import wait_until
from tests.stack.rule_watch import RuleWatch
from tests.storms.storm import Written, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

pytestmark = pytest.mark.stack

NODES = 16
ALL = NODES * DEVICES
UNAVAILABLE, NEW = ALL * 20 // 100, 10
"""The two limits of the budget that ships, and the smaller one binds."""

HELD_BACK = ALL - NEW


def rule_of(node: str, device: int) -> str:
    """The name of the rule that a device is to get."""
    return object_name(Key(node, device, UNREACHABLE.name))


def everything_fails(fleet: Fleet, nodes: Sequence[str], watch: RuleWatch) -> float:
    """Lose every device of every node; returns how long it took until there was a rule for each."""
    began = time.monotonic()
    for node in nodes:
        fleet.exporters.lose(node)
    assert time.monotonic() - began < 5
    wait_until(lambda: len(watch.standing()) == ALL, timeout=60, what=f"{ALL} rules")
    return time.monotonic() - began


def of_state(watch: RuleWatch, state: str) -> set[str]:
    """The names of the rules that are in that state."""
    return {name for name, one in watch.standing().items() if one.state == state}


def pods_on_each(admin: Admin, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Put a pod on the first device of each node; returns each with the name of the rule its device is to get."""
    for number, node in enumerate(nodes):
        admin.pod(f"train-{number}", device="neuron-device-0", node=node)
    found = {}
    for number, node in enumerate(nodes):
        admin.scheduled(f"train-{number}")
        found[rule_of(node, 0)] = admin.get("Pod", f"train-{number}")
    return found


def undisturbed(admin: Admin, pod: dict[str, Any]) -> bool:
    """Whether that very pod is there and nobody has asked for its end."""
    now = admin.find("Pod", pod["metadata"]["name"])
    return now is not None and (now["metadata"]["uid"], now["metadata"].get("deletionTimestamp")) == (
        pod["metadata"]["uid"],
        None,
    )


def the_page(fleet: Fleet) -> dict[str, Any]:
    """Wait until people are told of what is withheld; returns the one alert of it."""

    def firing() -> list[dict[str, Any]]:
        return [
            alert
            for alert in fleet.prometheus.alerts()
            if alert["labels"]["alertname"] == WITHHELD and alert["state"] == "firing"
        ]

    (alert,) = wait_until(firing, timeout=60, what=f"{WITHHELD} to fire")
    return alert


def receivers(fleet: Fleet, alertname: str) -> list[str]:
    """Who is told of that alert, by Alertmanager's own word."""
    alerts = [one for one in fleet.alertmanager.alerts() if one["labels"]["alertname"] == alertname]
    return sorted(receiver["name"] for alert in alerts for receiver in alert["receivers"])


def highest(fleet: Fleet, budget: str) -> float:
    """The most that the remediator has ever said to have used of that limit."""
    ((_, value),) = fleet.prometheus.query(f'max_over_time(neuron_remediator_budget_used{{budget="{budget}"}}[1h])')
    return value


def test_a_mass_failure_stays_within_the_budget_and_leaves_no_trace_when_it_ends(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    """Remediation storm after a mass failure (case 92: node-healthcheck-operator PR 378)."""
    require("prometheus", "alertmanager")
    nodes = fleet(NODES)
    pods = pods_on_each(admin, nodes)
    written = Written(control_plane)
    with RuleWatch(control_plane) as watch, Fleet(tmp_path, control_plane, nodes) as running:
        took = everything_fails(running, nodes, watch)
        acted, held_back = of_state(watch, "active"), of_state(watch, "withheld")
        assert (len(acted), len(held_back)) == (NEW, HELD_BACK)
        limits = [running.remediator.value("neuron_remediator_budget_limit", budget=name) for name in LIMITS]
        assert limits == [UNAVAILABLE, NEW]

        page = the_page(running)
        assert page["labels"] == {"alertname": WITHHELD, "severity": "critical"}
        assert page["annotations"]["description"].startswith(f"Records withheld: {HELD_BACK}. ")
        wait_until(lambda: receivers(running, WITHHELD) == ["humans"], timeout=20, what="people to be told, once")
        stay = {rule: pod for rule, pod in pods.items() if rule in held_back}
        for rule in pods.keys() - stay.keys():
            admin.evicted(pods[rule]["metadata"]["name"])
        assert len(stay) >= NODES - NEW

        ends = time.monotonic()
        for node in nodes:
            running.exporters.lose(node, ())
        wait_until(lambda: not watch.standing(), timeout=90, what="every rule to vanish")
        ended = time.monotonic() - ends
        still = 'ALERTS{alertname=~"NeuronDevice.*"}'
        wait_until(lambda: not running.prometheus.query(still), timeout=30, what="every alert to end")

        assert [pod for pod in stay.values() if not undisturbed(admin, pod)] == []
        assert max(watch.disturbed) == NEW
        assert [highest(running, name) for name in LIMITS] == [NEW, NEW]
        assert running.remediator.value("neuron_remediator_alerts_total", outcome="cleared") == ALL
    # No flapping: each rule came once and went once. Its spec was never changed, and what is withheld had no effect.
    came_and_went = [(one.kind, one.name) for one in watch.seen if one.kind != "MODIFIED"]
    assert sorted(came_and_went) == sorted((kind, name) for kind in ("ADDED", "DELETED") for name in acted | held_back)
    assert {one.rule["metadata"]["generation"] for one in watch.seen} == {1}
    assert {(one.state, one.effect) for one in watch.seen if one.name in held_back} == {("withheld", "None")}
    writes = written.up_to_now(admin)
    assert {name: writes["create", name] + writes["delete", name] for _, name in writes} == dict.fromkeys(
        acted | held_back, 2
    )
    # NotHeld is a newer firing of the same fault: it is taken in, as an episode, once.
    assert max(writes["patch", name] for name in held_back) <= 1
    shown("mass failure", rules_after=took, gone_after=ended, pods_evicted=len(pods) - len(stay))


LIMITS = ("unavailable", "new")


def test_a_lifted_budget_raises_by_fresh_firings_alone_and_only_what_is_still_there(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    """After re-arming the breaker, days-old events were replayed (case 90: NVSentinel#450).

    The breaker here is the budget: with no room left, further faults are withheld. Twenty of them read clean before it
    is lifted, and Alertmanager is away while it is: without a firing nothing rises, and with one what is there does.
    Alertmanager repeats every 15 s here, instead of 5 minutes, so that the test need not wait for it.
    """
    require("prometheus", "alertmanager")
    nodes = fleet(NODES)
    with (
        RuleWatch(control_plane) as watch,
        Fleet(tmp_path, control_plane, nodes, repeat_interval="15s") as running,
    ):
        everything_fails(running, nodes, watch)
        over = sorted(of_state(watch, "withheld"))[:20]
        for node in nodes:
            running.exporters.lose(node, [device for device in range(DEVICES) if rule_of(node, device) not in over])
        wait_until(lambda: len(watch.standing()) == ALL - len(over), timeout=60, what="those that are over to vanish")

        running.alertmanager.stop()
        acted, lifted_at = of_state(watch, "active"), len(watch.seen)
        running.restart_remediator(*LIFTED)
        age = 'time() - process_start_time_seconds{job="neuron-remediator"}'
        alone = f"{age} > 8 and on () neuron_remediator_leader == 1"
        wait_until(lambda: running.prometheus.query(alone), timeout=40, what="8 s without a firing")
        assert running.remediator.value("neuron_remediator_budget_limit", budget="new") == float("inf")
        assert running.remediator.value("neuron_remediator_notifications_total", result="accepted") == 0
        assert {one.name for one in watch.seen[lifted_at:] if one.effect != "None"} <= acted
        assert len(of_state(watch, "withheld")) == ALL - len(over) - NEW

        began = time.monotonic()
        running.alertmanager.start()
        wait_until(lambda: len(of_state(watch, "active")) == ALL - len(over), timeout=60, what="the others to rise")
        shown("lifted budget", all_raised_after=time.monotonic() - began)
        # Each was raised by a firing, and by nothing else.
        applied = running.remediator.value("neuron_remediator_alerts_total", outcome="applied")
        raised = {one.name for one in watch.seen[lifted_at:] if one.effect != "None" and one.kind != "DELETED"}
        assert applied is not None
        assert applied >= ALL - len(over) - NEW
        assert raised & set(over) == set()
        assert set(watch.standing()) & set(over) == set()
    gone = [(one.kind, one.effect) for one in watch.seen if one.name in over and one.kind != "MODIFIED"]
    assert sorted(set(gone)) == [("ADDED", "None"), ("DELETED", "None")]
