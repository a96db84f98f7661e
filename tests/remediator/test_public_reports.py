"""Symptoms people met in neighbouring projects, each as a test of what is right here, over real HTTP.

Where a report asks for another mechanism, the end state is tested and the docstring says so.

Every report about the webhook (2 to 12), delivery (14 to 28), order (30 to 36), resolved alerts (38 to 54) and the
remediation itself (84 to 104) has a number, and this is where the test of each is:

case 2: tests/remediator/test_public_reports.py::test_white_space_behind_the_body, test_a_byte_order_mark
case 4: tests/remediator/test_public_reports.py::test_truncated_alerts_are_counted_and_said
case 6: tests/remediator/test_public_reports.py::test_only_an_alerts_own_status_counts
case 8: tests/remediator/test_public_reports.py::test_a_body_that_is_anything_at_all
case 10: tests/remediator/test_public_reports.py::test_empty_and_unknown_fields
case 12: tests/remediator/test_public_reports.py::test_empty_and_unknown_fields
case 14: tests/remediator/test_public_reports.py::test_two_hundred_posts_of_one_alert_are_one_write
case 16: tests/remediator/test_public_reports.py::test_a_sender_that_never_sends_the_body_is_answered_and_let_go,
    test_a_sender_that_drips_the_body_is_answered_in_the_same_time
case 18: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 20: tests/stories/test_resolved_is_not_clean.py::test_a_clear_needs_no_resolved
case 22: tests/remediator/test_public_reports.py::test_the_group_key_is_no_identity
case 24: tests/stories/test_resolved_is_not_clean.py::test_the_second_fault_of_a_node_does_not_wait_for_a_group_interval
case 26: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 28: tests/stories/test_stories.py::test_s5_a_remediator_that_was_away_catches_up
    (away for 20 s and not for 2 min: Alertmanager asks every second for as long as it takes; nothing else is asked)
case 30: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 32: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 34: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 36: tests/storms/test_copies.py::test_five_copies_of_each_notification_are_one_rule
case 38: tests/stories/test_public_reports.py::test_a_page_that_stands_still_clears_nothing,
    tests/exporter/test_public_reports.py::test_no_sample_has_a_timestamp
case 40: tests/stories/test_resolved_is_not_clean.py::test_a_restarted_prometheus_changes_nothing
case 42: tests/stories/test_resolved_is_not_clean.py::test_a_clear_needs_no_resolved
case 44: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 46: tests/remediator/test_public_reports.py::test_sequences_that_must_end_in_one_unbroken_record
case 48: tests/stories/test_resolved_is_not_clean.py::test_a_renamed_rule_leaves_no_gap
case 50: tests/stories/test_resolved_is_not_clean.py::test_a_target_that_left_discovery_clears_nothing
    (the taint stays; the alert for people about records without a reading comes with the other watchdogs)
case 52: tests/stories/test_stories.py::test_s4_silence_changes_nothing
case 54: tests/remediator/test_webhook.py::test_no_passing_of_time_clears,
    tests/stories/test_stories.py::test_s3_a_latched_fault_outlives_clean_readings_and_ends_with_its_node
case 84: tests/remediator/test_public_reports.py::test_a_clear_under_way_does_not_cancel_a_fresh_fault
case 86: tests/stories/test_resolved_is_not_clean.py::test_a_clear_needs_no_resolved
    (no alert of the fault comes any more; what clears is the reading, and the runbooks say why one does not)
case 88: tests/stories/test_public_reports.py::test_other_hands_in_the_cluster,
    tests/stories/test_stories.py::test_s5_a_remediator_that_was_away_catches_up
case 90: tests/storms/test_mass_failure.py
    ::test_a_lifted_budget_raises_by_fresh_firings_alone_and_only_what_is_still_there
case 92: tests/storms/test_mass_failure.py
    ::test_a_mass_failure_stays_within_the_budget_and_leaves_no_trace_when_it_ends
case 94: tests/stories/test_public_reports.py::test_other_hands_in_the_cluster
case 96: tests/stories/test_public_reports.py::test_other_hands_in_the_cluster,
    tests/remediator/test_decide.py::test_a_record_of_a_fault_that_the_table_does_not_have_is_left_alone
case 98: tests/stories/test_public_reports.py::test_an_outage_of_the_source_and_a_past_of_errors_taint_nothing
case 100: tests/stories/test_public_reports.py::test_an_outage_of_the_source_and_a_past_of_errors_taint_nothing
case 102: tests/stories/test_stories.py::test_s6_every_fault_ends_as_exactly_its_taint
case 104: tests/stories/test_public_reports.py::test_other_hands_in_the_cluster
"""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.remediator.conftest import MakeService, Service, half_open
from tests.remediator.fakes import eventually
from tests.remediator.samples import NOW, STARTED, Json, alert_json, body, body_json

if TYPE_CHECKING:
    from remediator.records import Record

NUMBERS = {*range(2, 55, 2), *range(84, 105, 2)}
"""The reports of the groups that the table above is about."""


def test_the_test_of_each_report_is_where_the_table_says() -> None:
    root = Path(__file__).parents[2]
    cases = re.split(r"^case (\d+): ", __doc__ or "", flags=re.MULTILINE)[1:]
    assert sorted(map(int, cases[::2])) == sorted(NUMBERS)
    for number, where in zip(cases[::2], cases[1::2], strict=True):
        file, names = "", re.findall(r"tests/\w+/\w+\.py|test_\w+(?!\.py)\b", where)
        for name in names:
            if name.endswith(".py"):
                file = (root / name).read_text(encoding="utf-8")
            else:
                assert f"def {name}(" in file, f"case {number}: no test {name}"
        assert len(names) >= 2, f"case {number} names no test"


# Public reports: the body


@pytest.mark.parametrize("tail", ["\n", "\r\n  "])
async def test_white_space_behind_the_body(service: Service, tail: str) -> None:
    """Body ends with a newline and a strict consumer called it invalid JSON (case 2: alertmanager#2418)."""
    assert (await service.send(json.dumps(body_json(alert_json())).encode() + tail.encode())).status == 200
    assert service.record() is not None


async def test_a_byte_order_mark(service: Service) -> None:
    """No JSON begins with one (case 2: alertmanager#2418)."""
    answer = await service.send(b"\xef\xbb\xbf" + body(alert_json()))

    assert answer.status == 400
    assert service.counts("notifications", "result") == {"malformed": 1}
    assert service.backend.writes == []


async def test_truncated_alerts_are_counted_and_said(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """With max_alerts the tail of the group is dropped, yet counted as notified (case 4: alertmanager#3396, PR 2274).

    What was dropped comes by the alert that names every fault without a record, so nothing is fetched here.
    """
    assert await service.post(alert_json(), alert_json(device="4"), truncatedAlerts=3) == 200

    assert len(service.backend.writes) == 2
    assert service.metrics.registry.get_sample_value("neuron_remediator_truncated_alerts_total") == 3
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "truncated" in said.getMessage()


@pytest.mark.parametrize("group_status", ["firing", "resolved"])
async def test_only_an_alerts_own_status_counts(service: Service, group_status: str) -> None:
    """A group holds firing and resolved alerts together (case 6: alertmanager#1423, #371)."""
    assert await service.post(alert_json(status="resolved"), alert_json(device="4"), status=group_status) == 200

    assert service.record(device=3) is None
    assert service.record(device=4) is not None


@pytest.mark.parametrize(
    "given_body",
    [
        b'{"text":"hbm on n1"}',
        b"[]",
        b'"x"',
        b"null",
        b"",
        b'{"alerts":{}}',
        b'{"alerts":[null]}',
        b"\xff\xfe",
        b"[" * 100_000,
        body(alert_json(), truncatedAlerts=10**400),
    ],
)
async def test_a_body_that_is_anything_at_all(
    service: Service, given_body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A custom `payload:` makes the body anything (case 8: prometheus-operator#8527, alertmanager#2865)."""
    answer = await service.send(given_body)

    assert answer.status == 400
    assert answer.text.startswith("reading the notification: ")
    assert answer.text.count("\n") == 1
    assert service.counts("notifications", "result") == {"malformed": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].exc_info is None
    assert await service.post(alert_json()) == 200


async def test_empty_and_unknown_fields(service: Service) -> None:
    """Receivers refused a format detail, or looked for a field in another spelling.

    These are the cases 10 (alerta/prometheus-config#24) and 12 (alertmanager-zabbix-webhook PR 3).
    """
    odd = alert_json() | {"annotations": {}, "generatorURL": "", "endsat": "x", "EndsAt": 3, "more": [1]}

    assert await service.post(odd, commonLabels={}, groupLabels={}, Version=9) == 200
    assert service.record() is not None


# Public reports: delivery, repeats, order


async def test_two_hundred_posts_of_one_alert_are_one_write(service: Service) -> None:
    """Receiver down for ten minutes: some 200 posts of the same alert (case 14: alertmanager#2286)."""
    eight = asyncio.Semaphore(8)

    async def post() -> int:
        async with eight:
            return await service.post(alert_json())

    statuses = await asyncio.gather(*(post() for _ in range(200)))

    assert set(statuses) == {200}
    assert [step for step, _ in service.backend.writes] == ["create"]
    assert service.counts("alerts", "outcome") == {"applied": 1, "unchanged": 199}
    assert service.count("actions", action="create", backend="memory", result="conflict") == 0
    assert len(service.backend.memory._records) == 1


async def test_a_sender_whose_clock_is_ahead_repeats_one_spell(service: Service) -> None:
    """Repeats are one spell, and the first start that is not from the future begins the next."""
    ahead = alert_json(fault="link_efa", started=NOW + timedelta(minutes=1))
    for _ in range(200):
        assert await service.post(ahead) == 200
        service.clock.now += timedelta(milliseconds=50)

    assert [step for step, _ in service.backend.writes] == ["create"]
    record = service.record("link_efa")
    assert record is not None
    assert record.last_fired == NOW + timedelta(minutes=1)
    service.clock.now = NOW + timedelta(seconds=30)
    assert await service.post(alert_json(fault="link_efa", started=service.clock.now)) == 200
    assert await service.post(alert_json(fault="link_efa", remediation="clear", episode=record.episode)) == 200
    assert service.record("link_efa") is not None, "a clear of the earlier spell has removed the later one"


LATER = STARTED + timedelta(seconds=3)
FIRE, RESOLVE = alert_json(), alert_json(status="resolved")
SEQUENCES = [
    pytest.param([RESOLVE] * 50, [], id="case 18, alertmanager#1494: resolved fifty times without a firing"),
    pytest.param([RESOLVE], [], id="case 46, robusta#345: resolved of a device that never fired adds nothing"),
    pytest.param([FIRE, RESOLVE], ["create"], id="case 46, robusta#345: resolved of a device that has a record"),
    pytest.param(
        [alert_json(started=LATER), RESOLVE, RESOLVE],
        ["create"],
        id="case 26, alertmanager#3265, #815, #2151: an old resolved is sent again, hours later",
    ),
    pytest.param(
        [FIRE, alert_json(status="resolved") | {"endsAt": alert_json()["startsAt"]}],
        ["create"],
        id="case 44, VictoriaMetrics#483: resolved with endsAt equal to startsAt",
    ),
    pytest.param(
        [FIRE, RESOLVE, FIRE, RESOLVE],
        ["create"],
        id="case 30, alertmanager#2447, #4008: firing and resolved by turns from two peers",
    ),
    pytest.param(
        [FIRE, RESOLVE, RESOLVE, FIRE] * 10,
        ["create"],
        id="case 34, sylva-core!2516: one peer goes on firing, another, which hears of nothing, says resolved",
    ),
    pytest.param(
        [RESOLVE, FIRE, RESOLVE],
        ["create"],
        id="case 32, alertmanager PR 3419, #4064, #2628: resolved, firing, resolved around a reload",
    ),
    pytest.param(
        [alert_json(alertname="Old"), alert_json(status="resolved", alertname="Old"), alert_json(alertname="New")],
        ["create"],
        id="case 48, alertmanager#2770: the rule is renamed while the device is faulty",
    ),
    pytest.param(
        [alert_json(value=f"3.{number}") for number in range(100)],
        ["create"],
        id="case 56, alertmanager#1546, prometheus#4836: a value in the labels makes a new alert each time",
    ),
    pytest.param(
        [FIRE, RESOLVE, alert_json(started=LATER)],
        ["create", "update"],
        id="case 52, alertmanager#1597, #1607: the exporter restarts in the middle of a fault",
    ),
]


@pytest.mark.parametrize(("sequence", "writes"), SEQUENCES)
async def test_sequences_that_must_end_in_one_unbroken_record(
    service: Service, sequence: list[Json], writes: list[str]
) -> None:
    """Each is a symptom met elsewhere; the record is never deleted, so its taint keeps its time."""
    for one in sequence:
        assert await service.post(one) == 200

    assert [step for step, _ in service.backend.writes] == writes
    assert len(list(service.backend.records())) == (1 if writes else 0)


async def test_the_group_key_is_no_identity(service: Service) -> None:
    """Equal routes share one key, and one alert comes under two (case 22: alertmanager#3808, #3564)."""
    await service.post(alert_json(device="1"), groupKey="same")
    await service.post(alert_json(device="2"), groupKey="same")
    await service.post(alert_json(device="2"), groupKey="another")

    assert [key.device for _, key in service.backend.writes] == [1, 2]


async def test_a_clear_under_way_does_not_cancel_a_fresh_fault(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel flag of an old recovery cancels a fresh fault (case 84: NVSentinel#1451)."""
    deleting, goes_on, delete = asyncio.Event(), asyncio.Event(), service.backend.delete

    async def slow(record: Record) -> None:
        deleting.set()
        await goes_on.wait()
        await delete(record)

    monkeypatch.setattr(service.backend, "delete", slow)
    assert await service.post(alert_json(fault="link_efa")) == 200
    first = service.record("link_efa")
    assert first is not None
    clear = alert_json(fault="link_efa", remediation="clear", episode=first.episode)

    clearing = asyncio.create_task(service.post(clear))
    await deleting.wait()
    firing = asyncio.create_task(service.post(alert_json(fault="link_efa", started=LATER)))
    assert await service.post(alert_json(device="4")) == 200, "what comes after it is answered, so it has come"
    assert not firing.done(), "one record has one writer at a time"
    goes_on.set()

    assert [await clearing, await firing] == [200, 200]
    assert await service.post(clear) == 200, "the old clear comes once more"
    fresh = service.record("link_efa")
    assert fresh is not None
    assert fresh.last_fired == LATER
    assert service.counts("alerts", "outcome") == {"applied": 3, "cleared": 1, "ignored_stale_episode": 1}


# Public reports: senders that stall


async def test_a_sender_that_never_sends_the_body_is_answered_and_let_go(make_service: MakeService) -> None:
    """A webhook hung for 110 s and nobody saw which (case 16: ankhmorpork PR 1451)."""
    service = await make_service(body_seconds=0.3)
    reader, writer = await half_open(service)
    assert await service.post(alert_json()) == 200

    status = await asyncio.wait_for(reader.readline(), 5)

    assert status == b"HTTP/1.1 408 Request Timeout\r\n"
    assert service.count("notifications", result="timeout") == 1
    assert b"did not arrive" in await asyncio.wait_for(reader.read(), 5), "the connection is closed"
    writer.close()
    await writer.wait_closed()


async def test_a_sender_that_drips_the_body_is_answered_in_the_same_time(make_service: MakeService) -> None:
    """The limit is on the whole body: a byte now and then does not extend it (case 16: ankhmorpork PR 1451)."""
    service = await make_service(body_seconds=0.3)
    reader, writer = await half_open(service)
    status = asyncio.ensure_future(reader.readline())

    def drip() -> bool:
        writer.write(b"{")
        return status.done()

    await eventually(drip, what="the answer to a dripping body")

    assert status.result() == b"HTTP/1.1 408 Request Timeout\r\n"
    assert await service.post(alert_json()) == 200
    assert b"did not arrive" in await asyncio.wait_for(reader.read(), 5), "the connection is closed"
    writer.close()
    await writer.wait_closed()


async def test_a_sender_that_hangs_up_leaves_no_trace(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        _, writer = await half_open(service)
        writer.write(b'{"version":')
        writer.close()
        await writer.wait_closed()

    assert await service.post(alert_json()) == 200
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []
