"""What the shipped RBAC allows is what the code asks for, verb by verb.

Each verb stands here with what uses it. That none is missing and none is idle, `tests/storms/test_rbac_is_real.py`
shows on a real API server.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.remediator.cli.conftest import RIGHTS

RBAC = Path(__file__).parents[2] / "deploy/rbac.yaml"

Right = tuple[str, str, str, str]
"""Role, API group, resource, verb."""

_CLUSTER, _OWN, _EVENTS = "ClusterRole/neuron-remediator", "Role/neuron-remediator", "Role/neuron-remediator-events"
_RESOURCE = "resource.k8s.io"

USES: dict[Right, str] = {
    (_CLUSTER, "", "nodes", "get"): "node_cache: the live read, before a node is called unknown",
    (_CLUSTER, "", "nodes", "list"): "caches",
    (_CLUSTER, "", "nodes", "watch"): "caches",
    (_CLUSTER, "", "nodes", "patch"): "node_taint: the records and the taint of a node whose devices no rule can taint",
    (_CLUSTER, _RESOURCE, "resourceslices", "list"): "caches",
    (_CLUSTER, _RESOURCE, "resourceslices", "watch"): "caches",
    (_CLUSTER, _RESOURCE, "resourceclaims", "list"): "caches",
    (_CLUSTER, _RESOURCE, "resourceclaims", "watch"): "caches",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "get"): "the backend: the rule as it is, after a conflict",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "list"): "caches",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "watch"): "caches",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "create"): "the backend: a new record",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "patch"): "the backend: server-side apply",
    (_CLUSTER, _RESOURCE, "devicetaintrules", "delete"): "the backend: a clear, or a void record",
    (_CLUSTER, "neuron.aws.com", "neuronultraservers", "list"): "ultraservers: the nodes of each",
    (_CLUSTER, "neuron.aws.com", "neuronultraservers", "watch"): "ultraservers: the nodes of each",
    (_OWN, "coordination.k8s.io", "leases", "get"): "lease: each look",
    (_OWN, "coordination.k8s.io", "leases", "create"): "lease: the first leader",
    (_OWN, "coordination.k8s.io", "leases", "update"): "lease: renewals",
    (_OWN, "", "pods", "list"): "pod_label: who carries the label",
    (_OWN, "", "pods", "patch"): "pod_label: sets and removes it",
    (_EVENTS, "", "events", "create"): "events",
}


def _shipped() -> list[Right]:
    """Every right of every role, as often as it is given."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(RBAC.read_text(encoding="utf-8")))
    return [
        (f"{role['kind']}/{role['metadata']['name']}", group, resource, verb)
        for role in documents
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def test_the_remediator_may_do_what_it_does_and_nothing_else() -> None:
    shipped = [right for right in _shipped() if not right[0].startswith("ClusterRole/neuron-taints-")]
    assert Counter(shipped) == Counter(USES.keys())


@pytest.mark.parametrize("role", ["operator", "node-operator"])
def test_an_operator_may_do_what_the_commands_do_and_nothing_else(role: str) -> None:
    """The tests of the commands run with `RIGHTS`."""
    shipped = [right[1:] for right in _shipped() if right[0] == f"ClusterRole/neuron-taints-{role}"]
    needed = [(group, resource, verb) for group, resource, verbs in RIGHTS[role] for verb in verbs]
    assert Counter(shipped) == Counter(needed)
