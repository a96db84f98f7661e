"""What roles grant to an account, what it asked for by the audit log, and how the two differ.

Pure but for reading the roles that ship. It asks no API server anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import yaml

from tests.stack.controlplane import NAMESPACE
from tests.stack.pipeline import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from tests.stack.shapes import Object

EVERYWHERE = ""
"""The scope of what is granted by a ClusterRoleBinding, and of a request that names no namespace."""

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")

_FORBIDDEN = 403


class Right(NamedTuple):
    """One verb on one resource (``nodes/status`` for a part of one) of one API group, in a namespace or everywhere."""

    scope: str
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        where = f'in namespace "{self.scope}"' if self.scope else "everywhere"
        return f'"{self.verb}" on "{self.resource}" of group "{self.group}" {where}'


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str


class Asked(NamedTuple):
    """What was asked for: with the API server's leave, and without."""

    used: AbstractSet[Right]
    forbidden: AbstractSet[Right]


def shipped() -> set[Right]:
    """Return what ``deploy/rbac.yaml`` lets the remediator do."""
    manifests = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text(encoding="utf-8"))
    return granted(manifests, Account(NAMESPACE, "neuron-remediator"))


def granted(manifests: Iterable[Object], account: Account) -> set[Right]:
    """Return what these roles and bindings let an account do. ``KeyError`` for a binding whose role is not among them.

    Names of single objects are not looked at.
    """
    all_ = list(manifests)
    roles = {_identity(one): one["rules"] for one in all_ if "rules" in one}
    rights: set[Right] = set()
    for binding in all_:
        subjects = {(one["kind"], one.get("namespace"), one["name"]) for one in binding.get("subjects", ())}
        if ("ServiceAccount", *account) in subjects:
            rights |= _of_rules(roles[_bound(binding)], binding["metadata"].get("namespace", EVERYWHERE))
    return rights


def _identity(manifest: Object) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", EVERYWHERE), metadata["name"]


def _bound(binding: Object) -> tuple[str, str, str]:
    role = binding["roleRef"]
    own = binding["metadata"].get("namespace", EVERYWHERE) if role["kind"] == "Role" else EVERYWHERE
    return role["kind"], own, role["name"]


def _of_rules(rules: Iterable[Object], scope: str) -> set[Right]:
    return {
        Right(scope, group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(events: Iterable[Object]) -> Asked:
    """Sort what an audit log tells of requests about resources; those about anything else need no role of ours.

    What the server had no part in deciding, as the request never got that far, is neither.
    """
    used: set[Right] = set()
    forbidden: set[Right] = set()
    for event in events:
        if "objectRef" not in event:
            continue
        if event["responseStatus"]["code"] == _FORBIDDEN:
            forbidden.add(_right(event))
        elif event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow":
            used.add(_right(event))
    return Asked(used, forbidden)


def _right(event: Object) -> Right:
    about = event["objectRef"]
    part = about.get("subresource")
    resource = f"{about['resource']}/{part}" if part else about["resource"]
    return Right(about.get("namespace", EVERYWHERE), about.get("apiGroup", ""), resource, event["verb"])


def differences(given: AbstractSet[Right], said: Asked) -> list[str]:
    """Name every right that those given lack, that nothing used, or that came from elsewhere."""
    return [
        *(f"missing: {right}" for right in sorted(said.forbidden)),
        *(f"allowed by another role: {right}" for right in sorted(said.used - given)),
        *(f"unused: {right}" for right in sorted(given - said.used - said.forbidden)),
    ]
