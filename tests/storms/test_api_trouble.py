"""Trouble on the way to the API server, and an API server that restarts: nothing is lost, nothing cleared unasked."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.stack.http import is_ok
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_for
from tests.stack.replicas import Replicas
from tests.stack.sender import NO_ANSWER, Sender
from tests.stack.trouble import EVERYTHING
from tests.storms.storm import Written, chosen, expected, faults, rain, seen, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.storms.storm import Fault

FAULTS, CLEARS = 120, 50
CALM_SECONDS = 20
"""How soon after the trouble everything is as it should be."""

OUTAGE_SECONDS = 12
"""Over how long faults come while the API server is stopped and started: a little longer than that takes."""

ANSWERS = {200, 503, NO_ANSWER}
"""None where a replica, demoted just then, closes the idle connection on which a notification is coming."""


@pytest.mark.parametrize("seconds", [pytest.param(20, id="20s"), pytest.param(60, id="60s", marks=pytest.mark.slow)])
async def test_an_api_server_that_refuses_hangs_and_cuts_at_random(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path, seconds: int
) -> None:
    of, random = faults(FAULTS, fleet(10)), Random(seconds)  # noqa: S311 - to be repeatable
    ending = chosen(random, of, CLEARS)
    with Replicas(tmp_path, control_plane, proxied=True, flags=LIFTED) as replicas:
        await asyncio.to_thread(replicas.wait_for_leader)
        written, proxies = Written(control_plane), [replicas.proxy(index) for index in range(2)]
        async with Sender(replicas.url(0), replicas.url(1), token=TOKEN, copies=2, deadline=200) as sender:
            for index, proxy in enumerate(proxies):
                proxy.storm(EVERYTHING, seed=seconds + index)
            async with asyncio.TaskGroup() as group:
                group.create_task(rain(sender, of, ending, random=random, over=seconds))
                await asyncio.sleep(seconds)  # no wait for anything: the length of the storm
                for proxy in proxies:
                    proxy.calm()
                calm = time.monotonic()
            taken = time.monotonic() - calm
            assert all(delivery.accepted for delivery in sender.deliveries)
            assert set(sender.statuses()) <= ANSWERS
        await _all_is_right(replicas, admin, written, of, ending)
        shown(f"{seconds} s of trouble", taken=taken, right=time.monotonic() - calm, statuses=dict(sender.statuses()))
        shown("struck", **{f"replica_{index}": sum(proxy.done.values()) for index, proxy in enumerate(proxies)})
        assert all(sum(proxy.done.values()) > seconds for proxy in proxies)
        assert time.monotonic() - calm < CALM_SECONDS


async def test_the_api_server_restarts(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of, random = faults(FAULTS, fleet(10)), Random(1)  # noqa: S311 - to be repeatable
    ending = chosen(random, of, CLEARS)
    with Replicas(tmp_path, control_plane, flags=LIFTED) as replicas:
        await asyncio.to_thread(replicas.wait_for_leader)
        written = Written(control_plane)
        async with Sender(replicas.url(0), replicas.url(1), token=TOKEN, copies=2, deadline=100) as sender:
            async with asyncio.TaskGroup() as group:
                group.create_task(rain(sender, of, ending, random=random, over=OUTAGE_SECONDS))
                await wait_for(lambda: _some_are_taken(sender), timeout=20, what="the storm to begin")
                await asyncio.to_thread(control_plane.stop_apiserver)
                await asyncio.to_thread(control_plane.start_apiserver)
                back = time.monotonic()
            taken = time.monotonic() - back
            assert all(delivery.accepted for delivery in sender.deliveries)
            assert set(sender.statuses()) <= ANSWERS
            assert 503 in sender.statuses()
        await _all_is_right(replicas, admin, written, of, ending)
        shown("API server restarted", taken=taken, right=time.monotonic() - back, statuses=dict(sender.statuses()))
        assert time.monotonic() - back < CALM_SECONDS


async def _some_are_taken(sender: Sender) -> bool:
    return sender.statuses()[200] > 0


async def _all_is_right(
    replicas: Replicas, admin: Admin, written: Written, of: Collection[Fault], ending: Collection[Fault]
) -> None:
    """Both replicas are back, one leads, and the rules are those that should stand, each written once."""
    assert seen(admin) == expected(set(of) - set(ending))
    await asyncio.to_thread(replicas.wait_for_leader)
    for index in range(len(replicas)):
        await asyncio.to_thread(
            replicas.service(index).process.wait_ready, partial(is_ok, f"{replicas.url(index)}/readyz")
        )
    rules = await asyncio.to_thread(written.up_to_now, admin)
    assert max(rules.values()) == 1
    assert {verb for verb, _ in rules} == {"create", "delete"}
