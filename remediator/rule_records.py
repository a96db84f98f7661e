"""A record as a DeviceTaintRule, and back. Pure.

What is on the rule besides selector and taint are the fields of `remediator.records`, as annotations; labels are what
it is found by.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.names import SUBDOMAIN_LIMIT
from remediator.records import (
    EMPTIED,
    MANAGED_BY,
    MANAGER,
    Bearer,
    Key,
    Record,
    Stored,
    Taint,
    bool_text,
    from_fields,
    moment,
    to_fields,
)
from remediator.targets import Target

if TYPE_CHECKING:
    from remediator.rules import Rule

_PREFIX = f"{MANAGER}/"
# Without a dash, so that a name, which writes `_` as `-`, stands for one fault only.
_FAULT = re.compile(r"[a-z][a-z0-9_]*")
_NAME = re.compile(r"neuron-health\.(?P<node>.+)\.(?P<device>[0-9]+)\.(?P<fault>[a-z0-9-]+)")


def object_name(key: Key) -> str:
    """Name the record's object: readable, and shortened with a hash where the API server's limit demands it."""
    name = f"neuron-health.{key.node}.{key.device}.{key.fault.replace('_', '-')}"
    if len(name) <= SUBDOMAIN_LIMIT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: SUBDOMAIN_LIMIT - 13].rstrip('.-')}-{digest}"


def to_object(record: Record, api_version: str) -> dict[str, Any]:
    """Write the record as a DeviceTaintRule, for a create or (with `stored`) for a guarded server-side apply.

    `timeAdded` is never sent: sending it would restart every toleration's clock, and the server sets it. Raises
    ValueError for a record whose target is a Node.
    """
    target, taint = record.target, record.taint
    if not isinstance(target, Target):
        raise ValueError(  # noqa: TRY004 - not the type of an argument is wrong, but what the record says
            f'writing record "{record.key}" as a rule: its target is the Node; expected a device'
        )
    metadata: dict[str, Any] = {
        "name": object_name(record.key),
        "labels": {
            MANAGED_BY: MANAGER,
            f"{_PREFIX}device": str(record.key.device),
            f"{_PREFIX}fault": record.key.fault,
        },
        "annotations": {f"{_PREFIX}{name}": value for name, value in _annotations(record).items()},
    }
    if record.node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": record.key.node, "uid": record.node_uid}
        metadata["ownerReferences"] = [owner]
    if record.stored is not None:
        metadata |= {
            "name": record.stored.name,
            "uid": record.stored.uid,
            "resourceVersion": record.stored.resource_version,
        }
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": metadata,
        "spec": {
            "deviceSelector": {"driver": target.driver, "pool": target.pool, "device": target.device},
            "taint": {"key": taint.key, "value": taint.value, "effect": str(taint.effect)},
        },
    }


def _annotations(record: Record) -> dict[str, str]:
    values = {"node": record.key.node, "node-uid": record.node_uid, **to_fields(record)}
    if isinstance(record.target, Target):
        values["placed"] = bool_text(record.target.placed)
    return values


def from_object(rule: Rule) -> Record | None:
    """Read a record from a rule; None for a rule that is not ours or that no longer says which fault it is.

    Whatever else a hand has damaged is read on the safe side (`from_fields`), an unknown effect as None, as Kubernetes
    itself does. Damaged labels, state or selector read as withheld; so does a rule whose deletion a finalizer holds.
    """
    metadata, selector, taint = rule.metadata, rule.spec.device_selector, rule.spec.taint
    fields = {
        name.removeprefix(_PREFIX): value for name, value in metadata.annotations.items() if name.startswith(_PREFIX)
    }
    key = key_of(rule)
    if key is None:
        return None
    labels = {f"{_PREFIX}device": str(key.device), f"{_PREFIX}fault": key.fault}
    intact = (
        bool(selector.driver and selector.pool and selector.device)
        and labels.items() <= metadata.labels.items()
        and metadata.deletion_timestamp is None
    )
    owners = metadata.owner_references
    bearer = Bearer(
        key=key,
        # Without it the record would be void, and lose its sticky mark.
        node_uid=fields.get("node-uid") or (owners[0].uid if owners else ""),
        target=Target(
            selector.driver or EMPTIED,
            selector.pool or EMPTIED,
            selector.device or EMPTIED,
            placed=intact and fields.get("placed") == "true",
        ),
        taint=Taint(taint.key, taint.value, Effect.read(taint.effect)),
        tainted_since=moment(taint.time_added),
        stored=Stored(metadata.name, metadata.uid, metadata.resource_version),
        intact=intact,
        ending=metadata.deletion_timestamp is not None,
    )
    return from_fields(fields, bearer)


def key_of(rule: Rule) -> Key | None:
    """The key whose name the rule has: as its labels say it, or, where a hand has damaged those, as the name does.

    None for a rule that is not ours or that no longer says which fault it is.
    """
    metadata = rule.metadata
    if metadata.labels.get(MANAGED_BY) != MANAGER:
        return None
    device, fault = (metadata.labels.get(f"{_PREFIX}{name}", "") for name in ("device", "fault"))
    candidates = [(metadata.annotations.get(f"{_PREFIX}node", ""), device, fault)]
    if named := _NAME.fullmatch(metadata.name):
        candidates.append((named["node"], named["device"], named["fault"].replace("-", "_")))
    for node, index, kind in candidates:
        if node and _FAULT.fullmatch(kind) and index.isascii() and index.isdigit():
            key = Key(node, int(index), kind)
            if object_name(key) == metadata.name:
                return key
    return None
