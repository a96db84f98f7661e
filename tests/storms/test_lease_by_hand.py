"""The Lease edited or deleted by hand while notifications come: soon one replica leads again, and nothing is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.stack.controlplane import NAMESPACE
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_until
from tests.stack.replicas import LEASE, Replicas
from tests.stack.sender import Sender
from tests.storms.storm import Written, expected, faults, rain, seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

NOBODY = "nobody-there"
LEASE_SECONDS, SECONDS = 2, 20
MOST = 2**31 - 1
"""The largest number that the API server takes."""

EDITS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"spec": None},
    {"spec": {"holderIdentity": NOBODY}},
    {"spec": {"holderIdentity": None}},
    {"spec": {"leaseDurationSeconds": MOST}},
    {"spec": {"leaseDurationSeconds": None, "renewTime": "2999-01-01T00:00:00.000000Z"}},
    # One more take-over could not be counted, and a Lease that says so would be refused for ever.
    {"spec": {"leaseTransitions": MOST, "holderIdentity": NOBODY}},
)
"""What a hand does to it, one after another; None deletes it."""


async def test_the_lease_is_edited_by_hand(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of, random = faults(60, fleet(4)), Random(1)  # noqa: S311 - to be repeatable
    with Replicas(tmp_path, control_plane, lease_seconds=LEASE_SECONDS, flags=LIFTED) as replicas:
        await asyncio.to_thread(replicas.wait_for_leader)
        written = Written(control_plane)
        held = partial(_held, admin)
        async with (
            Sender(replicas.url(0), replicas.url(1), token=TOKEN, copies=2) as sender,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(rain(sender, of, [], random=random, over=10))
            for edit in EDITS:
                await asyncio.to_thread(_edit, admin, edit)
                await asyncio.to_thread(wait_until, held, timeout=SECONDS, what=f"{edit} to be over")
                await asyncio.to_thread(replicas.wait_for_leader)
        assert seen(admin) == expected(of)
        # Two may have led for a moment, which nobody who lets a hand at the Lease can exclude; they wrote once.
        assert await asyncio.to_thread(written.up_to_now, admin) == {("create", fault.name): 1 for fault in of}


def _held(admin: Admin) -> bool:
    """Whether the Lease is held by a replica, for as long as that one says."""
    spec = (admin.find("Lease", LEASE, namespace=NAMESPACE) or {}).get("spec", {})
    holder, duration = str(spec.get("holderIdentity")), spec.get("leaseDurationSeconds")
    return holder.startswith(LEASE) and bool(duration == LEASE_SECONDS)


def _edit(admin: Admin, edit: dict[str, Any] | None) -> None:
    if edit is None:
        admin.delete("Lease", LEASE, namespace=NAMESPACE)
    else:
        admin.patch("Lease", LEASE, edit, namespace=NAMESPACE)
