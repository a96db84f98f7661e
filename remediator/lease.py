"""Leadership by a Lease: the loop that looks at it, holds it, and gives it back.

What to do is `remediator.election`'s to decide. This does it, again and again: whatever goes wrong with an attempt is
met by the next one, and how long this replica leads is told by the clock alone, so it ends in time even while an
attempt, or the whole loop, is held up.

A loop of our own, as that of the client library ends at a lost connection while the work it guards goes on, writes
local time as if it were UTC, and never counts transitions.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exporter.service.logs import Seldom
from remediator import lease_object
from remediator.cluster import object_path
from remediator.election import Election, Sight, Step
from remediator.errors import Refusal, RemediatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from remediator.cluster import Api
    from remediator.lease_object import Object

_LOG = logging.getLogger(__name__)
_LOG_SECONDS = 10.0

_FIRST_READY_SECONDS = 0.05
"""How often who has just started looks whether it is ready to contend."""

_RELEASE_ATTEMPTS = 2
"""The first may be based on a version that a renewal, whose answer was lost, has made old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Which Lease, and who we are. `duration` is in whole seconds, `pod` the name of our Pod (or of our host)."""

    namespace: str
    name: str
    duration: int
    pod: str

    def __post_init__(self) -> None:
        if self.duration < 1:
            raise ValueError(f"leading by a Lease: a duration of {self.duration} s; expected at least 1 s")

    @property
    def period(self) -> float:
        """Seconds from one look to the next: five of them in the time for which a renewal makes a leader."""
        return self.duration / 7.5

    @property
    def attempt_seconds(self) -> float:
        """How long one attempt may take: two that hang leave time for a third."""
        return self.duration / 5


class Lease:
    """One replica's part in the election. It leads while `not_leading()` is None.

    `elapsed` is a monotonic clock in seconds, `clock` the wall clock (UTC), written into the Lease for people only.
    It contends while `ready()`. `on_leading` and `on_demotion` are called from the loop, once a change.
    """

    def __init__(
        self,
        api: Api,
        settings: LeaseSettings,
        *,
        elapsed: Callable[[], float],
        clock: Callable[[], datetime],
        ready: Callable[[], bool] = lambda: True,
        on_leading: Callable[[], None] = lambda: None,
        on_demotion: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = f"{settings.pod}_{secrets.token_hex(4)}"
        self._api = api
        self._settings = settings
        self._elapsed = elapsed
        self._clock = clock
        self._ready = ready
        self._on_leading = on_leading
        self._on_demotion = on_demotion
        self._election = Election(self.identity, settings.duration)
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._path = object_path(self._collection, settings.name)
        # What the next write is based on; None when that is not known, or no Lease is there.
        self._stored: Object | None = None
        self._told = False
        self._leaving = False
        self._holder_told = ""
        self._one_at_a_time = asyncio.Lock()
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)

    def not_leading(self) -> str | None:
        """Why no change may be made now, or None while this replica leads."""
        if self.remaining() > 0:
            return None
        if self._election.holds:
            return "not the leader: the Lease is not renewed in time"
        holder = self._election.holder
        return (
            f'not the leader: the Lease is held by "{holder}"' if holder else "not the leader: nobody holds the Lease"
        )

    def remaining(self) -> float:
        """Seconds during which a write may still be under way; 0 when not leading."""
        return self._election.remaining(self._elapsed())

    async def run(self) -> None:
        """Contend for the Lease, and hold it, until cancelled or released."""
        while not self._ready():  # noqa: ASYNC110 - it is told by the clock too, so nothing could set an event
            # Not a whole period: a cluster without a leader waits for the one that starts.
            await asyncio.sleep(_FIRST_READY_SECONDS)
        while not self._leaving:
            began = self._elapsed()
            await self._attempt()
            self._tell()
            # A turn of the loop at least: an attempt may have taken more than the period.
            await asyncio.sleep(max(0.01, self._settings.period - (self._elapsed() - began)))

    async def release(self) -> None:
        """Lead no more, and let another replica take over at its next look. Ends in time, and raises nothing.

        For the end of the process, when no write is under way any more.
        """
        self._leaving = True
        self._election.leave()
        self._tell()
        if self._stored is not None and not self._election.holds:
            return
        for _ in range(_RELEASE_ATTEMPTS):
            self._stored = None
            if await self._attempt():
                return

    async def _attempt(self) -> bool:
        """Look at the Lease and do what is to be done about it; False when that failed, for whatever reason."""
        try:
            # The last attempt of the loop may still be under way when the Lease is given back.
            async with self._one_at_a_time, asyncio.timeout(self._settings.attempt_seconds):
                await self._look_and_act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt is the answer to it
            # A write may have been carried out or not: look before the next one.
            self._stored = None
            reason = str(error) if isinstance(error, RemediatorError) else f"{type(error).__name__}: {error}"
            self._seldom.warning("looking after the Lease: will retry", extra={"lease": self._path, "error": reason})
            return False
        return True

    async def _look_and_act(self) -> None:
        # The holder knows what is stored, as nobody else should write; if somebody does, its write is refused.
        if self._stored is None or not self._election.holds:
            self._stored = await self._api.get(self._path, dict[str, Any])
            self._election.saw(None if self._stored is None else self._sight(self._stored), self._elapsed())
        step = self._election.step(ready=self._ready(), now=self._elapsed())
        if step is Step.RELEASE:
            await self._give_back()
        elif step is not Step.WAIT:
            await self._hold()

    async def _hold(self) -> None:
        base = self._stored or lease_object.new(self._settings.namespace, self._settings.name)
        sent = self._elapsed()
        body = lease_object.held(base, identity=self.identity, duration=self._settings.duration, now=self._clock())
        self._stored = await self._write(body)
        self._election.won(self._sight(self._stored), sent=sent, now=self._elapsed())

    async def _give_back(self) -> None:
        if self._stored is not None:
            self._stored = await self._write(lease_object.released(self._stored, now=self._clock()))
            self._election.saw(self._sight(self._stored), self._elapsed())

    async def _write(self, body: Object) -> Object:
        """Create or replace the Lease; only an answer that shows what was written is a success."""
        if "resourceVersion" in body["metadata"]:
            stored: Object = await self._api.replace(self._path, body, dict[str, Any])
        else:
            stored = await self._api.create(self._collection, body, dict[str, Any])
        if self._sight(stored).holder != body["spec"]["holderIdentity"]:
            raise UnavailableError(Refusal.UNREADABLE, f"writing {self._path}: the answer is not what was written")
        return stored

    def _sight(self, stored: Object) -> Sight:
        return lease_object.sight_of(stored, self._settings.name)

    def _tell(self) -> None:
        """Log a change, and call who wants to know."""
        leads = self.remaining() > 0
        holder = self._election.holder
        if not leads and holder not in ("", self.identity, self._holder_told):
            self._holder_told = holder
            _LOG.info("standing by", extra={"lease": self._path, "holder": holder})
        if leads == self._told:
            return
        self._told = leads
        extra = {"lease": self._path, "identity": self.identity}
        if leads:
            _LOG.info("leading", extra=extra)
        elif self._leaving:
            _LOG.info("leading no more", extra={**extra, "reason": "stopping"})
        else:
            _LOG.warning("leading no more", extra={**extra, "reason": self.not_leading()})
        try:
            (self._on_leading if leads else self._on_demotion)()
        except Exception:  # noqa: BLE001 - logged whole
            # A bug there must not cost the Lease.
            _LOG.exception("telling of leadership: unexpected error")


def since_boot() -> float:
    """Seconds by a clock that goes on while the machine sleeps, where there is one: others' patience does too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
