"""Symptoms met in neighbouring projects, tried on the real Prometheus and Alertmanager.

Each docstring names the symptom. Where its report asks for another mechanism than this project's, the end state is
what is tested. The remediator keeps its records in memory here: what Kubernetes does is the other stories' subject.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from alerts.faults import CLEARED, FAULTS, HEALTHY
from tests.stack.binaries import require
from tests.stack.pipeline import RULES, Pipeline
from tests.stories.watching import becomes, ever, fires, read_clean_for, record_of, records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.stack

LINK = FAULTS["link_efa"]
CLEARS_WITHIN = 60.0


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Start a node and everything that watches over it, without a cluster."""
    require("prometheus", "alertmanager")
    with Pipeline(tmp_path, node="n1") as running:
        becomes(lambda: running.prometheus.query("count(neuron_device_fault)"), "the first scrape")
        yield running


def held(pipeline: Pipeline, device: int) -> dict[str, str]:
    """Wait for the record of the link fault of that device."""
    becomes(lambda: records(pipeline, device, LINK.name), f"a record of {LINK.name} on device {device}")
    return record_of(pipeline, device, LINK.name)


def gone(pipeline: Pipeline, device: int) -> None:
    """Wait until the record of the link fault of that device is cleared."""
    becomes(
        lambda: not records(pipeline, device, LINK.name),
        f"the record of {LINK.name} on device {device} to clear",
        within=CLEARS_WITHIN,
    )


def silent(pipeline: Pipeline, device: int) -> bool:
    """Whether the link alert of that device does not fire."""
    return not fires(pipeline, LINK.alert, device)


def resolved_in_alertmanager(pipeline: Pipeline, device: int) -> bool:
    """Whether Alertmanager holds the link alert of that device no more."""
    return not any(
        alert["labels"]["alertname"] == LINK.alert and alert["labels"]["device"] == str(device)
        for alert in pipeline.alertmanager.alerts()
    )


def test_the_second_fault_of_a_node_does_not_wait_for_a_group_interval(pipeline: Pipeline) -> None:
    """The second alert of a group waits a full group_interval: here each alert is a group of its own."""
    for device in (0, 1):
        pipeline.driver.set_components(device, "link_efa\n")
        becomes(partial(fires, pipeline, LINK.alert, device), f"the alert of device {device}")
        becomes(partial(records, pipeline, device, LINK.name), f"record {device}", within=2)


def test_a_clear_needs_no_resolved(pipeline: Pipeline) -> None:
    """An alert that resolves while it is silenced, or while Alertmanager is away, is never told: the reading clears."""
    for device in (0, 1):
        pipeline.driver.set_components(device, "link_efa\n")
        held(pipeline, device)
    pipeline.alertmanager.silence({"alertname": LINK.alert, "device": "1"})
    pipeline.driver.show(1, HEALTHY)
    becomes(partial(silent, pipeline, 1), "the silenced alert to resolve")
    becomes(partial(resolved_in_alertmanager, pipeline, 1), "Alertmanager to know that it resolved")
    pipeline.alertmanager.stop()
    pipeline.driver.show(0, HEALTHY)
    becomes(partial(silent, pipeline, 0), "the other alert to resolve")
    pipeline.alertmanager.start()

    gone(pipeline, 0)
    gone(pipeline, 1)
    assert pipeline.outcome("cleared") == 2


def test_a_restarted_prometheus_changes_nothing(pipeline: Pipeline) -> None:
    """A restart puts alerts with `for` back to pending and lets them resolve: fault rules have none."""
    pipeline.driver.set_components(0, "link_efa\n")
    before = held(pipeline, 0)

    pipeline.prometheus.kill()
    pipeline.prometheus.start()
    becomes(lambda: fires(pipeline, LINK.alert, 0), "the alert to fire again")

    after = record_of(pipeline, 0, LINK.name)
    assert {**after, "episode": ""} == {**before, "episode": ""}
    assert pipeline.outcome("cleared") == 0
    pipeline.driver.show(0, HEALTHY)
    gone(pipeline, 0)


def test_a_renamed_rule_leaves_no_gap(pipeline: Pipeline, tmp_path: Path) -> None:
    """The rule is renamed while the fault is there: the old name resolves, the new one fires, one record stands."""
    pipeline.driver.set_components(0, "link_efa\n")
    held(pipeline, 0)
    renamed = tmp_path / "renamed.rules.yaml"
    renamed.write_text(RULES.read_text(encoding="utf-8").replace(LINK.alert, "NeuronDeviceRenamed"), encoding="utf-8")

    pipeline.reload_prometheus(rules=renamed)
    becomes(lambda: fires(pipeline, "NeuronDeviceRenamed", 0), "the renamed alert to fire")
    becomes(lambda: pipeline.outcome("ignored_resolved") >= 1, "the old name to resolve")

    assert len(records(pipeline, 0, LINK.name)) == 1
    assert pipeline.outcome("cleared") == 0


def test_a_target_that_left_discovery_clears_nothing(pipeline: Pipeline) -> None:
    """The exporter leaves discovery while the device is clean: no series is no evidence, and the record stays."""
    pipeline.driver.set_components(0, "link_efa\n")
    held(pipeline, 0)
    pipeline.driver.show(0, HEALTHY)
    read_clean_for(pipeline, 0, LINK.name, 5)

    pipeline.reload_prometheus(with_exporter=False)
    becomes(lambda: not pipeline.prometheus.query("neuron_device_fault"), "the series to go stale")
    # As long as it would have taken to clear, had the readings gone on.
    left = pipeline.prometheus.query("time()")[0][1]
    watched = f"vector(time()) > {left} + 40 and on () (count_over_time(neuron_remediator_leader[40s]) > 35)"
    becomes(lambda: pipeline.prometheus.query(watched), "40 s without the exporter", within=90)
    assert len(records(pipeline, 0, LINK.name)) == 1

    pipeline.reload_prometheus()
    gone(pipeline, 0)
    assert ever(pipeline, CLEARED)
