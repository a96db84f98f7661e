"""The remediator's page: every series is there from the first scrape, and the records on it are those that are."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from alerts.faults import FAULTS
from remediator.decide import Outcome
from remediator.records import episode_of
from tests.remediator.samples import NODE, STARTED, alert_json

if TYPE_CHECKING:
    from tests.remediator.conftest import Service

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def page(service: Service, accept: str = "") -> Series:
    """Every sample of the page, by name and labels."""
    async with service.client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.status == 200
        text = await response.text()
    parse = parse_openmetrics if accept else parse_text
    samples = [sample for family in parse(text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(series) == len(samples), "a series is there twice"
    return series


def labelled(series: Series, name: str) -> list[dict[str, str]]:
    return [dict(labels) for (found, labels), _ in series.items() if found == name]


async def test_every_counter_is_there_from_the_first_page(service: Service) -> None:
    """A counter that is born with its first increase hides that increase from `rate()`."""
    series = await page(service)
    zero = {
        "neuron_remediator_alerts_total": {(("outcome", outcome),) for outcome in Outcome},
        "neuron_remediator_notifications_total": {
            (("result", result),)
            for result in (
                "accepted",
                "malformed",
                "unauthorized",
                "too_large",
                "timeout",
                "disconnected",
                "not_ready",
                "not_leading",
                "failed",
            )
        },
        "neuron_remediator_events_total": {(("result", result),) for result in ("ok", "failed", "dropped")},
        "neuron_remediator_actions_total": {
            (("action", action), ("backend", "memory"), ("result", result))
            for action in ("create", "update", "delete")
            for result in ("ok", "conflict", "failed")
        },
        "neuron_remediator_truncated_alerts_total": {()},
        "neuron_remediator_heartbeat_timestamp_seconds": {()},
        "neuron_remediator_decide_duration_seconds_count": {()},
        "neuron_remediator_apply_duration_seconds_count": {()},
    }
    for name, expected in zero.items():
        assert {tuple(sorted(labels.items())) for labels in labelled(series, name)} == expected, name
        assert all(value == 0 for (found, _), value in series.items() if found == name), name
    assert len(labelled(series, "neuron_remediator_build_info")) == 1
    assert labelled(series, "neuron_remediator_record") == []
    assert series["neuron_remediator_leader", frozenset()] == 1


async def test_who_knows_nothing_says_nothing(service: Service) -> None:
    """A leader without records would have every fault of the cluster called not held."""
    await service.post(alert_json())
    service.cluster.waiting_for = "waiting for a list of devicetaintrules"
    series = await page(service)

    assert labelled(series, "neuron_remediator_record") == []
    assert series["neuron_remediator_leader", frozenset()] == 0


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_there_is_one_line_for_each_record(service: Service, accept: str) -> None:
    await service.post(*(alert_json(fault=fault) for fault in FAULTS))
    lines = labelled(await page(service, accept), "neuron_remediator_record")

    assert len(lines) == len(FAULTS)
    (efa,) = [line for line in lines if line["fault"] == "link_efa"]
    assert efa == {
        "node": NODE,
        "device": "3",
        "fault": "link_efa",
        "effect": "NoSchedule",
        "state": "active",
        "latched": "false",
        "episode": episode_of(STARTED),
    }
    assert {line["fault"]: line["latched"] for line in lines if line["latched"] == "true"} == {
        "hbm": "true",
        "sram": "true",
    }


async def test_a_new_spell_changes_the_line_and_a_clear_takes_it_away(service: Service) -> None:
    """The clear rule joins on `episode`: an old line beside the new one would let an old clear through."""
    later = STARTED + timedelta(seconds=3)
    await service.post(alert_json(fault="link_efa"))
    await service.post(alert_json(fault="link_efa", started=later))
    lines = labelled(await page(service), "neuron_remediator_record")
    assert [line["episode"] for line in lines] == [episode_of(later)]

    await service.post(alert_json(fault="link_efa", remediation="clear", episode=episode_of(later)))
    assert labelled(await page(service), "neuron_remediator_record") == []


async def test_durations_count_decisions_and_writes(service: Service) -> None:
    """Repeats are decided and write nothing."""
    for _ in range(3):
        await service.post(alert_json())
    series = await page(service)

    assert series["neuron_remediator_decide_duration_seconds_count", frozenset()] == 3
    assert series["neuron_remediator_apply_duration_seconds_count", frozenset()] == 1
