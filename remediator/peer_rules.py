"""Our peer rules as last seen. Pure.

It sees our own writes at once; an event older than what is held changes nothing. It keeps what the cluster holds, not
what should be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from remediator.rules import Rule


def _ignore() -> None:
    """Tell nobody."""


class PeerRules:
    """The rules by name; a sink of `remediator.listwatch`, through `remediator.foreign_rules.Sorting`.

    `on_change` is called after others have made, changed or removed one. It is called once a change, so in bursts, and
    must not block.
    """

    def __init__(self, on_change: Callable[[], None] = _ignore) -> None:
        self._on_change = on_change
        self._rules: dict[str, Rule] = {}
        # UID → version of what we deleted while events about it may still be under way.
        self._deleted: dict[str, int] = {}
        # The newest version that a list or an event has told: all that happened until then is known.
        self._told = 0

    def replace(self, objects: list[Rule], resource_version: str) -> None:
        """Take the whole list; what we wrote after it was made stays.

        A list older than what was told before is of a cluster whose history went back (etcd from a backup): nothing
        that is held can be relied on then.
        """
        listed_at = int(resource_version)
        rewound = listed_at < self._told
        self._told = listed_at
        before = dict(self._rules)
        listed = {rule.metadata.uid for rule in objects}
        self._rules = {
            name: rule
            for name, rule in self._rules.items()
            if not rewound and (rule.metadata.uid in listed or _version(rule) > listed_at)
        }
        # A list may be older than our deletion, and even than the rule; one that is neither ends the wait for events.
        self._deleted = {
            uid: version
            for uid, version in self._deleted.items()
            if not rewound and (uid in listed or version > listed_at)
        }
        for rule in objects:
            self._take(rule)
        if self._rules != before:
            self._on_change()

    def put(self, object_: Rule) -> None:
        """Take one rule that was added or changed, as a watch tells it."""
        self._told = max(self._told, _version(object_))
        if self._take(object_):
            self._on_change()

    def remove(self, object_: Rule) -> None:
        """Drop one rule, as a watch tells it; its successor of the same name stays. One that is not held is no error.

        Told of every other rule too, so that it is known how far the watch has got.
        """
        self._told = max(self._told, _version(object_))
        self._deleted.pop(object_.metadata.uid, None)
        if self._drop(object_.metadata.name, object_.metadata.uid):
            self._on_change()

    def answered(self, rule: Rule) -> bool:
        """Take one rule as a write or a read of ours was answered; says whether that was news.

        An answer that comes after the watch has told as much is old news: the rule may be gone by now.
        """
        return _version(rule) > self._told and self._take(rule)

    def forget(self, rule: Rule) -> None:
        """Drop a rule that we deleted in that version, for good: events about it may still be under way."""
        # One that is not held has had its last event: nothing is remembered that no event would take away again.
        if self._drop(rule.metadata.name, rule.metadata.uid):
            self._deleted[rule.metadata.uid] = _version(rule)

    def all(self) -> Collection[Rule]:
        """Every one of them. Live: read it at once."""
        return self._rules.values()

    def _take(self, rule: Rule) -> bool:
        # One that is still there while it is deleted is held by a finalizer: it taints, so it is shown.
        hidden = rule.metadata.uid in self._deleted and rule.metadata.deletion_timestamp is None
        held = self._rules.get(rule.metadata.name)
        if hidden or (held is not None and _version(held) >= _version(rule)):
            return False
        self._rules[rule.metadata.name] = rule
        return True

    def _drop(self, name: str, uid: str) -> bool:
        held = self._rules.get(name)
        if held is None or held.metadata.uid != uid:
            return False
        del self._rules[name]
        return True


def _version(rule: Rule) -> int:
    return int(rule.metadata.resource_version)
