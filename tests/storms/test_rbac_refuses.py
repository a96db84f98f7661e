"""What the shipped roles do not allow is refused: with the remediator's own token, on the real API server.

That they allow what is needed, and nothing idle, is `test_rbac_is_real`'s.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from tests.stack.controlplane import NAMESPACE
from tests.stack.http import request
from tests.stack.pipeline import install
from tests.storms.rights import EVERYWHERE, Right, shipped
from tests.storms.storm import USER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stack.controlplane import ControlPlane
    from tests.stack.http import Response
    from tests.stack.kube import Admin

NODE, JOB, CLAIM = "ip-10-7-2-1.ec2.internal", "job", "job"
EVERYBODY = ("system:basic-user", "system:cluster-trust-bundle-discovery")
"""Roles of the API server's own with rights on resources, which every ServiceAccount has."""

_METHODS = {"get": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_CORE, _RESOURCE, _LEASES = "/api/v1", "/apis/resource.k8s.io/v1", "/apis/coordination.k8s.io/v1"
_RBAC, _ULTRASERVERS = "/apis/rbac.authorization.k8s.io/v1", "/apis/neuron.aws.com/v1"
_OWN = f"namespaces/{NAMESPACE}"

REFUSED: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Slices are the driver's.
    (f"{_RESOURCE}/resourceslices", ("create", "delete")),
    (f"{_RESOURCE}/resourceslices/{{slice}}", ("get", "update", "patch", "delete")),
    (f"{_RESOURCE}/deviceclasses", ("get", "create", "delete")),
    (f"{_RESOURCE}/deviceclasses/neuron.aws.com", ("get", "update", "patch", "delete")),
    # Claims are their users'.
    (f"{_RESOURCE}/namespaces/default/resourceclaims", ("create", "delete")),
    (f"{_RESOURCE}/namespaces/default/resourceclaims/{CLAIM}", ("get", "update", "patch", "delete")),
    (f"{_RESOURCE}/namespaces/default/resourceclaims/{CLAIM}/status", ("get", "update", "patch")),
    (f"{_RESOURCE}/namespaces/default/resourceclaimtemplates", ("get", "create", "delete")),
    # Rules: not over another's head, not what the eviction controller says, not all at once.
    (f"{_RESOURCE}/devicetaintrules", ("delete",)),
    (f"{_RESOURCE}/devicetaintrules/any", ("update",)),
    (f"{_RESOURCE}/devicetaintrules/any/status", ("get", "update", "patch")),
    # Nodes are patched, and neither made, replaced nor deleted; their status is kubelet's.
    (f"{_CORE}/nodes", ("create", "delete")),
    (f"{_CORE}/nodes/{NODE}", ("update", "delete")),
    (f"{_CORE}/nodes/{NODE}/status", ("get", "update", "patch")),
    (f"{_CORE}/nodes/{NODE}/proxy", ("get", "create")),
    # Pods, here and elsewhere: an eviction is the rule's doing.
    (f"{_CORE}/pods", ("get",)),
    (f"{_CORE}/namespaces/default/pods", ("get", "create", "delete")),
    (f"{_CORE}/namespaces/default/pods/{JOB}", ("get", "update", "patch", "delete")),
    (f"{_CORE}/namespaces/default/pods/{JOB}/eviction", ("create",)),
    (f"{_CORE}/namespaces/kube-system/pods", ("get", "create", "delete")),
    (f"{_CORE}/namespaces/kube-system/pods/any", ("get", "patch", "delete")),
    (f"{_CORE}/{_OWN}/pods", ("create", "delete")),
    (f"{_CORE}/{_OWN}/pods/any", ("get", "update", "delete")),
    (f"{_CORE}/{_OWN}/pods/any/exec", ("get", "create")),
    (f"{_CORE}/{_OWN}/pods/any/status", ("patch",)),
    # Secrets, and what gives more rights.
    *((f"{_CORE}/{where}secrets", ("get", "create", "delete")) for where in ("", f"{_OWN}/", "namespaces/default/")),
    *((f"{_CORE}/{where}/secrets/any", ("get", "update", "patch", "delete")) for where in (_OWN, "namespaces/default")),
    (f"{_CORE}/{_OWN}/serviceaccounts/neuron-remediator/token", ("create",)),
    (f"{_CORE}/{_OWN}/configmaps", ("get", "create")),
    (f"{_RBAC}/clusterroles", ("get", "create", "delete")),
    (f"{_RBAC}/clusterroles/neuron-remediator", ("get", "update", "patch", "delete")),
    (f"{_RBAC}/clusterrolebindings", ("get", "create", "delete")),
    (f"{_RBAC}/clusterrolebindings/neuron-remediator", ("get", "update", "patch", "delete")),
    (f"{_RBAC}/{_OWN}/roles", ("get", "create", "delete")),
    (f"{_RBAC}/{_OWN}/roles/neuron-remediator", ("get", "update", "patch", "delete")),
    (f"{_RBAC}/{_OWN}/rolebindings", ("get", "create", "delete")),
    (f"{_RBAC}/{_OWN}/rolebindings/neuron-remediator", ("get", "update", "patch", "delete")),
    # Leases: its own namespace's, which it keeps; kubelets' tell whether nodes are alive.
    (f"{_LEASES}/{_OWN}/leases", ("get", "delete")),
    (f"{_LEASES}/{_OWN}/leases/neuron-remediator", ("patch", "delete")),
    (f"{_LEASES}/namespaces/kube-node-lease/leases", ("get", "create", "delete")),
    (f"{_LEASES}/namespaces/kube-node-lease/leases/{NODE}", ("get", "update", "patch", "delete")),
    (f"{_LEASES}/namespaces/default/leases", ("get", "create")),
    # Events are told, not read; UltraServers are read, not written.
    (f"{_CORE}/namespaces/default/events", ("get", "delete")),
    (f"{_CORE}/namespaces/default/events/any", ("update", "patch", "delete")),
    (f"{_CORE}/{_OWN}/events", ("create",)),
    (f"{_ULTRASERVERS}/namespaces/default/neuronultraservers", ("create", "delete")),
    (f"{_ULTRASERVERS}/namespaces/default/neuronultraservers/any", ("get", "update", "patch", "delete")),
    (f"{_ULTRASERVERS}/namespaces/default/neuronultraservers/any/status", ("update", "patch")),
    # Non-resource paths and other people's names.
    ("/metrics", ("get",)),
    ("/logs", ("get",)),
)
"""Paths, and what may not be done there; where no object is named, to all of them: `get` is a list then.

A refusal comes before anybody looks whether there is such an object.
"""


@pytest.fixture
def ask(control_plane: ControlPlane, admin: Admin) -> Callable[..., Response]:
    """Give a way to ask the API server as the remediator, with a node and a job around."""
    install(control_plane)
    admin.node(NODE)
    admin.pod(JOB)
    headers = {"Authorization": f"Bearer {control_plane.token(USER)}"}
    context = ssl.create_default_context(cafile=control_plane.ca_file)

    def send(verb: str, path: str, body: object = None) -> Response:
        content = "application/merge-patch+json" if verb == "patch" else "application/json"
        return request(
            _METHODS[verb],
            control_plane.url + path,
            body={} if body is None and verb in ("create", "update", "patch") else body,
            headers={**headers, "Content-Type": content},
            context=context,
            check=False,
        )

    return send


def test_nothing_else_is_allowed(ask: Callable[..., Response], admin: Admin) -> None:
    slice_ = admin.slice_of(NODE)
    assert slice_ is not None
    name = slice_["metadata"]["name"]
    asked = [(verb, path.format(slice=name)) for path, verbs in REFUSED for verb in verbs]

    answers = {(verb, path): ask(verb, path) for verb, path in asked}

    assert {one: answer.status for one, answer in answers.items() if answer.status != 403} == {}
    # By the roles, and not by what would look at the request afterwards.
    user = 'User \\"system:serviceaccount:neuron-device-taints:neuron-remediator\\" cannot '
    assert {one: answer.text for one, answer in answers.items() if user not in answer.text} == {}
    assert admin.slice_of(NODE) == slice_


def test_the_api_server_counts_the_very_rights_that_are_shipped(ask: Callable[..., Response], admin: Admin) -> None:
    """By its own account, so that no other role or group brings more; what everybody has is left out."""
    everybody = set().union(*(_rights(admin.get("ClusterRole", role)["rules"]) for role in EVERYBODY))
    for namespace in (NAMESPACE, "default", "kube-system"):
        review = ask(
            "create", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": namespace}}
        ).json()

        assert not review["status"]["incomplete"]
        here = {right._replace(scope=EVERYWHERE) for right in shipped() if right.scope in (EVERYWHERE, namespace)}
        assert _rights(review["status"]["resourceRules"]) == here | everybody


def _rights(rules: list[dict[str, list[str]]]) -> set[Right]:
    return {
        Right(EVERYWHERE, group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
