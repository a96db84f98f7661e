"""The remediator's own metrics. Names and labels are public: see CHANGELOG before touching one.

Counters are born at zero with every value of their closed label sets, so that a first increase is seen. The record
series are built anew each scrape from the records themselves; while those are not known, there are none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from exporter.service.build_info import service_registry
from remediator.budget import Limit
from remediator.decide import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from remediator.budget import Budget
    from remediator.records import Record
    from remediator.surroundings import Surroundings

RESULTS = (
    "accepted",
    "malformed",
    "unauthorized",
    "too_large",
    "timeout",
    "disconnected",
    "not_ready",
    "not_leading",
    "failed",
)
"""What became of one webhook request."""

EVENT_RESULTS = ("ok", "failed", "dropped")
ACTIONS = ("create", "update", "delete")
ACTION_RESULTS = ("ok", "conflict", "failed")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One registry with everything in it."""

    def __init__(
        self,
        *,
        records: Callable[[], Iterable[Record]],
        backends: tuple[str, ...],
        surroundings: Surroundings,
        leads: Callable[[], bool],
        budget: Budget,
        clock: Callable[[], datetime],
    ) -> None:
        self.registry: CollectorRegistry = service_registry("neuron_remediator_build_info")
        self.notifications = Counter(
            "neuron_remediator_notifications",
            "Webhook requests by what became of them.",
            ["result"],
            registry=self.registry,
        )
        self.alerts = Counter(
            "neuron_remediator_alerts",
            "Alerts in accepted notifications by what became of them.",
            ["outcome"],
            registry=self.registry,
        )
        self.truncated = Counter(
            "neuron_remediator_truncated_alerts",
            "Alerts that Alertmanager left out of notifications; max_alerts must be 0 on the route.",
            registry=self.registry,
        )
        self.actions = Counter(
            "neuron_remediator_actions",
            "Writes of records by result.",
            ["action", "backend", "result"],
            registry=self.registry,
        )
        self.decide_duration = Histogram(
            "neuron_remediator_decide_duration_seconds",
            "Time from the receipt of a notification to the decision on one of its alerts.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.apply_duration = Histogram(
            "neuron_remediator_apply_duration_seconds",
            "Time from the receipt of a notification to the acknowledged write for one of its alerts.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.heartbeat = Gauge(
            "neuron_remediator_heartbeat_timestamp_seconds",
            "When the heartbeat alert was last received; 0 until the first one.",
            registry=self.registry,
        )
        self.leader = Gauge("neuron_remediator_leader", "1 on the replica that acts on alerts.", registry=self.registry)
        # Who knows nothing of the cluster must not say that nothing is held.
        self.leader.set_function(lambda: leads() and surroundings.not_ready() is None)
        self.events = Counter(
            "neuron_remediator_events",
            "Kubernetes Events about changes, by what became of them.",
            ["result"],
            registry=self.registry,
        )
        for result in EVENT_RESULTS:
            self.events.labels(result)
        for result in RESULTS:
            self.notifications.labels(result)
        for outcome in Outcome:
            self.alerts.labels(outcome)
        for backend in backends:
            for action in ACTIONS:
                for result in ACTION_RESULTS:
                    self.actions.labels(action, backend, result)
        self.registry.register(_ClusterCollector(records, surroundings, budget, clock))


class _ClusterCollector(Collector):
    """What the cluster holds → records, nodes and the budget; nothing while that is not known."""

    LABELS = ("node", "device", "fault", "effect", "state", "latched", "episode")

    def __init__(
        self,
        records: Callable[[], Iterable[Record]],
        surroundings: Surroundings,
        budget: Budget,
        clock: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._surroundings = surroundings
        self._budget = budget
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        families = {
            "record": GaugeMetricFamily(
                "neuron_remediator_record",
                "1 for each fault on a device that a record in the cluster stands for.",
                labels=self.LABELS,
            ),
            "node": GaugeMetricFamily(
                "neuron_remediator_node",
                "1 for each Node that is there and has Neuron devices, or that an alert was about.",
                labels=("node",),
            ),
            "limit": GaugeMetricFamily(
                "neuron_remediator_budget_limit",
                "Targets that may be unavailable, and newly disrupted within ten minutes; +Inf without a limit.",
                labels=("budget",),
            ),
            "used": GaugeMetricFamily(
                "neuron_remediator_budget_used",
                "Targets that are unavailable through us or the driver, and newly disrupted within ten minutes.",
                labels=("budget",),
            ),
        }
        if self._surroundings.not_ready() is None:
            self._fill(families)
        return families.values()

    def _fill(self, families: dict[str, GaugeMetricFamily]) -> None:
        now = self._clock()
        for record in self._records():
            families["record"].add_metric(_labels(record), 1)
        for name in self._surroundings.nodes():
            families["node"].add_metric((name,), 1)
        for which in Limit:
            limit = self._budget.limit(which)
            families["limit"].add_metric((which,), math.inf if limit is None else limit)
            if limit is not None or which is Limit.UNAVAILABLE:
                # New targets are counted only where their number is limited: 0 would be a lie.
                families["used"].add_metric((which,), self._budget.used(which, now))


def _labels(record: Record) -> tuple[str, ...]:
    key = record.key
    latched = "true" if record.latched else "false"
    return (
        key.node,
        str(key.device),
        key.fault,
        str(record.taint.effect),
        str(record.state),
        latched,
        record.episode,
    )
