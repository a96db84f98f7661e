"""Levelling: what changes without an alert, and that nothing does without a cause."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import Effect
from remediator.budget import Limits
from remediator.decide import release, relevel
from remediator.leveller import SWEEP_SECONDS
from remediator.records import Key, State
from remediator.traces import RETIRE, UPDATE
from tests.remediator.fakes import conflict, eventually, unavailable
from tests.remediator.samples import NODE, NOW, STARTED, alert_json, node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from remediator.records import Record
    from tests.remediator.conftest import MakeService, Service

HBM, EFA = Key(NODE, 3, "hbm"), Key(NODE, 3, "link_efa")
ONE = Limits(max_unavailable=1, max_new=None)


def held(service: Service, key: Key) -> Record:
    record = service.backend.record(key)
    assert record is not None
    return record


def standing(service: Service, key: Key) -> tuple[Effect, State]:
    return held(service, key).taint.effect, held(service, key).state


async def sweep(service: Service) -> list[tuple[str, Key]]:
    """Sweep once; returns the writes of it."""
    before = len(service.backend.writes)
    await service.parts.leveller.sweep()
    return service.backend.writes[before:]


@pytest.fixture
async def faulty(service: Service) -> Service:
    """Give a service with a latched and an unlatched record, both as the table says."""
    assert await service.post(alert_json(), alert_json(fault="link_efa")) == 200
    return service


async def test_what_is_level_is_not_written(faulty: Service) -> None:
    assert await sweep(faulty) == []


async def test_an_opt_out_lifts_at_once_and_its_end_raises_what_is_latched_alone(faulty: Service) -> None:
    faulty.cluster.known = {NODE: node(opted_out=True)}
    assert len(await sweep(faulty)) == 2
    assert standing(faulty, HBM) == standing(faulty, EFA) == (Effect.NONE, State.OPTED_OUT)

    faulty.cluster.known = {NODE: node()}
    await sweep(faulty)

    assert standing(faulty, HBM) == (Effect.NO_EXECUTE, State.ACTIVE)
    assert standing(faulty, EFA) == (Effect.NONE, State.WITHHELD)
    assert await faulty.post(alert_json(fault="link_efa")) == 200
    assert standing(faulty, EFA) == (Effect.NO_SCHEDULE, State.ACTIVE)


async def test_a_release_stands_above_firings_and_ends_as_withheld(faulty: Service) -> None:
    until = NOW + timedelta(hours=1)
    before = len(faulty.heard.changes)
    await faulty.backend.update(release(held(faulty, HBM), until=until, by="ann", why="new board").record)
    (told,) = faulty.heard.changes[before:]
    assert (told.action, told.record.released_by) == (UPDATE, "ann"), "it was written by nobody here"
    assert await faulty.post(alert_json(started=STARTED + timedelta(seconds=1))) == 200
    assert (standing(faulty, HBM), held(faulty, HBM).latched) == ((Effect.NONE, State.RELEASED), False)
    faulty.clock.now = until - timedelta(microseconds=1)
    assert await sweep(faulty) == []

    faulty.clock.now = until
    await sweep(faulty)

    ended = held(faulty, HBM)
    assert (ended.taint.effect, ended.state, ended.latched) == (Effect.NONE, State.WITHHELD, False)
    assert await faulty.post(alert_json()) == 200
    assert (standing(faulty, HBM), held(faulty, HBM).latched) == ((Effect.NO_EXECUTE, State.ACTIVE), True)


async def test_room_goes_to_the_latched_record_that_stands_longest(make_service: MakeService) -> None:
    service = await make_service(limits=ONE)
    for device, seconds in ((5, 3), (6, 2), (7, 1)):
        earlier = STARTED - timedelta(seconds=seconds)
        assert await service.post(alert_json(device=str(device), fault="hbm", started=earlier)) == 200
    first, second, third = (Key(NODE, device, "hbm") for device in (5, 6, 7))
    assert standing(service, first) == (Effect.NO_EXECUTE, State.ACTIVE)
    await service.backend.delete(held(service, first))

    assert [key for _, key in await sweep(service)] == [second]

    assert standing(service, second) == (Effect.NO_EXECUTE, State.ACTIVE)
    assert standing(service, third) == (Effect.NONE, State.WITHHELD)


async def test_nobody_levels_without_leading_or_knowing(faulty: Service) -> None:
    faulty.cluster.known = {NODE: node(opted_out=True)}
    faulty.leads.reason = "another leads"
    assert await sweep(faulty) == []
    faulty.leads.reason = None
    faulty.cluster.waiting_for = "waiting for a list of nodes"
    assert await sweep(faulty) == []


async def test_a_record_of_another_machine_or_of_none_is_left_alone(faulty: Service) -> None:
    faulty.cluster.known = {NODE: node(uid="uid-2", opted_out=True)}
    assert await sweep(faulty) == []
    faulty.cluster.known = {}
    assert await sweep(faulty) == []


async def test_what_fails_is_tried_again_and_keeps_nothing_else(
    faulty: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await faulty.post(alert_json(device="4"))
    faulty.backend.trouble = {4: unavailable()}
    faulty.cluster.known = {NODE: node(opted_out=True)}

    assert {key.device for _, key in await sweep(faulty)} == {3}
    assert [record.getMessage() for record in caplog.records] == ["levelling a record: failed"]
    faulty.backend.trouble = {}
    assert {key.device for _, key in await sweep(faulty)} == {4}


async def test_a_conflict_is_looked_up_and_left_to_the_next_look(faulty: Service) -> None:
    faulty.backend.trouble = {3: conflict()}
    faulty.cluster.known = {NODE: node(opted_out=True)}
    assert await sweep(faulty) == []
    assert faulty.backend.refreshes == 2

    faulty.backend.trouble = {}
    assert len(await sweep(faulty)) == 2


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[None]:
    task = asyncio.create_task(service.parts.leveller.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_it_could_not_see_is_looked_at_as_soon_as_it_can_be(
    faulty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody pokes when a new leader's lists bring nothing new: the next look would be 15 s away."""
    faulty.cluster.waiting_for = "lists"
    faulty.cluster.known = {NODE: node(opted_out=True)}
    looks: list[None] = []
    not_ready = faulty.cluster.not_ready

    def looked() -> str | None:
        looks.append(None)
        return not_ready()

    monkeypatch.setattr(faulty.cluster, "not_ready", looked)
    async with running(faulty):
        await eventually(lambda: looks, what="a look that sees nothing")
        faulty.cluster.waiting_for = None
        await eventually(lambda: held(faulty, EFA).state is State.OPTED_OUT, what="the opt-out, within 10 s")


async def test_it_looks_when_poked_and_at_the_end_of_a_release(faulty: Service) -> None:
    async with running(faulty):
        faulty.cluster.known = {NODE: node(opted_out=True)}
        faulty.parts.leveller.poke()
        await eventually(lambda: held(faulty, EFA).state is State.OPTED_OUT, what="the opt-out")
        faulty.cluster.known = {NODE: node()}
        soon = faulty.clock.now + timedelta(seconds=1)
        await faulty.backend.update(release(held(faulty, EFA), until=soon, by="ann", why="test").record)
        await eventually(lambda: held(faulty, HBM).state is State.ACTIVE, what="the write's poke")
        assert held(faulty, EFA).state is State.RELEASED
        faulty.clock.now = soon
        await eventually(lambda: held(faulty, EFA).state is State.WITHHELD, what="the end of the release")


async def test_a_rule_that_a_hand_has_weakened_waits_for_evidence_unless_it_is_latched(faulty: Service) -> None:
    for key in (HBM, EFA):
        record = held(faulty, key)
        await faulty.backend.update(replace(record, taint=replace(record.taint, effect=Effect.NONE)))
    await sweep(faulty)

    assert standing(faulty, HBM) == (Effect.NO_EXECUTE, State.ACTIVE)
    assert standing(faulty, EFA) == (Effect.NONE, State.WITHHELD)


async def test_an_ended_release_that_nothing_can_be_done_about_is_waited_for_no_more(faulty: Service) -> None:
    """Its Node is gone; the sweeps must not spin until the garbage collector comes."""
    soon = NOW + timedelta(seconds=5)
    await faulty.backend.update(release(held(faulty, EFA), until=soon, by="ann", why="test").record)
    leveller = faulty.parts.leveller
    assert leveller._until_next(NOW) == 5

    faulty.clock.now = soon
    assert leveller._until_next(NOW) == 0, "the last look was before the end"
    assert leveller._until_next(soon) == SWEEP_SECONDS


async def test_a_bug_that_one_record_meets_keeps_no_other_from_being_lowered(
    faulty: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.cluster.known = {NODE: node(opted_out=True)}

    def fails_for_hbm(record: Record, **around: Any) -> Any:
        if record.key == HBM:
            raise ZeroDivisionError
        return relevel(record, **around)

    monkeypatch.setattr("remediator.leveller.relevel", fails_for_hbm)

    assert [key for _, key in await sweep(faulty)] == [EFA]
    assert [record.getMessage() for record in caplog.records] == ["levelling a record: unexpected error"]


async def test_a_move_that_was_cut_short_is_tidied_up_by_one_write(
    faulty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing is to be changed of the record: it is there twice."""
    twice = {EFA}
    monkeypatch.setattr(faulty.backend, "untidy", lambda key: key in twice)
    before = held(faulty, EFA)
    assert await sweep(faulty) == [("update", EFA)]
    assert replace(held(faulty, EFA), stored=before.stored) == before
    twice.clear()

    assert await sweep(faulty) == []


FORMERLY = replace(EFA, fault="link_fabric_adapter")


async def recorded(service: Service, key: Key, **changes: Any) -> Record:
    """Have a record of the sample's content under that key, as a release before has written it."""
    made = replace(held(service, EFA), key=key, stored=None, **changes)
    await service.backend.memory.create(made)
    return made


async def test_what_no_release_is_known_to_have_had_is_left_alone(faulty: Service) -> None:
    """It may be of a release that is newer than this one, which is being rolled back."""
    await recorded(faulty, FORMERLY)

    assert await sweep(faulty) == []


async def test_the_record_of_a_fault_that_is_no_more_is_removed(faulty: Service) -> None:
    await recorded(faulty, FORMERLY)
    faulty.parts.leveller._former = {FORMERLY.fault: None}
    before = len(faulty.heard.changes)

    assert await sweep(faulty) == [("delete", FORMERLY)]
    assert [change.action for change in faulty.heard.changes[before:]] == [RETIRE]
    assert await sweep(faulty) == []


@pytest.mark.parametrize("latched", [False, True])
async def test_the_record_of_a_fault_that_has_another_name_is_moved_with_all_it_says(
    faulty: Service, *, latched: bool
) -> None:
    """First made, then removed: what is tainted stays so meanwhile."""
    old = await recorded(faulty, FORMERLY, latched=latched, first_fired=STARTED - timedelta(days=1))
    await faulty.backend.memory.delete(held(faulty, EFA))
    faulty.parts.leveller._former = {FORMERLY.fault: EFA.fault}

    assert await sweep(faulty) == [("create", EFA), ("delete", FORMERLY)]
    now = held(faulty, EFA)
    assert replace(now, stored=None, tainted_since=old.tainted_since) == replace(old, key=EFA)
    assert await sweep(faulty) == []


async def test_two_records_of_what_is_one_fault_today_become_one(faulty: Service) -> None:
    """Latched if one of them was, and since the earlier of the two."""
    before = held(faulty, EFA)
    await recorded(faulty, FORMERLY, latched=True, first_fired=STARTED - timedelta(days=1))
    faulty.parts.leveller._former = {FORMERLY.fault: EFA.fault}

    assert await sweep(faulty) == [("update", EFA), ("delete", FORMERLY)]
    after = held(faulty, EFA)
    assert (after.latched, after.first_fired) == (True, STARTED - timedelta(days=1))
    assert (after.taint, after.state, after.episode) == (before.taint, before.state, before.episode)
    assert await sweep(faulty) == []


async def test_a_move_to_another_name_that_was_cut_short_goes_on(faulty: Service) -> None:
    """Both are there then, and say the same."""
    await recorded(faulty, FORMERLY)
    faulty.parts.leveller._former = {FORMERLY.fault: EFA.fault}

    assert await sweep(faulty) == [("delete", FORMERLY)]
