"""Several Alertmanagers, and two replicas: many copies of a notification are one change, whoever they reach."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.stack.http import request
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.replicas import Replicas
from tests.stack.sender import WEBHOOK, Sender
from tests.stack.service_ip import ServiceIp
from tests.storms.storm import Written, chosen, expected, faults, rain, seen, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

COPIES = 5


@pytest.mark.parametrize("way", ["by the Service", "at both replicas"])
async def test_five_copies_of_each_notification_are_one_rule(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path, way: str
) -> None:
    of = faults(44, fleet(2))
    random = Random(1)  # noqa: S311 - to be repeatable
    ending = chosen(random, of, 12)
    with (
        Replicas(tmp_path, control_plane, flags=LIFTED) as replicas,
        ServiceIp(control_plane, replicas.addresses()) as service,
    ):
        leader = await asyncio.to_thread(replicas.wait_for_leader)
        written = Written(control_plane)
        urls = [service.url] if way == "by the Service" else [replicas.url(0), replicas.url(1)]
        async with Sender(*urls, token=TOKEN, copies=COPIES) as sender:
            await rain(sender, of, ending, random=random, over=0)
        assert all(delivery.accepted for delivery in sender.deliveries)
        assert set(sender.statuses()) <= ({200} if way == "by the Service" else {200, 503})
        assert seen(admin) == expected(set(of) - ending)
        rules = await asyncio.to_thread(written.up_to_now, admin)
        assert rules == {
            **{("create", fault.name): 1 for fault in of},
            **{("delete", fault.name): 1 for fault in ending},
        }
        assert replicas.leading() == [leader]
        shown(f"copies {way}", statuses=dict(sender.statuses()))


def test_a_standby_sends_everybody_away(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> None:
    with Replicas(tmp_path, control_plane) as replicas:
        standby = 1 - replicas.wait_for_leader()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = request("POST", replicas.url(standby) + WEBHOOK, body=b"{}", headers=headers, check=False)

        assert (answer.status, answer.headers.get("connection")) == (503, "close")
        assert "not the leader" in answer.text
        assert request("GET", f"{replicas.url(standby)}/readyz").status == 200
