"""A day's worth of repeats through the real webhook: they must cost nothing that stays, and change nothing.

Alertmanager repeats each firing alert every five minutes, 288 times a day. They are replayed as fast as they are
answered; that time itself does not pass is the one thing that differs from a day. Memory may grow until the first
tenth is through (connections, buffers, the shape of the heap); from there on it has to be flat.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import faults, fleet
from tests.bench.audit_tail import REMEDIATOR, AuditTail, created, ended
from tests.bench.client import at_once, connect_api, connect_webhook
from tests.bench.measurement import Measurement
from tests.bench.process_figures import Memory, cpu_seconds, memory
from tests.stack.pipeline import LIFTED
from tests.stack.process import wait_for
from tests.stack.progress import progress
from tests.stack.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remediator.records import Key
    from tests.bench.client import Webhook
    from tests.stack.controlplane import ControlPlane
    from tests.stack.pipeline import Service

CONCURRENCY = 16
MOST_GROWTH = 4.0
"""MiB between the first tenth and the end."""

_MARKS = (0.1, 0.5, 1.0)
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.2


class Size(NamedTuple):
    """How much."""

    faults: int
    repeats: int


FULL = Size(faults=500, repeats=288)
SMALL = Size(faults=20, repeats=20)


class Replayed(NamedTuple):
    """What the replay has shown. `writes` are the remediator's, by verb and resource, Leases left out."""

    memory: dict[float, Memory]
    seconds: float
    cpu_seconds: float
    writes: Counter[str]
    retries: int


def run(control_plane: ControlPlane, directory: Path, size: Size) -> list[Measurement]:
    """Measure on a running control plane; rules and nodes are left there."""
    keys = faults.spread(size.faults)
    with Replicas(directory, control_plane, count=1, lease_seconds=15, flags=LIFTED) as replicas:
        replicas.wait_for_leader()
        replayed = asyncio.run(_measure(control_plane, replicas.service(0), keys, size.repeats))
    for write, count in replayed.writes.items():
        print(f"written during the repeats: {write}, {count} times")
    return report(replayed, size)


async def _measure(control_plane: ControlPlane, service: Service, keys: Sequence[Key], repeats: int) -> Replayed:
    now = datetime.now(UTC)
    async with connect_api(control_plane, fleet.CONNECTIONS) as api:
        await fleet.make(api, sorted({key.node for key in keys}), now.isoformat(timespec="seconds"))
    bodies = [faults.notification([faults.alert(key, now)]) for key in keys]
    async with connect_webhook(service.url, CONCURRENCY) as webhook:
        with progress(f"{len(keys)} faults"):
            tail = AuditTail(control_plane.audit_log)
            await at_once(bodies, webhook.notify, CONCURRENCY)
            await _all_told(tail, len(keys))
        return await _replay(service, webhook, bodies, repeats, AuditTail(control_plane.audit_log))


async def _replay(
    service: Service, webhook: Webhook, bodies: Sequence[bytes], repeats: int, tail: AuditTail
) -> Replayed:
    pid = service.process.pid
    began, used, done = time.perf_counter(), cpu_seconds(pid), 0
    seen: dict[float, Memory] = {}
    for mark in _MARKS:
        rounds = round(repeats * mark) - done
        with progress(f"repeats up to {mark:.0%} of {repeats * len(bodies)}"):
            work = chain.from_iterable(repeat(bodies, rounds))
            await at_once(work, webhook.notify, CONCURRENCY)
        seen[mark] = memory(pid)
        done += rounds
    seconds, used = time.perf_counter() - began, cpu_seconds(pid) - used
    await _lease_renewed(tail, time.time())
    writes = Counter(f"{line['verb']} {line['objectRef']['resource']}" for line in tail.writes())
    return Replayed(seen, seconds, used, writes, webhook.retries)


async def _all_told(tail: AuditTail, count: int) -> None:
    """Wait until every fault has its rule and its Event, by the audit log."""

    async def told() -> bool:
        await asyncio.sleep(_POLL_SECONDS)
        return len(created(tail.writes("devicetaintrules"))) == len(created(tail.writes("events"))) == count

    await wait_for(told, timeout=_SETTLE_SECONDS, what="a rule and an Event for each fault in the audit log")


async def _lease_renewed(tail: AuditTail, after: float) -> None:
    """Wait for a line about something later, so that nothing before it is missing."""

    async def renewed() -> bool:
        await asyncio.sleep(_POLL_SECONDS)
        return any(ended(line) > after and line["user"]["username"] == REMEDIATOR for line in tail.lines())

    await wait_for(renewed, timeout=_SETTLE_SECONDS, what="the Lease to be renewed, in the audit log")


def report(replayed: Replayed, size: Size) -> list[Measurement]:
    """The figures, judged."""
    sent = size.faults * size.repeats
    what = f"repeats, {size.repeats} of {size.faults} faults"
    marks = [
        Measurement(name=f"{what}: resident at {mark:.0%}", value=seen.resident, unit="MiB", samples=1)
        for mark, seen in replayed.memory.items()
    ]
    growth = replayed.memory[_MARKS[-1]].resident - replayed.memory[_MARKS[0]].resident
    return [
        *marks,
        Measurement(
            name=f"{what}: growth from {_MARKS[0]:.0%}", value=growth, unit="MiB", samples=1, target=MOST_GROWTH
        ),
        Measurement(
            name=f"{what}: writes (audit log)", value=replayed.writes.total(), unit="", samples=sent, target=0.0
        ),
        Measurement(name=f"{what}: pace", value=sent / replayed.seconds, unit="1/s", samples=sent),
        Measurement(
            name=f"{what}: processor time of one", value=replayed.cpu_seconds / sent * 1000, unit="ms", samples=sent
        ),
        Measurement(name=f"{what}: sent again", value=replayed.retries, unit="", samples=sent),
    ]
