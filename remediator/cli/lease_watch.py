"""Whether a remediator leads now, as told by Leases that are looked at again and again. Pure.

No time in a Lease is compared with a clock, as clocks of machines differ: who leads is who renews while it is watched.
Times are seconds of the watcher's own monotonic clock, handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from remediator.election import LONGEST
from remediator.records import MANAGED_BY, MANAGER

if TYPE_CHECKING:
    from collections.abc import Iterable

LEASES = "/apis/coordination.k8s.io/v1/leases"
"""Path of all Leases."""

_LOOKS = 7.5  # a replica's looks in one duration of its Lease: see `remediator.lease`
_TAKEN_WITHIN = 2  # of its looks, somebody who is there has taken a Lease that nobody holds


class LeaseMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of a Lease's metadata."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Who holds a Lease; `lease_duration_seconds` is the holder's own."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None


class LeaseObject(msgspec.Struct, frozen=True):
    """A Lease as the API server sends it."""

    metadata: LeaseMetadata
    spec: LeaseSpec = LeaseSpec()

    @property
    def ours(self) -> bool:
        """Whether it carries our mark."""
        return self.metadata.labels.get(MANAGED_BY) == MANAGER

    @property
    def holder(self) -> str:
        """Who holds it, empty for nobody."""
        return self.spec.holder_identity or ""

    @property
    def called(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


def lease_path(namespace: str, name: str) -> str:
    """Path of one Lease."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


class LeaseWatch:
    """A watch over Leases, from the first look on. `duration` is what our replicas are told by `--lease.duration`."""

    def __init__(self, duration: float, began: float) -> None:
        self._duration = duration
        self._began = began
        self._looked = False
        self._seen: dict[str, LeaseObject] = {}
        self._until = began + duration / _LOOKS * _TAKEN_WITHIN

    @property
    def seconds(self) -> float:
        """How long it takes in all."""
        return self._until - self._began

    @property
    def held(self) -> list[LeaseObject]:
        """The Leases that somebody holds, whether or not he still lives."""
        return [lease for lease in self._seen.values() if lease.holder]

    def saw(self, leases: Iterable[LeaseObject]) -> LeaseObject | None:
        """Take in one look; returns the Lease that somebody is seen to renew or to take."""
        for lease in leases:
            before = self._seen.get(lease.called)
            self._seen[lease.called] = lease
            changed = before is None or before.metadata.resource_version != lease.metadata.resource_version
            if self._looked and changed and lease.holder:
                return lease
            if lease.holder:
                own = min(lease.spec.lease_duration_seconds or 0, LONGEST)
                self._until = max(self._until, self._began + max(own, self._duration))
        self._looked = True
        return None

    def over(self, now: float) -> bool:
        """Whether it has been watched for long enough that nobody leads."""
        return self._looked and now >= self._until
