"""Objects of a cluster by kind and name, for tests.

Blocking, one connection a request, no cache: what it returns is what the API server holds now.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlencode

from tests.stack import crds
from tests.stack.controlplane import ControlPlane
from tests.stack.http import HTTPError, request
from tests.stack.shapes import Object

WAIT_SECONDS = 20.0
"""How long helpers wait for what the control plane does by itself; it takes well under a second when idle."""

_CORE = "/api/v1"
_RESOURCE = "/apis/resource.k8s.io"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


class _Kind(NamedTuple):
    """Where objects of a kind are: path of the group and version, plural, whether they are in namespaces.

    Without ``fixed`` the path is the group's alone, and the version is found out from the server.
    """

    path: str
    plural: str
    namespaced: bool = False
    fixed: bool = True


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "ClusterRole": _Kind(_RBAC, "clusterroles"),
        "ClusterRoleBinding": _Kind(_RBAC, "clusterrolebindings"),
        "ConfigMap": _Kind(_CORE, "configmaps", namespaced=True),
        "CustomResourceDefinition": _Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
        "DeviceClass": _Kind(f"{_RESOURCE}/v1", "deviceclasses"),
        "DeviceTaintRule": _Kind(_RESOURCE, "devicetaintrules", fixed=False),
        "Event": _Kind(_CORE, "events", namespaced=True),
        "Lease": _Kind("/apis/coordination.k8s.io/v1", "leases", namespaced=True),
        "Namespace": _Kind(_CORE, "namespaces"),
        "NeuronUltraServer": _Kind(f"/apis/{crds.GROUP}", crds.PLURAL, namespaced=True, fixed=False),
        "Node": _Kind(_CORE, "nodes"),
        "Pod": _Kind(_CORE, "pods", namespaced=True),
        "ResourceClaim": _Kind(f"{_RESOURCE}/v1", "resourceclaims", namespaced=True),
        "ResourceClaimTemplate": _Kind(f"{_RESOURCE}/v1", "resourceclaimtemplates", namespaced=True),
        "ResourceSlice": _Kind(f"{_RESOURCE}/v1", "resourceslices"),
        "Role": _Kind(_RBAC, "roles", namespaced=True),
        "RoleBinding": _Kind(_RBAC, "rolebindings", namespaced=True),
        "ServiceAccount": _Kind(_CORE, "serviceaccounts", namespaced=True),
    }
)


class Client:
    """Acts as ``user`` of the control plane. Namespaced objects are in ``default`` unless told otherwise.

    Each method raises ``HTTPError`` (with ``status``) for what the API server refuses. DeviceTaintRules and
    NeuronUltraServers are met in the version that is served at the time, whatever a manifest says; while none is,
    there are none of them, and making one is refused with 404.
    """

    def __init__(self, control_plane: ControlPlane, user: str = "admin") -> None:
        self._url = control_plane.url
        self._authorization = {"Authorization": f"Bearer {control_plane.token(user)}"}
        self._context = ssl.create_default_context(cafile=control_plane.ca_file)
        self._found: dict[str, str] = {}  # kind -> path of the version it was last met in

    def create(self, manifest: Object, *, namespace: str = "default") -> Object:
        """Create an object; returns it as stored."""
        namespace = manifest["metadata"].get("namespace", namespace)
        return self._call("POST", manifest["kind"], None, namespace, body=manifest)

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """Return an object; ``HTTPError`` 404 if it is not there."""
        return self._call("GET", kind, name, namespace)

    def find(self, kind: str, name: str, *, namespace: str = "default") -> Object | None:
        """Return an object, or ``None`` if it is not there."""
        try:
            return self.get(kind, name, namespace=namespace)
        except HTTPError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None

    def items(self, kind: str, *, namespace: str = "default", selector: str = "") -> list[Object]:
        """Return all objects of a kind, by name."""
        try:
            answer = self._call("GET", kind, None, namespace, query={"labelSelector": selector})
        except HTTPError as error:
            if _kind(kind).fixed or error.status != http.client.NOT_FOUND:
                raise
            return []
        return sorted(answer["items"], key=lambda item: str(item["metadata"]["name"]))

    def patch(
        self, kind: str, name: str, change: Object, *, namespace: str = "default", subresource: str = ""
    ) -> Object:
        """Merge ``change`` into an object (RFC 7386: lists are replaced, ``None`` removes)."""
        part = f"{name}/{subresource}" if subresource else name
        return self._call("PATCH", kind, part, namespace, body=change, content="application/merge-patch+json")

    def apply(self, manifest: Object, *, manager: str = "admin", namespace: str = "default") -> Object:
        """Server-side apply, taking over fields that others own."""
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", namespace)
        query = {"fieldManager": manager, "force": "true"}
        content = "application/apply-patch+yaml"
        return self._call(
            "PATCH", manifest["kind"], metadata["name"], namespace, query=query, body=manifest, content=content
        )

    def delete(
        self, kind: str, name: str, *, namespace: str = "default", grace: int | None = None, uid: str | None = None
    ) -> None:
        """Delete an object; one that is not there is fine. With ``uid``, exactly that one, else 409."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._call("DELETE", kind, name, namespace, body=options)
        except HTTPError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def version(self) -> str:
        """Return what the server calls itself, like ``v1.37.2``."""
        return str(self._send("GET", "/version")["gitVersion"])

    def serves(self, group_version: str, plural: str) -> bool:
        """Tell whether discovery lists a resource, e.g. of ``resource.k8s.io/v1``."""
        try:
            listed = self._send("GET", f"/apis/{group_version}")["resources"]
        except HTTPError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return False
        return plural in {resource["name"] for resource in listed}

    def served(self, kind: str) -> str | None:
        """Return the version in which a kind is served now, e.g. ``v1beta2``; ``None`` if it is not."""
        path = self._discover(_kind(kind))
        return path.rpartition("/")[2] if path else None

    def path(self, kind: str, name: str | None = None, *, namespace: str = "default") -> str:
        """Return the path of an object or of all of a kind, in the version served; ``HTTPError`` 404 if it is not."""
        found = self._found.get(kind) or self._discover(_kind(kind))
        if found is None:
            raise HTTPError(f'addressing "{kind}"', http.client.NOT_FOUND, "no version of it is served")
        self._found[kind] = found
        scope = f"/namespaces/{namespace}" if _kind(kind).namespaced else ""
        return f"{found}{scope}/{_kind(kind).plural}" + (f"/{name}" if name else "")

    def _discover(self, kind: _Kind) -> str | None:
        if kind.fixed:
            return kind.path
        group = kind.path.removeprefix("/apis/")
        try:
            listed = self._send("GET", kind.path)["versions"]
        except HTTPError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None
        versions = (version["version"] for version in listed)
        return next((f"{kind.path}/{one}" for one in versions if self.serves(f"{group}/{one}", kind.plural)), None)

    def _call(
        self,
        method: str,
        kind: str,
        name: str | None,
        namespace: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        """Send a request about a kind, to another version if the one last met is no longer served."""
        known = kind in self._found
        try:
            path = self.path(kind, name, namespace=namespace)
            return self._send(method, path, query=query, body=self._versioned(kind, body), content=content)
        except HTTPError as error:
            if _kind(kind).fixed or not _not_served(error):
                raise
            self._found.pop(kind, None)
            if not known:
                raise
        return self._call(method, kind, name, namespace, query=query, body=body, content=content)

    def _versioned(self, kind: str, body: Object | None) -> Object | None:
        if body is None or _kind(kind).fixed or body.get("kind") != kind:
            return body
        return {**body, "apiVersion": self._found[kind].removeprefix("/apis/")}

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
    ) -> Object:
        filled = {name: value for name, value in (query or {}).items() if value}
        url = self._url + path + (f"?{urlencode(filled)}" if filled else "")
        headers = {**self._authorization, "Content-Type": content}
        answer: Object = request(method, url, body=body, headers=headers, context=self._context).json()
        return answer


def _kind(kind: str) -> _Kind:
    if kind not in _KINDS:
        raise ValueError(f'addressing "{kind}": not a known kind; expected one of {", ".join(_KINDS)}')
    return _KINDS[kind]


def _not_served(error: HTTPError) -> bool:
    """Tell a 404 about a version from one about an object, which names it."""
    if error.status != http.client.NOT_FOUND:
        return False
    try:
        return not json.loads(error.body).get("details", {}).get("name")
    except ValueError:  # a page for people
        return True
