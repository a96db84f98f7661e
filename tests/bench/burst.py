"""A thousand faults within a moment: how long until each one's rule is acknowledged, next to a thousand bare creates.

Taken in turns, several times over, at the same concurrency, over connections that are open before: bare creates of
the very same objects; one notification a fault, as the route that ships sends them; all faults in one notification.
Time ends when the last answer is there. Events are written behind it, and how far behind is told. The client has one
core at most, shared with nobody in its process: its share of that core says whether it was what limited the pace.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import faults, fleet
from tests.bench.audit_tail import AuditTail, created, ended
from tests.bench.client import at_once, connect_api, connect_webhook
from tests.bench.measurement import Measurement
from tests.stack.pipeline import LIFTED
from tests.stack.process import wait_for
from tests.stack.progress import progress
from tests.stack.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from remediator.records import Key
    from tests.bench.client import Api, Webhook
    from tests.stack.controlplane import ControlPlane
    from tests.stack.pipeline import Service

CONCURRENCY = 32

_BARE, _MANY, _ONE = "bare creates", "notification each", "one notification"
_MOST_RATIO, _MOST_SECONDS = 2.5, 4.0
_SETTLE_SECONDS = 120.0
_STILL_SECONDS = 2.0  # above the first pause before an Event is tried again
_POLL_SECONDS = 0.2


class Size(NamedTuple):
    """How much."""

    faults: int
    rounds: int


FULL = Size(faults=1000, rounds=5)
SMALL = Size(faults=40, rounds=2)


@dataclass(frozen=True, slots=True)
class Taken:
    """One of the three, once. `events_behind` is how many seconds after the end the last Event was written."""

    seconds: float
    client_share: float
    events: int = 0
    events_by_then: int = 0
    events_behind: float = 0.0
    retries: int = 0


@dataclass(slots=True)
class _Bench:
    """Both ways in, and what was made beforehand."""

    api: Api
    webhook: Webhook
    service: Service
    tail: AuditTail
    keys: Sequence[Key]
    uids: dict[str, str]

    async def bare(self, name: str) -> Taken:
        """The floor."""
        now = datetime.now(UTC)
        bodies = [
            json.dumps(faults.bare(faults.record(key, self.uids[key.node], now), name)).encode() for key in self.keys
        ]

        async def create(body: bytes) -> None:
            await self.api.create(faults.RULES, body)

        await self.api.warm(CONCURRENCY)
        taken, _ = await _timed(lambda: at_once(bodies, create, CONCURRENCY))
        await self._clear()
        return taken

    async def notified(self, *, together: bool) -> Taken:
        """The product."""
        now = datetime.now(UTC)
        alerts = [faults.alert(key, now) for key in self.keys]
        groups = [alerts] if together else [[alert] for alert in alerts]
        bodies = [faults.notification(group) for group in groups]
        await self.webhook.warm(CONCURRENCY)
        known, retries = len(self.tail.lines()), self.webhook.retries
        taken, end = await _timed(lambda: at_once(bodies, self.webhook.notify, CONCURRENCY))
        await self._told()
        self._check(known)
        at = sorted(map(ended, self.tail.writes("events", since=known)))
        await self._clear()
        return replace(
            taken,
            events=len(at),
            events_by_then=sum(one <= end for one in at),
            events_behind=max(at, default=end) - end,
            retries=self.webhook.retries - retries,
        )

    def _check(self, known: int) -> None:
        """Every fault has got its rule, and only one."""
        lines = [one for one in self.tail.writes("devicetaintrules", since=known) if created([one])]
        if not len(created(lines)) == len(lines) == len(self.keys):
            raise RuntimeError(f"counting rules: expected {len(self.keys)}, got {len(created(lines))} by {len(lines)}")

    async def _clear(self) -> None:
        """Delete all rules, and wait until the remediator has seen it and has told of it."""
        await self.api.delete_all(faults.RULES)

        async def gone() -> bool:
            await asyncio.sleep(_POLL_SECONDS)
            samples = await asyncio.to_thread(self.service.metrics)
            left = json.loads(await self.api.get(f"{faults.RULES}?limit=1"))["items"]
            return not left and not any(name == "neuron_remediator_record" for name, _, _ in samples)

        await wait_for(gone, timeout=_SETTLE_SECONDS, what="all rules to be gone")
        await self._told()

    async def _told(self) -> None:
        """Wait until no more Events come: how many there have to be depends on what was answered in time."""
        seen, since = -1, time.monotonic()

        async def still() -> bool:
            nonlocal seen, since
            await asyncio.sleep(_POLL_SECONDS)
            if (now := len(self.tail.writes("events"))) != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since > _STILL_SECONDS

        await wait_for(still, timeout=_SETTLE_SECONDS, what="the last Event")


async def _timed(work: Callable[[], Awaitable[None]]) -> tuple[Taken, float]:
    """Do it; what it took, and when it ended by the wall clock."""
    began, used = time.perf_counter(), time.process_time()
    await work()
    end = time.time()
    seconds = time.perf_counter() - began
    return Taken(seconds, (time.process_time() - used) / seconds), end


def run(control_plane: ControlPlane, directory: Path, size: Size) -> list[Measurement]:
    """Measure on a running control plane; the nodes are left there."""
    keys = faults.spread(size.faults)
    with Replicas(directory, control_plane, count=1, lease_seconds=15, flags=LIFTED) as replicas:
        replicas.wait_for_leader()
        taken = asyncio.run(_measure(control_plane, replicas.service(0), keys, size.rounds))
    return report(taken, faults=size.faults)


async def _measure(
    control_plane: ControlPlane, service: Service, keys: Sequence[Key], rounds: int
) -> dict[str, list[Taken]]:
    taken: dict[str, list[Taken]] = {_BARE: [], _MANY: [], _ONE: []}
    async with (
        connect_api(control_plane, fleet.CONNECTIONS) as api,
        connect_webhook(service.url, CONCURRENCY) as webhook,
    ):
        names = sorted({key.node for key in keys})
        uids = await fleet.make(api, names, datetime.now(UTC).isoformat(timespec="seconds"))
        bench = _Bench(api, webhook, service, AuditTail(control_plane.audit_log), keys, uids)
        for number in range(1, rounds + 1):
            with progress(f"round {number} of {rounds}"):
                taken[_BARE].append(await bench.bare(f"bare-{number}"))
                taken[_MANY].append(await bench.notified(together=False))
                taken[_ONE].append(await bench.notified(together=True))
        return taken


def report(taken: dict[str, list[Taken]], *, faults: int) -> list[Measurement]:
    """Put the figures of all rounds together: medians, and medians' ratios."""
    floor = median(one.seconds for one in taken[_BARE])
    rows = []
    for name, ones in taken.items():
        seconds = median(one.seconds for one in ones)
        share = median(one.client_share for one in ones) * 100
        figures: list[tuple[str, float, str, float | None]] = [
            ("", seconds, "s", None if name == _BARE else _MOST_SECONDS),
            (": client's share of a core", share, "%", None),
        ]
        if name != _BARE:
            figures += [
                (" / bare creates", seconds / floor, "x", _MOST_RATIO),
                (": Events written by then", median(one.events_by_then for one in ones), "", None),
                (": last Event after it", median(one.events_behind for one in ones), "s", None),
                (": Events missing", sum(faults - one.events for one in ones), "", 0.0),
                (": sent again", sum(one.retries for one in ones), "", None),
            ]
        rows += [
            Measurement(name=f"burst of {faults}, {name}{what}", value=value, unit=unit, samples=len(ones), target=most)
            for what, value, unit, most in figures
        ]
    return rows
