"""A replica that cannot see, or may not write: it neither guesses nor loses anything, and goes on once it can."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING

from remediator.records import Key
from tests.stack.client import Client
from tests.stack.http import HTTPError, request
from tests.stack.pipeline import LIFTED, TOKEN, install
from tests.stack.process import wait_for
from tests.stack.replicas import Replicas
from tests.stack.rule_watch import RuleWatch
from tests.stack.sender import Sender
from tests.stack.trouble import Trouble
from tests.storms.storm import Fault, Written, chosen, expected, faults, rain, seen, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

NEW = 10
"""What the budget that ships lets be disrupted within ten minutes."""

SECONDS = 20


async def test_a_standby_whose_watch_is_silent_takes_over_within_the_budget(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    nodes, now = fleet(4), datetime.now(UTC)
    of = [Fault(Key(nodes[n % 4], n // 4, "hbm"), now) for n in range(3 * NEW)]
    with (
        Replicas(
            tmp_path, control_plane, proxied=True, flags=("--budget.max-unavailable=none", f"--budget.max-new={NEW}")
        ) as replicas,
        RuleWatch(control_plane) as watch,
    ):
        leader = await asyncio.to_thread(replicas.wait_for_leader)
        standby = replicas.service(1 - leader)
        proxy = replicas.proxy(1 - leader)
        proxy.storm({Trouble.WATCH_HANG: 1.0}, seed=1, where=lambda _method, path: "/devicetaintrules" in path)

        async def silent() -> bool:
            return proxy.done[Trouble.WATCH_HANG] > 0

        await wait_for(silent, timeout=SECONDS, what="the standby's watch to fall silent")
        async with Sender(replicas.url(0), replicas.url(1), token=TOKEN) as sender:
            await sender.send_all(fault.firing() for fault in of[:NEW])
            assert standby.value("neuron_remediator_budget_used", budget="new") == 0, "it is to know nothing of them"
            replicas.kill(leader)
            await sender.send_all(fault.firing() for fault in of[NEW:])
        states = Counter((one.state, one.effect) for one in seen(admin).values())
        assert states == {("active", "NoExecute"): NEW, ("withheld", "None"): 2 * NEW}
        await wait_for(lambda: _all_seen(watch, of), timeout=SECONDS, what="the watch of the test to see it all")
        assert max(watch.disturbed) == NEW


async def _all_seen(watch: RuleWatch, of: list[Fault]) -> bool:
    return len(watch.standing()) == len(of)


async def test_rights_are_withdrawn_and_given_back(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of, random = faults(80, fleet(8)), Random(1)  # noqa: S311 - to be repeatable
    ending = chosen(random, of[:40], 10) | chosen(random, of[40:], 10)
    with Replicas(tmp_path, control_plane, proxied=True, flags=LIFTED) as replicas:
        await asyncio.to_thread(replicas.wait_for_leader)
        written = Written(control_plane)
        try:
            async with Sender(replicas.url(0), replicas.url(1), token=TOKEN) as sender:
                await sender.send_all(fault.firing() for fault in of[:40])
                before = seen(admin)
                admin.delete("ClusterRoleBinding", "neuron-remediator")
                await wait_for(lambda: _forbidden(control_plane), timeout=SECONDS, what="the API server to refuse")
                async with asyncio.TaskGroup() as group:
                    group.create_task(rain(sender, of, ending, random=random, over=2))
                    # What is open is not asked for its rights again.
                    for index in range(2):
                        replicas.proxy(index).partition(cut=True)
                        replicas.proxy(index).calm()
                    await wait_for(lambda: _blind(replicas), timeout=SECONDS, what="both to say that they are blind")
                    assert seen(admin) == before
                    await asyncio.to_thread(install, control_plane)
                assert set(sender.statuses()) <= {200, 503, 0}
        finally:
            await asyncio.to_thread(install, control_plane)
        assert seen(admin) == expected(set(of) - ending)
        rules = await asyncio.to_thread(written.up_to_now, admin)
        assert max(rules.values()) == 1
        assert {verb for verb, _ in rules} == {"create", "delete"}
        shown("rights given back", statuses=dict(sender.statuses()))


async def _forbidden(control_plane: ControlPlane) -> bool:
    """Whether the authorizer has heard of it, which takes it a moment."""
    return not await asyncio.to_thread(_may_list, control_plane)


def _may_list(control_plane: ControlPlane) -> bool:
    try:
        Client(control_plane, "neuron-remediator").items("DeviceTaintRule")
    except HTTPError:
        return False
    return True


async def _blind(replicas: Replicas) -> bool:
    answers = [request("GET", f"{replicas.url(index)}/readyz", check=False) for index in range(len(replicas))]
    return all(answer.status == HTTPStatus.SERVICE_UNAVAILABLE for answer in answers)
