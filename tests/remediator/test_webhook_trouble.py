"""What cannot be done now: the sender is told to ask again, and nothing is lost, doubled or left half-done."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.remediator.conftest import Service, half_open
from tests.remediator.fakes import Hang, conflict, eventually, unavailable
from tests.remediator.samples import NODE, alert_json, body


async def test_before_the_caches_are_filled_nothing_is_answered_with_success(service: Service) -> None:
    service.cluster.waiting_for = "waiting for the first list of nodes"
    answer = await service.send(body(alert_json()))

    assert (answer.status, answer.closes) == (503, True)
    assert answer.text == "waiting for the first list of nodes\n"
    assert service.counts("notifications", "result") == {"not_ready": 1}
    service.cluster.waiting_for = None
    assert await service.post(alert_json()) == 200
    assert service.record() is not None


@pytest.mark.parametrize("trouble", [unavailable(), conflict(), RuntimeError("a bug")], ids=["down", "conflict", "bug"])
async def test_a_write_that_fails_is_asked_for_again_and_then_done(
    service: Service, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """One alert in trouble does not stop the others; once it works again, the record is there."""
    service.backend.trouble[3] = trouble
    notification = body(alert_json(device="2"), alert_json(), alert_json(device="4"))
    answer = await service.send(notification)

    assert (answer.status, answer.closes) == (503, True)
    assert sorted(key.device for _, key in service.backend.writes) == [2, 4]
    assert service.counts("alerts", "outcome") == {"applied": 2, "failed": 1}
    assert service.counts("notifications", "result") == {"failed": 1}
    (said,) = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert f"{NODE}/3/hbm" in json.dumps(vars(said), default=str)

    service.backend.trouble.clear()
    assert (await service.send(notification)).status == 200
    assert service.record() is not None
    assert service.counts("alerts", "outcome") == {"applied": 3, "failed": 1, "unchanged": 2}


async def test_a_conflict_that_ends_is_not_seen_by_the_sender(service: Service) -> None:
    service.backend.trouble[3] = conflict()
    answer = asyncio.ensure_future(service.post(alert_json()))
    await eventually(lambda: service.backend.refreshes > 0, what="a second look at the cluster")
    service.backend.trouble.clear()

    assert await answer == 200
    assert service.record() is not None
    assert service.count("actions", action="create", backend="memory", result="conflict") > 0


async def test_a_node_that_cannot_be_read_is_asked_for_again(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.cluster.failure = unavailable()
    answer = await service.send(body(alert_json()))

    assert (answer.status, answer.closes) == (503, True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    service.cluster.failure = None
    assert await service.post(alert_json()) == 200
    assert service.record() is not None


async def test_a_write_without_an_answer_is_given_up_before_the_sender_does(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write was carried out, which only a second look can tell; the next try finds it and writes nothing."""
    monkeypatch.setattr("remediator.app.ANSWER_SECONDS", 0.3)
    service.backend.trouble[3] = Hang()
    answer = await service.send(body(alert_json(), alert_json(device="4")))

    assert (answer.status, answer.closes) == (503, True)
    assert service.record(device=4) is not None
    assert service.counts("notifications", "result") == {"failed": 1}
    service.backend.trouble.clear()
    assert await service.post(alert_json()) == 200
    assert [step for step, key in service.backend.writes if key.device == 3] == ["create"]


async def test_a_sender_that_leaves_does_not_stop_the_work(service: Service) -> None:
    service.cluster.gate = asyncio.Event()
    whole = body(alert_json())
    _, writer = await half_open(service, length=len(whole))
    writer.write(whole)
    await eventually(lambda: service.cluster.asked, what="the decision to begin")
    writer.close()
    await writer.wait_closed()
    service.cluster.gate.set()

    await eventually(service.record, what="the record of a sender that has left")
