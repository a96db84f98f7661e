"""Where a record is read anew and written: its rule, or the annotation of its Node. One class each.

Each write is guarded by the version it is based on. What has changed meanwhile is a conflict, to be decided anew by
whoever asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from remediator import node_records
from remediator.backends.device_taint_rule import collection
from remediator.cluster import RESOURCE_API, object_path
from remediator.errors import ConflictError, NotServedError, Refusal, UnavailableError
from remediator.inventory import Node
from remediator.node_cache import NODES
from remediator.records import MANAGER
from remediator.rule_records import from_object, object_name, to_object
from remediator.rules import Rule
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from datetime import datetime

    from remediator.cli.reading import Cluster
    from remediator.records import Key, Record


class Store(Protocol):
    """Raises `ConflictError`, or `UnavailableError`; of the refusal INVALID it is certain that nothing was written."""

    async def read(self, key: Key) -> Record | None:
        """The record as it is now; None when it is not kept here (any more)."""

    async def update(self, before: Record, after: Record) -> None:
        """Write the record over the very one that was read."""


class RuleStore:
    """Records that are rules."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read(self, key: Key) -> Record | None:
        """The record as it is now; None when it is not there."""
        if self._cluster.version is None:
            return None
        rule = await self._cluster.api.get(self._path(key), Rule)
        record = None if rule is None else from_object(rule)
        if rule is not None and record is None:
            says = f'reading rule "{rule.metadata.name}": it carries our mark no more, or not what it stands for'
            raise UnavailableError(Refusal.INVALID, says)
        return record

    async def update(self, before: Record, after: Record) -> None:  # noqa: ARG002 - `after` names the version
        """Apply over the very version that was read."""
        body = to_object(after, f"resource.k8s.io/{self._cluster.version}")
        # Force: the fields were first owned by the same manager's create, which counts as another owner.
        await self._cluster.api.apply(self._path(after.key), body, Rule, fieldManager=MANAGER, force="true")

    def _path(self, key: Key) -> str:
        if self._cluster.version is None:
            raise NotServedError(f"addressing {RESOURCE_API} devicetaintrules: the API server serves no version of it")
        return object_path(collection(self._cluster.version), object_name(key))


class NodeStore:
    """Records in the annotation of their Nodes. `now` is the time that changed taints get."""

    def __init__(self, cluster: Cluster, now: datetime) -> None:
        self._cluster = cluster
        self._now = now

    async def read(self, key: Key) -> Record | None:
        """The record as it is now; None when it is not there."""
        node = await self._cluster.node(key.node)
        return None if node is None else self._records(node).get(key)

    async def update(self, before: Record, after: Record) -> None:
        """Patch annotation and taints of the Node, both or neither, if the record is still as it was."""
        key = after.key
        node = await self._cluster.node(key.node)
        held = {} if node is None else self._records(node)
        current = held.get(key)
        if node is None or current is None or not _same(current, before):
            raise ConflictError(f'writing record "{key}": it has changed since it was read')
        if after.taint.effect is not current.taint.effect:
            after = replace(after, tainted_since=self._now)
        change = node_records.patch(node, (held | {key: after}).values(), now=self._now)
        written = await self._cluster.api.merge(object_path(NODES, key.node), change, Node, fieldManager=MANAGER)
        if written is None:
            raise ConflictError(f'writing record "{key}": its Node is gone')

    def _records(self, node: Node) -> dict[Key, Record]:
        try:
            return node_records.read(node, driver=self._cluster.driver)
        except node_records.DamagedRecordsError as error:
            raise UnavailableError(Refusal.INVALID, str(error)) from error


class Stores:
    """Both of them."""

    def __init__(self, cluster: Cluster, now: datetime) -> None:
        self._rules = RuleStore(cluster)
        self._nodes = NodeStore(cluster, now)

    def of(self, record: Record) -> Store:
        """Where the record is kept."""
        return self._nodes if isinstance(record.target, NodeTarget) else self._rules

    def other(self, record: Record) -> Store:
        """Where it would be, had it moved."""
        return self._rules if isinstance(record.target, NodeTarget) else self._nodes


def _same(one: Record, other: Record) -> bool:
    """Whether they differ in nothing but the version of the Node, which has heartbeats."""
    return replace(one, stored=None) == replace(other, stored=None)
