"""Symptoms people met in neighbouring projects, each as a test of what is right here, over real HTTP.

Where a report asks for another mechanism, the end state is tested and the docstring says so.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from tests.remediator.conftest import MakeService, Service, half_open
from tests.remediator.fakes import eventually
from tests.remediator.samples import NOW, STARTED, Json, alert_json, body, body_json

# Public reports: the body


@pytest.mark.parametrize("tail", ["\n", "\r\n  "])
async def test_white_space_behind_the_body(service: Service, tail: str) -> None:
    """Body ends with a newline and a strict consumer called it invalid JSON (alertmanager#2418)."""
    assert (await service.send(json.dumps(body_json(alert_json())).encode() + tail.encode())).status == 200
    assert service.record() is not None


async def test_a_byte_order_mark(service: Service) -> None:
    """No JSON begins with one (alertmanager#2418)."""
    answer = await service.send(b"\xef\xbb\xbf" + body(alert_json()))

    assert answer.status == 400
    assert service.counts("notifications", "result") == {"malformed": 1}
    assert service.backend.writes == []


async def test_truncated_alerts_are_counted_and_said(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """With max_alerts the tail of the group is dropped, yet counted as notified (alertmanager#3396, PR 2274).

    What was dropped comes by the alert that names every fault without a record, so nothing is fetched here.
    """
    assert await service.post(alert_json(), alert_json(device="4"), truncatedAlerts=3) == 200

    assert len(service.backend.writes) == 2
    assert service.metrics.registry.get_sample_value("neuron_remediator_truncated_alerts_total") == 3
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "truncated" in said.getMessage()


@pytest.mark.parametrize("group_status", ["firing", "resolved"])
async def test_only_an_alerts_own_status_counts(service: Service, group_status: str) -> None:
    """A group holds firing and resolved alerts together (alertmanager#1423, #371)."""
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
    """A custom `payload:` makes the body anything (prometheus-operator#8527, alertmanager#2865)."""
    answer = await service.send(given_body)

    assert answer.status == 400
    assert answer.text.startswith("reading the notification: ")
    assert answer.text.count("\n") == 1
    assert service.counts("notifications", "result") == {"malformed": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].exc_info is None
    assert await service.post(alert_json()) == 200


async def test_empty_and_unknown_fields(service: Service) -> None:
    """Receivers refused a format detail, or looked for a field in another case (alerta/prometheus-config#24)."""
    odd = alert_json() | {"annotations": {}, "generatorURL": "", "endsat": "x", "EndsAt": 3, "more": [1]}

    assert await service.post(odd, commonLabels={}, groupLabels={}, Version=9) == 200
    assert service.record() is not None


# Public reports: delivery, repeats, order


async def test_two_hundred_posts_of_one_alert_are_one_write(service: Service) -> None:
    """Receiver down for ten minutes: some 200 posts of the same alert (alertmanager#2286)."""
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
    pytest.param([RESOLVE] * 50, [], id="alertmanager#1494: resolved fifty times without a firing"),
    pytest.param([RESOLVE], [], id="robusta#345: resolved of a device that never fired adds nothing"),
    pytest.param([FIRE, RESOLVE], ["create"], id="robusta#345: resolved of a device that has a record"),
    pytest.param(
        [alert_json(started=LATER), RESOLVE, RESOLVE],
        ["create"],
        id="alertmanager#3265, #815, #2151: an old resolved is sent again, hours later",
    ),
    pytest.param(
        [FIRE, alert_json(status="resolved") | {"endsAt": alert_json()["startsAt"]}],
        ["create"],
        id="VictoriaMetrics#483: resolved with endsAt equal to startsAt",
    ),
    pytest.param(
        [FIRE, RESOLVE, FIRE, RESOLVE],
        ["create"],
        id="alertmanager#2447, #4008: firing and resolved by turns from two peers",
    ),
    pytest.param(
        [RESOLVE, FIRE, RESOLVE],
        ["create"],
        id="alertmanager PR 3419, #4064, #2628: resolved, firing, resolved around a reload",
    ),
    pytest.param(
        [alert_json(alertname="Old"), alert_json(status="resolved", alertname="Old"), alert_json(alertname="New")],
        ["create"],
        id="alertmanager#2770: the rule is renamed while the device is faulty",
    ),
    pytest.param(
        [alert_json(value=f"3.{number}") for number in range(100)],
        ["create"],
        id="alertmanager#1546, prometheus#4836: a value in the labels makes a new alert each time",
    ),
    pytest.param(
        [FIRE, RESOLVE, alert_json(started=LATER)],
        ["create", "update"],
        id="alertmanager#1597, #1607: the exporter restarts in the middle of a fault",
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
    """Equal routes share one key, and one alert comes under two (alertmanager#3808, #3564)."""
    await service.post(alert_json(device="1"), groupKey="same")
    await service.post(alert_json(device="2"), groupKey="same")
    await service.post(alert_json(device="2"), groupKey="another")

    assert [key.device for _, key in service.backend.writes] == [1, 2]


# Public reports: senders that stall


async def test_a_sender_that_never_sends_the_body_is_answered_and_let_go(make_service: MakeService) -> None:
    """A webhook hung for 110 s and nobody saw which (ankhmorpork PR 1451)."""
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
    """The limit is on the whole body: a byte now and then does not extend it (ankhmorpork PR 1451)."""
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
