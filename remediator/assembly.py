"""Puts the parts of a remediator together, the same way in the process and in tests. It starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alerts.faults import FORMER
from remediator.budget import DEFAULT, Budget, Limits
from remediator.inventory_metrics import InventoryCollector
from remediator.leveller import Leveller
from remediator.metrics import Metrics
from remediator.records import State
from remediator.remediate import Remediator
from remediator.surroundings import Views
from remediator.traces import REMOVED, UPDATE, Change
from remediator.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from remediator.backends import TellingBackend
    from remediator.election import Leadership
    from remediator.inventory_metrics import Fleet
    from remediator.policy import Policy
    from remediator.records import Record
    from remediator.surroundings import Surroundings
    from remediator.traces import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the operator has set: whose alerts count, what each fault leads to, how much at once."""

    policy: Policy
    limits: Limits = DEFAULT
    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A remediator, ready to be served and run."""

    remediator: Remediator
    leveller: Leveller
    writer: Writer
    metrics: Metrics
    budget: Budget


def assemble(
    *,
    backend: TellingBackend,
    held: Callable[[], Iterable[Record]],
    surroundings: Surroundings,
    leadership: Leadership,
    terms: Terms,
    traces: Traces,
    clock: Callable[[], datetime],
    elapsed: Callable[[], float],
    fleet: Fleet | None = None,
    per_device: bool = False,
    former: Mapping[str, str | None] = FORMER,
    on_record: Callable[[], None] = lambda: None,
    acts: bool = True,
) -> Parts:
    """Put them together.

    `held` gives the records that are really in the cluster, which in a dry run are not the backend's; `acts` is false
    there, so that nobody takes it for the leader. `clock` is the wall clock (UTC), `elapsed` a monotonic clock in
    seconds. `on_record` is called after a record came, changed or went. With a `fleet`, its series are exported too,
    with `per_device` one for each device there is. `former` are the names that faults had before (`alerts.faults`).
    """
    budget = Budget(terms.limits, surroundings)
    metrics = Metrics(
        records=held,
        backends=backend.names,
        surroundings=surroundings,
        leads=lambda: acts and leadership.not_leading() is None,
        budget=budget,
        clock=clock,
    )
    if fleet is not None:
        metrics.registry.register(InventoryCollector(fleet, held, per_device=per_device))
    writer = Writer(backend=backend, leadership=leadership, budget=budget, traces=traces, metrics=metrics, clock=clock)
    views = Views(surroundings, policy=terms.policy, budget=budget, clock=clock)
    leveller = Leveller(
        backend=backend,
        surroundings=surroundings,
        views=views,
        writer=writer,
        clock=clock,
        elapsed=elapsed,
        former=former,
    )

    def changed(before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        if before is not None and after is not None and replace(before, stored=after.stored) == after:
            # Another has written what is no part of a record: the eviction controller does, to each new rule.
            return
        budget.changed(before, after)
        on_record()
        if before is not None:
            # A new one is level, as whoever made it has just decided.
            leveller.poke()
        if writer.saw(before, after) or before is None or leadership.not_leading() is not None:
            return
        if after is None and not ours:
            traces.changed(Change(REMOVED, before, None))
        elif after is not None and _released(before, after) and after.released_until > clock():
            # An operator's command has written it, which leaves no trace but on the record. That it was ended is told
            # when it is levelled.
            traces.changed(Change(UPDATE, before, after))

    backend.on_change = changed
    remediator = Remediator(
        backend=backend,
        surroundings=surroundings,
        views=views,
        writer=writer,
        cluster=terms.cluster,
        metrics=metrics,
        clock=clock,
        elapsed=elapsed,
    )
    return Parts(remediator=remediator, leveller=leveller, writer=writer, metrics=metrics, budget=budget)


def _released(before: Record, after: Record) -> bool:
    """Whether an operator's word has come, or has changed: nobody else makes a record released."""
    word = (after.state, after.released_until, after.released_by)
    return after.state is State.RELEASED and word != (before.state, before.released_until, before.released_by)
