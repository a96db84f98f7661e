"""Carries out what `remediator.peers` asks for: makes, mends and removes peer rules, while this replica leads.

It looks when poked, and every few seconds, as a write that failed or met another is left to the next look. Records are
none of its business, nor is a budget: a peer rule keeps nobody off anything.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from exporter.service.logs import Seldom
from remediator.backends.device_taint_rule import collection
from remediator.cluster import object_path
from remediator.errors import ConflictError, RemediatorError
from remediator.peer_object import harmless, is_peer_rule, to_object
from remediator.peers import changes
from remediator.records import MANAGER
from remediator.rules import Rule
from remediator.traces import CREATE, DELETE, UPDATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from remediator.cluster import Api
    from remediator.election import Leadership
    from remediator.peer_object import PeerRule
    from remediator.peer_rules import PeerRules

_LOG = logging.getLogger(__name__)

BACKEND = "peer"
"""How metrics call it."""

LOOK_SECONDS = 10.0
"""The longest time between two looks."""

_PAUSE_SECONDS = 0.5
"""The shortest: a burst of changes is looked at once."""

_WORKERS = 8  # the records' writes go over the same connections, and come first
_LOG_SECONDS = 60.0


class _Job(NamedTuple):
    """One write, of the rule of that name; `before` is what is held of it."""

    action: str
    name: str
    write: Callable[[], Awaitable[None]]
    before: Rule | None = None


class PeerKeeper:
    """Keeps the cluster's peer rules those that are `wanted()`.

    `version()` is the API version that serves DeviceTaintRules; while it is empty, nothing is done. `not_ready()` says
    why too little is known to decide, or None. `count(action, result)` is told of each write. `elapsed` is a monotonic
    clock in seconds.
    """

    def __init__(
        self,
        api: Api,
        rules: PeerRules,
        *,
        wanted: Callable[[], Mapping[str, PeerRule]],
        version: Callable[[], str],
        not_ready: Callable[[], str | None],
        leadership: Leadership,
        count: Callable[[str, str], None],
        elapsed: Callable[[], float],
    ) -> None:
        self._api = api
        self._rules = rules
        self._wanted = wanted
        self._version = version
        self._not_ready = not_ready
        self._leadership = leadership
        self._count = count
        self._poked = asyncio.Event()
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)

    def poke(self) -> None:
        """Have a look soon: something that is wanted or held has changed."""
        self._poked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._poked.clear()
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the next look may fare better, and nothing else depends on this one
                _LOG.exception("keeping peer rules: unexpected error")
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._poked.wait()

    async def look(self) -> None:
        """Compare once, and write what differs: first what a hand has made harmful, last what is missing."""
        version = self._version()
        if not version or self._leadership.not_leading() or self._not_ready():
            return
        due = changes(self._wanted(), tuple(self._rules.all()))
        delete = [_Job(DELETE, one.metadata.name, partial(self._delete, version, one), one) for one in due.delete]
        mend = [_Job(UPDATE, one.name, partial(self._mend, version, one, over), over) for one, over in due.mend]
        await self._work(version, sorted([*delete, *mend], key=lambda job: job.before is None or harmless(job.before)))
        # Afterwards, as a name may have had to be made free.
        await self._work(version, [_Job(CREATE, one.name, partial(self._create, version, one)) for one in due.create])

    async def _work(self, version: str, jobs: Iterable[_Job]) -> None:
        left = iter(jobs)

        async def work() -> None:
            for job in left:
                await self._carry_out(version, job)

        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(work())

    async def _carry_out(self, version: str, job: _Job) -> None:
        """Write, while the Lease is certain. What fails is left to the next look."""
        remaining = self._leadership.remaining()
        if remaining <= 0:
            return
        result = "failed"
        try:
            async with asyncio.timeout(None if math.isinf(remaining) else remaining):
                await job.write()
            result = "ok"
        except ConflictError:
            result = "conflict"
            await self._look_again(version, job.name)
        except (RemediatorError, TimeoutError) as error:
            self._failed(job.name, error)
        except Exception:  # noqa: BLE001 - a bug that one rule meets must not keep the others from being mended
            _LOG.exception("writing a peer rule: unexpected error", extra={"rule": job.name})
        finally:
            self._count(job.action, result)

    async def _look_again(self, version: str, name: str) -> None:
        """Read a rule that is not as it was taken to be; the next look decides on it."""
        try:
            rule = await self._api.get(object_path(collection(version), name), Rule)
        except RemediatorError as error:
            self._failed(name, error)
            return
        if rule is None:
            for held in tuple(self._rules.all()):
                if held.metadata.name == name:
                    self._rules.forget(held)
            self.poke()
        elif not is_peer_rule(rule):
            told = "making a peer rule: one of that name is there without our mark; delete it by hand"
            self._seldom.warning(told, extra={"rule": name})
        elif self._rules.answered(rule):
            self.poke()

    def _failed(self, name: str, error: Exception) -> None:
        told = str(error) or "no answer while the Lease is certain"
        self._seldom.warning("writing a peer rule: failed, will retry", extra={"rule": name, "error": told})

    async def _create(self, version: str, wanted: PeerRule) -> None:
        body = to_object(wanted, f"resource.k8s.io/{version}")
        self._rules.answered(await self._api.create(collection(version), body, Rule, fieldManager=MANAGER))

    async def _mend(self, version: str, wanted: PeerRule, over: Rule) -> None:
        path = object_path(collection(version), wanted.name)
        body = to_object(wanted, f"resource.k8s.io/{version}", over=over)
        # Force: whatever a hand has changed belongs to its field manager now.
        self._rules.answered(await self._api.apply(path, body, Rule, fieldManager=MANAGER, force="true"))

    async def _delete(self, version: str, rule: Rule) -> None:
        metadata = rule.metadata
        path = object_path(collection(version), metadata.name)
        await self._api.delete(path, uid=metadata.uid, resource_version=metadata.resource_version)
        self._rules.forget(rule)
