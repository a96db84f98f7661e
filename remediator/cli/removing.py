"""Takes away what carries our mark, object by object, several at once, and keeps account of it.

Each delete and each patch is guarded by the version that was looked at. What has changed meanwhile is read and looked
at again: it goes only if it is still ours, and still meant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remediator.backends.device_taint_rule import collection
from remediator.cli.lease_watch import LeaseObject, lease_path
from remediator.cli.leftovers import change_of, of_node, of_rule
from remediator.cluster import object_path
from remediator.errors import ConflictError, Refusal, RemediatorError, UnavailableError
from remediator.inventory import Node
from remediator.node_cache import NODES
from remediator.records import MANAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from remediator.cli.leftovers import Leftover, Scope
    from remediator.cli.reading import Cluster
    from remediator.rules import Rule

AT_ONCE = 16
"""Requests under way at a time."""

_ATTEMPTS = 8
_HOPELESS = frozenset({Refusal.UNREACHABLE, Refusal.TIMEOUT, Refusal.UNAUTHORIZED})
"""What is wrong with one request for such a reason is wrong with all."""


@dataclass(slots=True)
class Account:
    """What became of one object: nothing yet, gone, or why not."""

    of: Leftover
    done: bool = False
    says: str = "not tried"


async def remove_all(
    remover: Remover, accounts: Iterable[Account], closed: Callable[[Account], None] = lambda _account: None
) -> None:
    """Take everything away, and fill the accounts as it goes; `closed` is told of each.

    What one object alone is to blame for concerns no other; when the API server is not there, the rest is not tried.
    """
    waiting = deque(accounts)

    async def work() -> None:
        while waiting:
            account = waiting.popleft()
            account.says = "it was interrupted, and may be gone"
            try:
                await remover.remove(account.of)
            except RemediatorError as error:
                account.says = str(error)
                if isinstance(error, UnavailableError) and error.refusal in _HOPELESS:
                    waiting.clear()
            else:
                account.done, account.says = True, ""
            closed(account)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(waiting))):
            group.create_task(work())


class Remover:
    """Takes away one object at a time. `now` is the time that changed taints of a Node would get."""

    def __init__(self, cluster: Cluster, scope: Scope, now: datetime) -> None:
        self._cluster = cluster
        self._scope = scope
        self._now = now

    async def remove(self, one: Leftover) -> None:
        """Take it away, as it is by then; one that is gone, or no longer ours, is no error."""
        current: Rule | Node | LeaseObject | None = one.of
        for _ in range(_ATTEMPTS):
            if current is None:
                return
            try:
                await self._attempt(current)
            except ConflictError:
                current = await self._again(current)
            else:
                return
        raise ConflictError(f"removing {one.kind} {one.name}: it was changed by others {_ATTEMPTS} times in a row")

    async def _attempt(self, current: Rule | Node | LeaseObject) -> None:
        if isinstance(current, Node):
            await self._clear(current)
        elif isinstance(current, LeaseObject) or of_rule(current, self._scope) is not None:
            metadata = current.metadata
            path = self._path(current)
            await self._cluster.api.delete(path, uid=metadata.uid, resource_version=metadata.resource_version)

    async def _clear(self, node: Node) -> None:
        """Take our annotation, or a part of it, and our taints off a Node."""
        driver = self._cluster.driver
        if of_node(node, self._scope, driver=driver) is None:
            return
        change = change_of(node, self._scope, driver=driver, now=self._now)
        await self._cluster.api.merge(self._path(node), change, Node, fieldManager=MANAGER)

    async def _again(self, before: Rule | Node | LeaseObject) -> Rule | Node | LeaseObject | None:
        """The object as it is now; None when there is nothing more to do about it."""
        path = self._path(before)
        if not isinstance(before, LeaseObject):
            return await self._cluster.api.get(path, type(before))
        lease = await self._cluster.api.get(path, LeaseObject)
        if lease is None or not lease.ours:
            return None
        if lease.holder and lease.holder != before.spec.holder_identity:
            told = f"removing Lease {lease.called}: {lease.holder} has taken it meanwhile; stop it, and run this again"
            raise ConflictError(told)
        return lease

    def _path(self, current: Rule | Node | LeaseObject) -> str:
        metadata = current.metadata
        if isinstance(current, Node):
            return object_path(NODES, metadata.name)
        if isinstance(current, LeaseObject):
            return lease_path(current.metadata.namespace, metadata.name)
        return object_path(collection(self._cluster.version or ""), metadata.name)
