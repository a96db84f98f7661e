"""Replicas killed at any instant: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.replicas import Replicas
from tests.stack.sender import NO_ANSWER, Sender
from tests.stack.service_ip import ServiceIp
from tests.storms.storm import Written, chosen, expected, faults, seen, shown, spell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

FAULTS, CLEARS = 200, 100
LEADER, STANDBY, BOTH = 0.65, 0.25, 0.1
"""How many of the kills hit whom."""

WITHIN_SECONDS = 0.08
"""A kill comes so soon after notifications were sent: some of their writes are done then, and some under way."""

CALM_SECONDS = 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [12, pytest.param(50, marks=pytest.mark.slow)])
async def test_killed_at_random_instants(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path, kills: int
) -> None:
    of, random = faults(FAULTS, fleet(10)), Random(kills)  # noqa: S311 - to be repeatable
    ending, began = chosen(random, of, CLEARS), time.monotonic()
    with (
        Replicas(tmp_path, control_plane, flags=LIFTED) as replicas,
        ServiceIp(control_plane, replicas.addresses()) as service,
    ):
        written = Written(control_plane)
        async with Sender(service.url, token=TOKEN, copies=2, deadline=120) as sender:
            async with asyncio.TaskGroup() as group:
                for kill in range(kills):
                    leader = await asyncio.to_thread(replicas.wait_for_leader)
                    for fault in of[kill::kills]:
                        group.create_task(spell(sender, fault, ends=fault in ending))
                    await asyncio.sleep(random.uniform(0, WITHIN_SECONDS))  # no wait for anything: the instant
                    victims = _victims(random, leader)
                    for victim in victims:
                        replicas.kill(victim)
                    for victim in victims:
                        replicas.start(victim, wait=False)
                raining = time.monotonic()
            calm = time.monotonic() - raining
        assert set(sender.statuses()) <= {200, 503, NO_ANSWER}
        assert seen(admin) == expected(set(of) - ending)
        await asyncio.to_thread(replicas.wait_for_leader)
        rules = await asyncio.to_thread(written.up_to_now, admin)
        assert max(rules.values()) == 1
        assert {verb for verb, _ in rules} == {"create", "delete"}
        assert calm < CALM_SECONDS
        shown(f"{kills} kills", seconds=time.monotonic() - began, calm=calm, statuses=dict(sender.statuses()))


def _victims(random: Random, leader: int) -> list[int]:
    kinds = [leader], [1 - leader], [leader, 1 - leader]
    return random.choices(kinds, (LEADER, STANDBY, BOTH))[0]
