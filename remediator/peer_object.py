"""The flag on one peer of a faulty UltraServer node as a DeviceTaintRule, and back. Pure.

Its effect is None, always: it informs, keeps nobody off and evicts nobody. Which flags there should be is decided in
`remediator.peers`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.inventory import NEURON_NODE
from remediator.names import SUBDOMAIN_LIMIT
from remediator.records import MANAGED_BY, MANAGER
from remediator.targets import Target

if TYPE_CHECKING:
    from remediator.rules import Rule

PEER_KEY = "neuron.aws.com/peer-tainted"
"""Key of the taint on a peer."""

PEER_OF = f"{MANAGER}/peer-of"
PEER = f"{MANAGER}/node"
SOURCE_UID = f"{MANAGER}/node-uid"

_NAME = "neuron-peer."
_VALUE_LIMIT = 63  # longest value of a taint that the API server takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRule:
    """The flag on one peer. `source` is the faulty node, `source_uid` its Node's UID, `target` the peer's device."""

    source: str
    source_uid: str
    peer: str
    target: Target

    @property
    def name(self) -> str:
        """Name of the rule."""
        return rule_name(self.source, self.peer)

    @property
    def value(self) -> str:
        """Value of the taint: the faulty node, or nothing where its name is too long for one."""
        return self.source if len(self.source) <= _VALUE_LIMIT else ""


def rule_name(source: str, peer: str) -> str:
    """Name a rule: readable, and with a hash where that would be too long or could be read in two ways.

    Names of nodes have dots in them. Where both have as many, as they do in one cluster's naming, the one in the middle
    parts them.
    """
    name = f"{_NAME}{source}.{peer}"
    if len(name) <= SUBDOMAIN_LIMIT and source.count(".") == peer.count("."):
        return name
    digest = hashlib.sha256(f"{source}/{peer}".encode()).hexdigest()[:12]
    return f"{name[: SUBDOMAIN_LIMIT - 13].rstrip('.-')}-{digest}"


def is_peer_rule(rule: Rule) -> bool:
    """Whether it is one of ours: it carries our mark and has such a name, whatever else a hand has done to it."""
    return rule.metadata.labels.get(MANAGED_BY) == MANAGER and rule.metadata.name.startswith(_NAME)


def to_object(rule: PeerRule, api_version: str, *, over: Rule | None = None) -> dict[str, Any]:
    """Write the rule for a create, or for a guarded server-side apply `over` one that is held."""
    metadata: dict[str, Any] = {
        "name": rule.name,
        "labels": {MANAGED_BY: MANAGER},
        "annotations": _annotations(rule),
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": rule.source, "uid": rule.source_uid}],
    }
    if over is not None:
        metadata |= {"uid": over.metadata.uid, "resourceVersion": over.metadata.resource_version}
    target = rule.target
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": metadata,
        "spec": {
            "deviceSelector": {"driver": target.driver, "pool": target.pool, "device": target.device},
            "taint": {"key": PEER_KEY, "value": rule.value, "effect": str(Effect.NONE)},
        },
    }


def _annotations(rule: PeerRule) -> dict[str, str]:
    return {PEER_OF: rule.source, PEER: rule.peer, SOURCE_UID: rule.source_uid}


def from_object(rule: Rule, *, driver: str) -> PeerRule | None:
    """Read a rule of ours; None where a hand has left it unreadable. What taint it has now is no part of that."""
    selector, annotations = rule.spec.device_selector, rule.metadata.annotations
    source, peer = annotations.get(PEER_OF, ""), annotations.get(PEER, "")
    whole = selector.driver == driver and selector.pool and selector.device == NEURON_NODE and source != peer
    if not whole or rule.metadata.name != rule_name(source, peer):
        return None
    target = Target(selector.driver, selector.pool, selector.device)
    return PeerRule(source=source, source_uid=annotations.get(SOURCE_UID, ""), peer=peer, target=target)


def belongs_to(rule: Rule, uid: str) -> bool:
    """Whether annotation or owner names that Node's UID: a hand may have changed one of them."""
    owners = {owner.uid for owner in rule.metadata.owner_references}
    return uid == rule.metadata.annotations.get(SOURCE_UID) or uid in owners


def says(rule: Rule, wanted: PeerRule) -> bool:
    """Whether a rule of that name says exactly what it should. What a hand has added beside it harms nobody."""
    metadata, selector, taint = rule.metadata, rule.spec.device_selector, rule.spec.taint
    target = wanted.target
    return (
        (taint.key, taint.value, taint.effect) == (PEER_KEY, wanted.value, str(Effect.NONE))
        and (selector.driver, selector.pool, selector.device) == (target.driver, target.pool, target.device)
        and _annotations(wanted).items() <= metadata.annotations.items()
        and any(owner.uid == wanted.source_uid for owner in metadata.owner_references)
    )


def harmless(rule: Rule) -> bool:
    """Whether it disturbs nobody, whatever a hand has done to it."""
    return Effect.read(rule.spec.taint.effect) is Effect.NONE
