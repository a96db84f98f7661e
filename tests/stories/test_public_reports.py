"""Symptoms met in neighbouring projects that need the real cluster, or the real way from driver file to record.

Where a report asks for another mechanism than this project's, the end state is what is tested. The table of all cases
is in `tests/remediator/test_public_reports.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import CLEARED, FAULTS, HEALTHY
from alerts.intervals import Intervals
from tests.stack import shapes
from tests.stack.binaries import require
from tests.stack.pipeline import Pipeline
from tests.stories.conftest import NODE
from tests.stories.watching import Rule, becomes, cleared, ever, read_clean_for, record_of, records, rule_of, tainted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

pytestmark = pytest.mark.stack

LINK = FAULTS["link_efa"]
OPT_OUT = "neuron-remediator/opt-out"
OUR_MARK = "app.kubernetes.io/managed-by=neuron-remediator"
README = Path(__file__).parents[2] / "README.md"


def maintenance(admin: Admin) -> dict[str, dict[str, Any]]:
    """What somebody else has put on the node and on a device of it: a taint, a note, a rule."""
    taint = {"key": "example.com/maintenance", "value": "ticket-7", "effect": "NoSchedule"}
    admin.patch("Node", NODE, {"spec": {"taints": [taint]}, "metadata": {"annotations": {"example.com/owner": "them"}}})
    rule = shapes.taint_rule("maintenance", pool=NODE, device="neuron-device-9", value="ticket-7", effect="NoSchedule")
    return {"rule": admin.create(rule), "taint": taint}


def untouched(admin: Admin, rule: dict[str, Any]) -> bool:
    """Whether that rule is there as it was made; its status is the eviction controller's."""
    now = admin.find("DeviceTaintRule", rule["metadata"]["name"])
    if now is None:
        return False
    fields = ("uid", "generation", "labels", "annotations")
    was, is_ = ({name: one["metadata"].get(name) for name in fields} for one in (rule, now))
    return (was, rule["spec"]) == (is_, now["spec"])


def shown_as_it_is(pipeline: Pipeline, admin: Admin) -> None:
    """Wait until the record series are exactly the rules that carry our mark."""

    def same() -> bool:
        told = {
            (labels["device"], labels["fault"], labels["effect"], labels["state"])
            for name, labels, _ in pipeline.remediator.metrics()
            if name == "neuron_remediator_record"
        }
        return told == set(map(_told_of, admin.items("DeviceTaintRule", selector=OUR_MARK)))

    becomes(same, "the record series to be what the cluster has")


def _told_of(rule: Rule) -> tuple[str, str, str, str]:
    marks, notes = rule["metadata"]["labels"], rule["metadata"]["annotations"]
    return (
        marks["neuron-remediator/device"],
        marks["neuron-remediator/fault"],
        rule["spec"]["taint"]["effect"],
        notes["neuron-remediator/state"],
    )


def uninstall_as_documented(control_plane: ControlPlane) -> None:
    """Run the command that README has for it, with the answer to its question."""
    commands = re.findall(r"^neuron-remediator (uninstall)(?: +#.*)?$", README.read_text(), re.MULTILINE)
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig('admin')}"
    arguments = (*commands, "--yes", "--lease.duration=1s", kubeconfig)
    done = subprocess.run(
        (sys.executable, "-m", "remediator", *arguments), check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def has_effect(admin: Admin, effect: str) -> None:
    """Wait until the memory fault of device 3 has that effect."""

    def effect_now() -> str | None:
        rule = rule_of(admin, 3, "hbm")
        return rule["spec"]["taint"]["effect"] if rule else None

    becomes(lambda: effect_now() == effect, f"effect {effect} on device 3")


def failures(pipeline: Pipeline) -> float:
    """How many writes of records have failed."""
    return sum(
        value
        for name, labels, value in pipeline.remediator.metrics()
        if name == "neuron_remediator_actions_total" and labels["result"] == "failed"
    )


def test_other_hands_in_the_cluster(pipeline: Pipeline, admin: Admin, control_plane: ControlPlane) -> None:
    """What others do to our objects is noticed, what is theirs is left alone, and ours can be told from theirs.

    case 88 (NVSentinel#753): a taint removed by hand comes back while the fault is there, and the gauge is what is.
    case 104 (NVSentinel PR 1316): marks of others stay, and a label on the Node keeps us off it.
    case 94 (node-healthcheck-operator#266): a Node that is deleted takes its latch along; nothing is tried for ever.
    case 96 (node-readiness-controller#347): after the product is gone, one documented command finds what it owned.
    """
    theirs = maintenance(admin)
    pipeline.driver.set_components(3, "hbm\n")
    rule = tainted(admin, 3, "hbm")
    shown_as_it_is(pipeline, admin)

    admin.delete("DeviceTaintRule", rule["metadata"]["name"])
    becomes(lambda: not records(pipeline, 3, "hbm"), "the series to go with the rule")
    assert tainted(admin, 3, "hbm", within=15)["metadata"]["uid"] != rule["metadata"]["uid"]
    shown_as_it_is(pipeline, admin)

    admin.patch("Node", NODE, {"metadata": {"labels": {OPT_OUT: "true"}}})
    has_effect(admin, "None")
    assert record_of(pipeline, 3, "hbm")["state"] == "opted-out"
    admin.patch("Node", NODE, {"metadata": {"labels": {OPT_OUT: None}}})
    has_effect(admin, "NoExecute")
    node = admin.get("Node", NODE)
    assert [{key: taint[key] for key in theirs["taint"]} for taint in node["spec"]["taints"]] == [theirs["taint"]]
    assert node["metadata"]["annotations"]["example.com/owner"] == "them"

    admin.delete_node(NODE)
    cleared(admin, 3, "hbm")
    shown_as_it_is(pipeline, admin)
    gone = "NeuronDeviceTaintRemoved"
    becomes(lambda: any(event["reason"] == gone for event in admin.items("Event")), "an Event of the removal")
    labels = {"alertname": "Late", "node": NODE, "device": "3", "fault": "hbm", "remediation": "taint"}
    late = {"status": "firing", "labels": labels, "startsAt": datetime.now(UTC).isoformat()}
    assert pipeline.notify(late).status == 200
    assert pipeline.outcome("ignored_unknown_node") >= 1
    assert failures(pipeline) == 0

    absent = f'absent(neuron_remediator_node{{node="{NODE}"}})'
    becomes(lambda: pipeline.prometheus.query(absent), "Prometheus to see that the Node is gone")
    admin.node(NODE)
    tainted(admin, 3, "hbm", within=20)
    pipeline.remediator.process.stop()
    owned = admin.items("DeviceTaintRule", selector=OUR_MARK)
    assert [one["metadata"]["labels"]["neuron-remediator/fault"] for one in owned] == ["hbm"]
    uninstall_as_documented(control_plane)
    assert [one["metadata"]["name"] for one in admin.rules()] == ["maintenance"]
    assert untouched(admin, theirs["rule"])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Pipeline]:
    """Start a node without a cluster whose device 2 has a past of errors; a silent heart is waited for for long."""
    require("prometheus", "alertmanager")
    pipeline = Pipeline(tmp_path, node="n1", heartbeat_timeout="90s")
    past = pipeline.driver.directory(2) / "stats/hardware/mem_ecc_uncorrected"
    for counter in (past, pipeline.driver.health_file(2, "hbm_ecc_err_count")):
        assert counter.exists()
        counter.write_text("7\n", encoding="utf-8")
    with pipeline as running:
        becomes(lambda: running.prometheus.query("count(neuron_device_fault)"), "the first scrape")
        yield running


def test_a_page_that_stands_still_clears_nothing(alone: Pipeline) -> None:
    """A frozen value is no clean reading (case 38: prometheus#17517).

    The device falls silent as it reads clean: its page goes on saying 0, scrape after scrape, with the time of the
    last reading. That is no clear for as long as it lasts, and one once the device is alive.
    """
    alone.driver.set_components(0, "link_efa\n")
    becomes(lambda: records(alone, 0, LINK.name), "a record of device 0")
    alone.driver.freeze(0)
    alone.driver.set_components(0, HEALTHY.components)
    # It would clear after the last transition is out of its window, and the hold.
    read_clean_for(alone, 0, LINK.name, Intervals().transition_window + Intervals().hold + 6)
    assert not alone.prometheus.query(f'present_over_time(ALERTS{{alertname="{CLEARED}",alertstate="firing"}}[5m])')
    assert len(records(alone, 0, LINK.name)) == 1

    alone.driver.thaw(0)
    becomes(lambda: not records(alone, 0, LINK.name), "the record to clear", within=60)


def test_an_outage_of_the_source_and_a_past_of_errors_taint_nothing(alone: Pipeline) -> None:
    """Neither the silence of the source nor what it counted before is a fault of today.

    case 98 (eks-node-monitoring-agent#266): the source is gone and comes back with clean readings. It says so, for as
    long as it lasts, and no device is tainted for it.
    case 100 (eks-node-monitoring-agent PR 261): counters above zero at the first reading are history.
    """
    counted = 'neuron_device_ecc_errors{device="2",memory="hbm",kind="uncorrectable"} == 7'
    becomes(lambda: alone.prometheus.query(counted), "the past to be exported")
    read_clean_for(alone, 2, "hbm", 3)

    alone.driver.unload_module()
    down = "count_over_time((neuron_source_up == 0)[10s:1s]) >= 8"
    becomes(lambda: alone.prometheus.query(down), "the source to be down for a while")
    alone.driver.load_module()
    becomes(lambda: alone.prometheus.query("neuron_source_up == 1"), "the source to be back")
    read_clean_for(alone, 5, "device_unreachable", 5)

    fired = [fault.alert for fault in FAULTS.values() if ever(alone, fault.alert)]
    assert fired == []
    assert [name for name, _, _ in alone.remediator.metrics() if name == "neuron_remediator_record"] == []
