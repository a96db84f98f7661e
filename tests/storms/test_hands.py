"""Rules of ours edited by hand while notifications come: put right by the next firing, and not written without end."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import Sender
from tests.storms.storm import Written, expected, faults, seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

SECONDS = 20
OURS = "neuron-remediator/"


def _spec(**changes: Any) -> dict[str, Any]:
    return {"spec": changes}


def _notes(**changes: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {f"{OURS}{name.replace('_', '-')}": text for name, text in changes.items()}}}


def _labels(**changes: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {f"{OURS}{name}": text for name, text in changes.items()}}}


EDITS: tuple[dict[str, Any], ...] = (
    _spec(taint={"effect": "None"}),
    _spec(taint={"effect": "NoSchedule"}),
    _spec(taint={"key": "example.com/other"}),
    _spec(taint={"value": None}),
    _spec(deviceSelector={"driver": None}),
    _spec(deviceSelector={"pool": None}),
    _spec(deviceSelector={"device": None}),
    _spec(deviceSelector=None),
    _spec(deviceSelector={"pool": "another-node"}),
    _spec(deviceSelector={"driver": "example.com"}),
    _labels(device=None),
    _labels(device="77", fault="hbm"),
    _labels(fault="no-such-fault"),
    _notes(node=None),
    _notes(node_uid=None),
    _notes(state=None, reason="x" * 100_000),
    _notes(state="opted-out"),
    _notes(state="covered"),
    _notes(state="released"),
    _notes(state="released", released_until="2026-01-01T00:00:00Z"),
    _notes(latched="maybe"),
    _notes(first_fired="garbage", last_fired="garbage"),
    _notes(last_fired="0001-01-01T00:00:00+14:00"),
    _notes(released_until="9999-12-31T23:59:59Z"),
    _notes(released_until="2026-01-01T00:00:00Z", released_by="nobody"),
    _notes(released_until="garbage"),
    {"metadata": {"ownerReferences": None}},
    {"metadata": {"labels": {"app.kubernetes.io/managed-by": "neuron-remediator", "example.com/more": "true"}}},
)
"""What a hand does to one rule each. Some stay with it for good, as no apply of ours takes away what others added."""


async def test_every_field_is_edited_by_hand(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of, random = faults(len(EDITS), fleet(2)), Random(1)  # noqa: S311 - to be repeatable
    right = {name: one._replace(episode="") for name, one in expected(of).items()}

    def standing() -> bool:
        return {name: one._replace(episode="") for name, one in seen(admin).items()} == right

    with Replicas(tmp_path, control_plane, count=1, flags=LIFTED) as replicas:
        await asyncio.to_thread(replicas.wait_for_leader)
        async with Sender(replicas.url(0), token=TOKEN) as sender:
            await sender.send_all(fault.firing() for fault in of)
            async with asyncio.TaskGroup() as group:
                for fault, edit in zip(of, random.sample(EDITS, len(EDITS)), strict=True):
                    group.create_task(asyncio.to_thread(admin.patch, "DeviceTaintRule", fault.name, edit))
                    group.create_task(sender.send(fault.firing()))

            async def again() -> None:
                await sender.send_all(fault.firing() for fault in of)

            await again()
            await asyncio.to_thread(wait_until, standing, timeout=SECONDS, what="every rule to be as it should be")
            written = Written(control_plane)
            await again()
            await again()
        assert await asyncio.to_thread(written.up_to_now, admin) == {}, "repeats must not be writes"
