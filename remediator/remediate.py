"""Carries one notification through: alert → decision → write.

It owns order and repetition, not judgement: decisions are `remediator.decide`'s. Every step may be repeated, so a
notification that failed half-way is simply asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from exporter.service.logs import Seldom
from remediator.decide import Action, Cleared, Delete, Fired, Outcome, decide_cleared, decide_fired, standing, triage
from remediator.errors import ConflictError, Refusal, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from remediator.backends import Backend
    from remediator.metrics import Metrics
    from remediator.notification import Alert, Notification
    from remediator.surroundings import Surroundings, Views
    from remediator.writing import Writer

_LOG = logging.getLogger(__name__)

_WORKERS = 32
"""Alerts of one notification worked on at once; more than this gains nothing at the API server."""

_ALERTS_A_TURN = 100
"""Alerts that need no write, seen to before others have their turn on the loop."""

_LOG_SECONDS = 10.0

_SPOKE_OF_US = frozenset(
    {
        Outcome.APPLIED,
        Outcome.UNCHANGED,
        Outcome.CLEARED,
        Outcome.WITHHELD,
        Outcome.COVERED,
        Outcome.RELEASED,
        Outcome.OPTED_OUT,
    }
)
"""Outcomes that prove that an alert was about this cluster: node names repeat, so a guess would not do."""

_AMISS = {
    Outcome.IGNORED_UNKNOWN_ALERT: "the remediation label says what is asked for; the route may be too wide",
    Outcome.IGNORED_UNKNOWN_FAULT: "the fault label must be one of the table's",
    Outcome.IGNORED_NO_IDENTITY: "node, device and fault must be there, node the name of a Node, device a number",
    Outcome.IGNORED_OTHER_CLUSTER: "the cluster label names another cluster; see --cluster",
    Outcome.IGNORED_UNKNOWN_NODE: "there is no Node of that name; the node label must be the name of the Node",
    Outcome.IGNORED_BEFORE_NODE: "the alert began before the Node was made: it speaks of the machine before",
}
"""What to look at where an alert is not acted on for a reason that is not in the course of things."""

_IDENTITY = ("alertname", "cluster", "node", "device", "fault")
_LABEL_LIMIT = 128

_MORE_ATTEMPTS = 5
"""Decisions on one alert after a conflict; one that does not end is the sender's to repeat."""


class Remediator:
    """Turns notifications into records.

    `cluster` is the one whose alerts count, if it is named. `clock` is the wall clock (UTC); `elapsed` is a monotonic
    clock in seconds, for durations.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        surroundings: Surroundings,
        views: Views,
        writer: Writer,
        cluster: str | None,
        metrics: Metrics,
        clock: Callable[[], datetime],
        elapsed: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._surroundings = surroundings
        self._views = views
        self._writer = writer
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._elapsed = elapsed
        # Alertmanager asks again every second, for each alert: an API server that is away must not fill the log.
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)
        self._cluster_learnt: str | None = None

    def not_ready(self) -> str | None:
        """Why this replica could not act on anything even if it led, or None."""
        return self._surroundings.not_ready()

    def not_leading(self) -> str | None:
        """Why another replica is to be asked, or None."""
        return self._writer.not_leading()

    async def handle(self, notification: Notification) -> None:
        """Act on every alert of the notification.

        Raises `UnavailableError` when at least one could not be carried out; the others have been.
        """
        self._metrics.truncated.inc(max(notification.truncated_alerts, 0))
        if notification.truncated_alerts > 0:
            _LOG.error(
                "notification is truncated: alerts were lost; expected max_alerts 0 on the route",
                extra={"truncated": notification.truncated_alerts},
            )
        received, started = self._clock(), self._elapsed()
        alerts = iter(notification.alerts)
        failures: list[UnavailableError] = []

        async def work() -> None:
            for count, alert in enumerate(alerts, 1):
                outcome = Outcome.FAILED  # also of what is cancelled
                try:
                    outcome = await self._alert(alert, received, started)
                except UnavailableError as error:
                    failures.append(error)
                finally:
                    self._metrics.alerts.labels(outcome).inc()
                if count % _ALERTS_A_TURN == 0:
                    await asyncio.sleep(0)

        if len(notification.alerts) == 1:  # as the route that ships sends them
            await work()
        else:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(notification.alerts), _WORKERS)):
                    group.create_task(work())
        if failures:
            raise failures[0]

    async def _alert(self, alert: Alert, received: datetime, started: float) -> Outcome:
        meaning = self._triage(alert)
        if isinstance(meaning, Outcome):
            if meaning is Outcome.HEARTBEAT:
                self._metrics.heartbeat.set(received.timestamp())
            self._tell_if_ignored(alert, meaning)
            return meaning
        try:
            async with self._writer.alone(meaning.key):
                outcome = await self._settle(meaning, started)
        except UnavailableError as error:
            self._seldom.warning("acting on an alert: failed", extra={"record": str(meaning.key), "error": str(error)})
            raise
        except Exception as error:
            # A bug that one alert meets must cost neither the others nor this one: it is asked for again.
            _LOG.exception("acting on an alert: unexpected error", extra={"record": str(meaning.key)})
            raise UnavailableError(Refusal.INTERNAL, f"unexpected {type(error).__name__}") from error
        self._tell_if_ignored(alert, outcome)
        self._learn_cluster(alert, outcome)
        return outcome

    def _tell_if_ignored(self, alert: Alert, outcome: Outcome) -> None:
        """Say what is amiss with an alert that was answered and led to nothing: its sender will not ask again."""
        hint = _AMISS.get(outcome)
        if hint is not None:
            told = {label: alert.labels.get(label, "")[:_LABEL_LIMIT] for label in _IDENTITY}
            self._seldom.warning(f"alert not acted on: {outcome}", extra={**told, "hint": hint})

    def _triage(self, alert: Alert) -> Fired | Cleared | Outcome:
        """Read the alert. Without --cluster, ours is the cluster whose alerts have met a record or a node of ours."""
        named = alert.labels.get("cluster") or None
        expected = self._cluster or (self._cluster_learnt if named else None)
        return triage(alert, cluster=expected)

    def _learn_cluster(self, alert: Alert, outcome: Outcome) -> None:
        if self._cluster_learnt is None and outcome in _SPOKE_OF_US:
            self._cluster_learnt = alert.labels.get("cluster") or None

    async def _settle(self, meaning: Fired | Cleared, started: float) -> Outcome:
        """Decide and act, anew as long as somebody else changes the record meanwhile."""
        try:
            return await self._decide_and_act(meaning, started)
        except ConflictError:
            return await self._settle_conflict(meaning, started)

    async def _settle_conflict(self, meaning: Fired | Cleared, started: float) -> Outcome:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(ConflictError),
            stop=stop_after_attempt(_MORE_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.02, max=0.5),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    await self._backend.refresh(meaning.key)
                    outcome = await self._decide_and_act(meaning, started)
        except ConflictError as error:
            raise UnavailableError(
                Refusal.CONFLICT,
                f'writing record "{meaning.key}": still in conflict after {1 + _MORE_ATTEMPTS} attempts',
            ) from error
        return outcome

    async def _decide_and_act(self, meaning: Fired | Cleared, started: float) -> Outcome:
        decision = await self._decide(meaning)
        self._metrics.decide_duration.observe(self._elapsed() - started)
        if isinstance(decision, Outcome):
            return decision
        await self._writer.carry_out(decision)
        self._metrics.apply_duration.observe(self._elapsed() - started)
        return Outcome.CLEARED if isinstance(decision, Delete) else standing(decision.record, Outcome.APPLIED)

    async def _decide(self, meaning: Fired | Cleared) -> Action | Outcome:
        if isinstance(meaning, Cleared):
            if self._backend.record(meaning.key) is None:
                # Somebody has seen it: memory may be behind, and the next such alert may be minutes away.
                await self._backend.refresh(meaning.key)
            return decide_cleared(meaning, record=self._backend.record(meaning.key))
        node = await self._surroundings.node(meaning.key.node)
        held = self._backend.record(meaning.key)
        if node and held and held.node_uid != node.metadata.uid:
            # One of the two is of a machine that is gone; memory may be behind, and which one it is must be certain.
            node = await self._surroundings.node(meaning.key.node, live=True)
        return decide_fired(
            meaning,
            node=node,
            # Read after the await: the record may have changed meanwhile.
            record=self._backend.record(meaning.key),
            view=self._views.of(meaning.key, node),
        )
