"""DeviceTaintRules of other people, as far as they taint devices of ours. Pure.

They are shown, and never touched. What carries our mark and says which fault it stands for is a record, what carries it
and is named like a peer's flag is one: neither is a concern of this module, which only sends each rule to where it
belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from alerts.faults import Effect
from remediator.inventory import DeviceTaint
from remediator.peer_object import is_peer_rule
from remediator.records import MANAGED_BY, MANAGER
from remediator.rule_records import key_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from remediator.rules import Rule


class ForeignRule(msgspec.Struct, frozen=True, gc=False):
    """A rule as it is kept. An empty `pool` or `device` matches every one of them, as in the API."""

    name: str
    pool: str
    device: str
    taint: DeviceTaint


class ForeignRules:
    """Other people's rules by name, those of other drivers left out; kept current by whoever watches them."""

    def __init__(self, driver: str) -> None:
        self._drivers = ("", driver)  # without a driver, a rule taints ours too
        self._rules: dict[str, ForeignRule] = {}

    def replace(self, objects: list[Rule], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        self._rules = {}
        for rule in objects:
            self.put(rule)

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed."""
        if object_.spec.device_selector.driver in self._drivers:
            self._rules[object_.metadata.name] = _kept(object_)
        else:
            self.remove(object_)

    def remove(self, object_: Rule) -> None:
        """Drop one rule."""
        self._rules.pop(object_.metadata.name, None)

    def all(self) -> Collection[ForeignRule]:
        """Every one of them. Live: read it at once."""
        return self._rules.values()


class RuleSink(Protocol):
    """Where rules go (`remediator.listwatch.Sink`)."""

    def replace(self, objects: list[Rule], resource_version: str) -> None:
        """Take the whole list."""

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed."""

    def remove(self, object_: Rule) -> None:
        """Drop one rule."""


class Sorting:
    """Sends our rules to the records or to the peer rules, and everything that is neither to the foreign ones.

    A rule whose mark a hand has taken away leaves ours, and one that is given it joins them. One that carries our mark
    and says neither which fault it stands for nor that it is a peer's goes to both records and foreign ones: the
    records warn of it, and it taints.
    """

    def __init__(self, records: RuleSink, foreign: RuleSink, peers: RuleSink) -> None:
        self._records = records
        self._foreign = foreign
        self._peers = peers

    def replace(self, objects: list[Rule], resource_version: str) -> None:
        """Take the whole list."""
        self._records.replace([rule for rule in objects if _may_be_record(rule)], resource_version)
        self._peers.replace([rule for rule in objects if is_peer_rule(rule)], resource_version)
        self._foreign.replace([rule for rule in objects if _is_foreign(rule)], resource_version)

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed."""
        # Each is told of every rule, if only that it is none of its own: ours count the versions that were told.
        sorting = (
            (self._records, _may_be_record(object_)),
            (self._peers, is_peer_rule(object_)),
            (self._foreign, _is_foreign(object_)),
        )
        for sink, belongs in sorting:
            if belongs:
                sink.put(object_)
            else:
                sink.remove(object_)

    def remove(self, object_: Rule) -> None:
        """Drop one rule."""
        for sink in (self._records, self._peers, self._foreign):
            sink.remove(object_)


def _may_be_record(rule: Rule) -> bool:
    return rule.metadata.labels.get(MANAGED_BY) == MANAGER and not is_peer_rule(rule)


def _is_foreign(rule: Rule) -> bool:
    return key_of(rule) is None and not is_peer_rule(rule)


def _kept(rule: Rule) -> ForeignRule:
    selector, taint = rule.spec.device_selector, rule.spec.taint
    return ForeignRule(
        name=rule.metadata.name,
        pool=selector.pool,
        device=selector.device,
        taint=DeviceTaint(taint.key, taint.value, Effect.read(taint.effect)),
    )
