"""Writes: the budget is reserved before them, they end with leadership, and each leaves its traces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from alerts.faults import Effect
from remediator.budget import LANDED_BY, Limit, Limits
from remediator.errors import Refusal, UnavailableError
from remediator.records import State
from remediator.traces import CREATE, DELETE, REMOVED, UPDATE, VOID
from tests.remediator.fakes import Hang, conflict, eventually, unavailable
from tests.remediator.samples import NODE, NOW, STARTED, alert_json, body, node, record

if TYPE_CHECKING:
    from remediator.records import Key, Record
    from tests.remediator.conftest import MakeService, Service

ONE = Limits(max_unavailable=1, max_new=None)


def held(service: Service) -> Record:
    (found,) = service.backend.records()
    return found


def effects(service: Service) -> dict[int, Effect]:
    return {record.key.device: record.taint.effect for record in service.backend.records()}


async def test_of_two_at_once_one_finds_room(make_service: MakeService) -> None:
    """No answer has come for either when the second is decided."""
    service = await make_service(limits=ONE)

    assert await service.post(*(alert_json(device=str(device)) for device in range(8))) == 200

    assert sorted(effects(service).values(), key=lambda effect: effect.rank) == [Effect.NONE] * 7 + [Effect.NO_EXECUTE]
    assert service.counts("alerts", "outcome") == {"applied": 1, "withheld": 7}
    assert {record.state for record in service.backend.records()} == {State.ACTIVE, State.WITHHELD}


async def test_a_write_whose_answer_is_lost_keeps_its_place_until_it_is_repeated(make_service: MakeService) -> None:
    service = await make_service(limits=ONE)
    service.backend.trouble = {3: unavailable()}
    assert await service.post(alert_json(device="3")) == 503

    assert await service.post(alert_json(device="4")) == 200
    assert effects(service) == {4: Effect.NONE}, "the first may have landed"

    service.backend.trouble = {}
    assert await service.post(alert_json(device="3")) == 200
    assert effects(service) == {3: Effect.NO_EXECUTE, 4: Effect.NONE}


@pytest.mark.parametrize("refusal", [Refusal.FORBIDDEN, Refusal.INVALID, Refusal.THROTTLED, Refusal.UNAUTHORIZED])
async def test_a_write_that_was_refused_leaves_its_place_to_others(make_service: MakeService, refusal: Refusal) -> None:
    service = await make_service(limits=ONE)
    service.backend.trouble = {3: UnavailableError(refusal, "no")}
    assert await service.post(alert_json(device="3")) == 503

    assert await service.post(alert_json(device="4")) == 200
    assert effects(service) == {4: Effect.NO_EXECUTE}


async def test_a_conflict_leaves_its_place_to_others(make_service: MakeService) -> None:
    service = await make_service(limits=ONE)
    service.backend.trouble = {3: conflict()}
    assert await service.post(alert_json(device="3")) == 503

    assert await service.post(alert_json(device="4")) == 200
    assert effects(service) == {4: Effect.NO_EXECUTE}


async def test_who_does_not_lead_refuses_and_closes(service: Service) -> None:
    service.leads.reason = 'not the leader: the Lease is held by "other"'
    answer = await service.send(body(alert_json()))

    assert (answer.status, answer.closes) == (503, True)
    assert answer.text == 'not the leader: the Lease is held by "other"\n'
    assert service.counts("notifications", "result") == {"not_leading": 1}
    assert service.backend.writes == []
    assert service.metrics.registry.get_sample_value("neuron_remediator_leader") == 0


async def test_leadership_that_ends_under_way_ends_the_write_and_the_connection(service: Service) -> None:
    service.backend.trouble = {3: Hang()}
    service.leads.seconds = 0.05
    answer = await service.send(body(alert_json()))

    assert (answer.status, answer.closes) == (503, True)
    assert answer.text == "timeout: ask again\n"


async def test_a_change_whose_answer_is_lost_is_told_once(service: Service) -> None:
    """The cluster has shown it; asking again finds it done, and tells nothing more."""
    service.backend.trouble = {3: Hang()}
    service.leads.seconds = 0.05
    assert await service.post(alert_json()) == 503
    service.backend.trouble = {}
    service.leads.seconds = 5.0
    assert await service.post(alert_json()) == 200

    assert [change.action for change in service.heard.changes] == [CREATE]
    assert service.counts("alerts", "outcome") == {"failed": 1, "unchanged": 1}


async def test_a_lost_create_that_is_in_the_way_of_its_repetition_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory had not heard of it when it was asked for again: the conflict shows it."""
    service.backend.trouble = {3: unavailable()}
    assert await service.post(alert_json()) == 503
    landed = record(started=STARTED, target=service.cluster.locate(NODE, 3))

    async def shows(_key: Key) -> None:
        service.backend.trouble = {}
        if not list(service.backend.records()):
            await service.backend.memory.create(landed)

    monkeypatch.setattr(service.backend, "refresh", shows)
    service.backend.trouble = {3: conflict()}
    assert await service.post(alert_json()) == 200

    assert [change.action for change in service.heard.changes] == [CREATE]


async def test_a_deletion_long_after_a_lost_one_is_not_ours(service: Service) -> None:
    efa = alert_json(fault="link_efa")
    assert await service.post(efa) == 200
    service.backend.trouble = {3: unavailable()}
    clear = alert_json(fault="link_efa", remediation="clear", episode=held(service).episode)
    assert await service.post(clear) == 503
    service.clock.now += LANDED_BY
    gone = held(service)
    service.backend.memory.on_change(gone, None, False)

    assert [change.action for change in service.heard.changes] == [CREATE, REMOVED]


@pytest.mark.parametrize("trouble", [conflict(), UnavailableError(Refusal.THROTTLED, "no")])
async def test_a_refused_deletion_frees_nothing_of_a_raise_whose_answer_was_lost(
    make_service: MakeService, trouble: Exception
) -> None:
    service = await make_service(limits=ONE)
    assert await service.post(alert_json(device="9", fault="fabric_error")) == 200
    assert await service.post(alert_json(fault="link_efa")) == 200
    withheld = next(one for one in service.backend.records() if one.key.device == 3)
    await service.backend.memory.delete(next(one for one in service.backend.records() if one.key.device == 9))
    service.backend.trouble = {3: unavailable()}
    assert await service.post(alert_json(fault="link_efa")) == 503, "it rises now, and may have"
    service.backend.trouble = {3: trouble}
    clear = alert_json(fault="link_efa", remediation="clear", episode=withheld.episode)
    assert await service.post(clear) == 503

    assert await service.post(alert_json(device="4")) == 200
    assert effects(service) == {3: Effect.NONE, 4: Effect.NONE}


async def test_what_the_watch_shows_later_of_a_lost_write_is_told(service: Service) -> None:
    """Neither the answer nor the change had come when the write was given up."""
    service.backend.trouble = {3: unavailable()}
    assert await service.post(alert_json()) == 503
    assert service.heard.changes == []
    await service.backend.memory.create(record(started=STARTED, target=service.cluster.locate(NODE, 3)))
    await service.backend.memory.delete(held(service))

    assert [change.action for change in service.heard.changes] == [CREATE]


async def test_a_sender_answered_after_the_demotion_is_sent_away(service: Service) -> None:
    """The rule is there, so it is told 200; but it must not come back to this replica."""
    service.cluster.gate = asyncio.Event()
    sending = asyncio.ensure_future(service.send(body(alert_json())))
    await eventually(lambda: service.cluster.asked, what="the decision to begin")
    service.leads.seconds = 5.0
    service.cluster.gate.set()
    service.backend.memory.on_change = lambda _before, _after, _ours: setattr(service.leads, "reason", "another leads")
    answer = await sending

    assert (answer.status, answer.closes) == (200, True)


async def test_each_change_is_told_once_with_what_was_before(service: Service) -> None:
    efa = alert_json(fault="link_efa")
    newer = alert_json(fault="link_efa", started=NOW)
    assert await service.post(efa) == 200
    assert await service.post(efa) == 200
    assert await service.post(newer) == 200
    assert await service.post(alert_json(fault="link_efa", remediation="clear", episode=_episode(service))) == 200

    told = service.heard.changes
    assert [change.action for change in told] == [CREATE, UPDATE, DELETE]
    assert [change.before is None for change in told] == [True, False, False]
    assert [change.after is None for change in told] == [False, False, True]
    assert told[0].after == told[1].before
    assert told[0].record.last_fired == STARTED


async def test_a_record_of_a_machine_that_is_gone_is_told_as_void(service: Service) -> None:
    assert await service.post(alert_json()) == 200
    service.cluster.known = {NODE: node(uid="uid-2")}
    assert await service.post(alert_json()) == 200

    assert [change.action for change in service.heard.changes] == [CREATE, VOID, CREATE]


async def test_budget_series_say_what_counts(make_service: MakeService) -> None:
    service = await make_service(limits=Limits(max_unavailable=None, max_new=3))
    assert await service.post(*(alert_json(device=str(device)) for device in range(5))) == 200

    def sample(name: str, which: Limit) -> float | None:
        return service.metrics.registry.get_sample_value(f"neuron_remediator_budget_{name}", {"budget": which})

    assert (sample("limit", Limit.NEW), sample("used", Limit.NEW)) == (3, 3)
    assert (sample("limit", Limit.UNAVAILABLE), sample("used", Limit.UNAVAILABLE)) == (float("inf"), 3)


async def test_new_targets_that_nobody_counts_have_no_series(make_service: MakeService) -> None:
    service = await make_service(limits=Limits(max_unavailable=None, max_new=None))
    assert await service.post(alert_json()) == 200
    page = service.metrics.registry

    assert page.get_sample_value("neuron_remediator_budget_limit", {"budget": "new"}) == float("inf")
    assert page.get_sample_value("neuron_remediator_budget_used", {"budget": "new"}) is None
    assert page.get_sample_value("neuron_remediator_budget_used", {"budget": "unavailable"}) == 1


async def test_a_preview_makes_records_that_move_nothing(make_service: MakeService) -> None:
    service = await make_service(max_effect=Effect.NONE)
    assert await service.post(alert_json()) == 200

    (found,) = service.backend.records()
    assert (found.taint.effect, found.state, found.latched) == (Effect.NONE, State.ACTIVE, True)


async def test_an_opted_out_node_gets_records_that_move_nothing(service: Service) -> None:
    service.cluster.known = {NODE: node(opted_out=True)}
    assert await service.post(alert_json()) == 200

    (found,) = service.backend.records()
    assert (found.taint.effect, found.state) == (Effect.NONE, State.OPTED_OUT)
    assert service.counts("alerts", "outcome") == {"opted_out": 1}


def _episode(service: Service) -> str:
    record = service.record("link_efa")
    assert record is not None
    return record.episode
