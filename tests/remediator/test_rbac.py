"""What the shipped RBAC allows is what the code asks for, verb by verb.

That nothing is missing, the tests on the real API server show: they run with these very rights. That nothing is too
much, no run can show, so each verb stands here with what uses it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

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
    shipped = [right for right in _shipped() if right[0] != "ClusterRole/neuron-taints-operator"]
    assert Counter(shipped) == Counter(USES.keys())


def test_an_operator_may_do_what_the_commands_do_and_nothing_else() -> None:
    """The tests of the commands run with `RIGHTS`."""
    shipped = [right[1:] for right in _shipped() if right[0] == "ClusterRole/neuron-taints-operator"]
    needed = [(group, resource, verb) for group, resource, verbs in RIGHTS["operator"] for verb in verbs]
    assert Counter(shipped) == Counter(needed)
