"""The dry run: what would be written is imagined over what the cluster has, and the cluster has the last word."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec

from alerts.faults import Effect
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend, RecordCache
from remediator.backends.dry_run import DryRunBackend
from remediator.records import Record, State, Stored
from remediator.rule_records import object_name, to_object
from remediator.rules import Rule
from tests.remediator.samples import NOW, record

if TYPE_CHECKING:
    from remediator.cluster import Api


def rule(of: Record, version: int) -> Rule:
    """The rule as the API server sends it."""
    written = to_object(of, "resource.k8s.io/v1")
    written["metadata"] |= {"uid": f"uid-of-{of.key}", "resourceVersion": str(version)}
    return msgspec.convert(written, Rule)


class Told:
    """Keeps what was told."""

    def __init__(self) -> None:
        self.changes: list[tuple[Record | None, Record | None, bool]] = []

    def __call__(self, before: Record | None, after: Record | None, ours: bool) -> None:  # noqa: FBT001 - `OnChange`
        """Keep it."""
        self.changes.append((before, after, ours))


async def test_what_no_alert_speaks_of_any_more_is_imagined_no_more() -> None:
    dry, _, told = backend()
    made = record("link_efa")
    await dry.create(made)
    now = [NOW]
    dry._clock = lambda: now[0]
    now[0] = NOW + timedelta(minutes=14)
    assert dry.record(made.key) is not None
    now[0] = NOW + timedelta(minutes=28)
    assert len(list(dry.records())) == 1
    now[0] = NOW + timedelta(minutes=29)

    assert list(dry.records()) == []
    assert told.changes[-1][1] is None


def backend(*records: Record) -> tuple[DryRunBackend, RecordCache, Told]:
    cache, told = RecordCache(), Told()
    # It asks the API server for nothing: there is none.
    dry = DryRunBackend(DeviceTaintRuleBackend(cast("Api", None), cache), lambda: NOW)
    cache.replace([rule(one, 5) for one in records], "5")
    dry.on_change = told
    return dry, cache, told


async def test_a_record_is_imagined_and_the_cluster_keeps_what_it_has() -> None:
    dry, cache, told = backend()
    made = record("link_efa")
    await dry.create(made)

    assert dry.record(made.key) == replace(made, tainted_since=NOW)
    assert list(dry.records()) == [replace(made, tainted_since=NOW)]
    assert list(cache.all()) == []
    assert told.changes == [(None, replace(made, tainted_since=NOW), True)]


async def test_a_change_and_an_end_are_imagined_over_a_real_record() -> None:
    real, other = record("link_efa"), record("hbm")
    dry, cache, told = backend(real, other)
    held = cache.get(real.key)
    assert held is not None
    lifted = replace(held, state=State.OPTED_OUT, taint=replace(held.taint, effect=Effect.NONE))
    await dry.update(lifted)
    assert dry.record(real.key) == replace(lifted, tainted_since=NOW)

    await dry.delete(lifted)

    assert dry.record(real.key) is None
    assert [one.key for one in dry.records()] == [other.key]
    assert cache.get(real.key) == held
    assert told.changes[-1] == (replace(lifted, tainted_since=NOW), None, True)


async def test_what_the_cluster_says_later_ends_what_was_imagined() -> None:
    real = record("link_efa")
    dry, cache, told = backend(real)
    held = cache.get(real.key)
    assert held is not None
    await dry.delete(held)
    cache.put(rule(real, 9))

    assert dry.record(real.key) == replace(held, stored=Stored(object_name(real.key), f"uid-of-{real.key}", "9"))
    before, after, _ = told.changes[-1]
    assert (before, after) == (None, dry.record(real.key))

    cache.remove(rule(real, 10))
    assert dry.record(real.key) is None
    assert told.changes[-1][1:] == (None, False)
