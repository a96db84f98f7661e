"""The Lease as the API server writes it, and what a replica makes of it. Pure; fields we do not know survive.

Times go in for people and for other tools; nobody here reads them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from remediator.election import Sight
from remediator.errors import Refusal, UnavailableError
from remediator.records import MANAGED_BY, MANAGER

Object = dict[str, Any]

_MOST_TRANSITIONS = 2**31 - 1
"""The API server keeps them in 32 bits, and refuses more: a count that a hand has filled must not end all leading."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    kind: str
    metadata: _Metadata
    spec: _Spec | None = None


def sight_of(lease: Object, name: str) -> Sight:
    """Read the Lease; raises `UnavailableError` for what is no Lease of that name, such as a proxy's own JSON."""
    read = _read(lease, name)
    spec = read.spec or _Spec()
    return Sight(
        version=read.metadata.resource_version,
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0,
    )


def new(namespace: str, name: str) -> Object:
    """Make a Lease nobody holds, to be held and created. It carries our mark, as it goes when the product goes."""
    metadata = {"namespace": namespace, "name": name, "labels": {MANAGED_BY: MANAGER}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def held(lease: Object, *, identity: str, duration: int, now: datetime) -> Object:
    """The same Lease, held by `identity` for `duration` seconds from now on, with our mark."""
    spec = dict(lease.get("spec") or {})
    stamp = micro_time(now)
    if spec.get("holderIdentity") != identity:
        # Of a Lease made new, the first holder is no transition.
        taken_over = "resourceVersion" in lease["metadata"]
        transitions = (spec.get("leaseTransitions") or 0) + taken_over
        spec["leaseTransitions"] = min(transitions, _MOST_TRANSITIONS)
        spec["acquireTime"] = stamp
    spec |= {"holderIdentity": identity, "leaseDurationSeconds": duration, "renewTime": stamp}
    labels = {**(lease["metadata"].get("labels") or {}), MANAGED_BY: MANAGER}
    return {**lease, "metadata": {**lease["metadata"], "labels": labels}, "spec": spec}


def released(lease: Object, *, now: datetime) -> Object:
    """The same Lease, held by nobody: who looks next may take it at once."""
    return {**lease, "spec": {**(lease.get("spec") or {}), "holderIdentity": "", "renewTime": micro_time(now)}}


def micro_time(moment: datetime) -> str:
    """Write a time as Kubernetes' MicroTime: UTC, exactly six digits of a second."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _read(lease: Object, name: str) -> _Lease:
    try:
        read = msgspec.convert(lease, _Lease)
    except msgspec.ValidationError as error:
        raise UnavailableError(Refusal.UNREADABLE, f'reading Lease "{name}": {error}') from error
    if read.kind != "Lease" or read.metadata.name != name or not read.metadata.resource_version:
        raise UnavailableError(Refusal.UNREADABLE, f'reading Lease "{name}": the answer is not that Lease')
    return read
