"""Objects of a cluster by kind and name, for tests.

Blocking, one connection a request, no cache: what it returns is what the API server holds now.
"""

import http.client
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlencode

from tests.stack.controlplane import ControlPlane
from tests.stack.http import HTTPError, request
from tests.stack.shapes import Object

_RESOURCE = "/apis/resource.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
# kind -> (group and version, plural, namespaced)
_KINDS: Mapping[str, tuple[str, str, bool]] = MappingProxyType(
    {
        "ClusterRole": (_RBAC, "clusterroles", False),
        "ClusterRoleBinding": (_RBAC, "clusterrolebindings", False),
        "ConfigMap": ("/api/v1", "configmaps", True),
        "DeviceClass": (_RESOURCE, "deviceclasses", False),
        "DeviceTaintRule": (_RESOURCE, "devicetaintrules", False),
        "Event": ("/api/v1", "events", True),
        "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
        "Namespace": ("/api/v1", "namespaces", False),
        "Node": ("/api/v1", "nodes", False),
        "Pod": ("/api/v1", "pods", True),
        "ResourceClaim": (_RESOURCE, "resourceclaims", True),
        "ResourceClaimTemplate": (_RESOURCE, "resourceclaimtemplates", True),
        "ResourceSlice": (_RESOURCE, "resourceslices", False),
        "Role": (_RBAC, "roles", True),
        "RoleBinding": (_RBAC, "rolebindings", True),
        "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    }
)


class Client:
    """Acts as ``user`` of the control plane. Namespaced objects are in ``default`` unless told otherwise.

    Each method raises ``HTTPError`` (with ``status``) for what the API server refuses.
    """

    def __init__(self, control_plane: ControlPlane, user: str = "admin") -> None:
        self._url = control_plane.url
        self._authorization = {"Authorization": f"Bearer {control_plane.token(user)}"}
        self._context = ssl.create_default_context(cafile=control_plane.ca_file)

    def create(self, manifest: Object, *, namespace: str = "default") -> Object:
        """Create an object; returns it as stored."""
        namespace = manifest["metadata"].get("namespace", namespace)
        return self._send("POST", _path(manifest["kind"], None, namespace), body=manifest)

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """Return an object; ``HTTPError`` 404 if it is not there."""
        return self._send("GET", _path(kind, name, namespace))

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
        found = self._send("GET", _path(kind, None, namespace), query={"labelSelector": selector})["items"]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def patch(
        self, kind: str, name: str, change: Object, *, namespace: str = "default", subresource: str = ""
    ) -> Object:
        """Merge ``change`` into an object (RFC 7386: lists are replaced, ``None`` removes)."""
        path = _path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        return self._send("PATCH", path, body=change, content="application/merge-patch+json")

    def apply(self, manifest: Object, *, manager: str = "admin", namespace: str = "default") -> Object:
        """Server-side apply, taking over fields that others own."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["name"], metadata.get("namespace", namespace))
        query = {"fieldManager": manager, "force": "true"}
        return self._send("PATCH", path, query=query, body=manifest, content="application/apply-patch+yaml")

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
            self._send("DELETE", _path(kind, name, namespace), body=options)
        except HTTPError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def version(self) -> str:
        """Return what the server calls itself, like ``v1.37.2``."""
        return str(self._send("GET", "/version")["gitVersion"])

    def serves(self, group_version: str, plural: str) -> bool:
        """Tell whether discovery lists a resource, e.g. of ``resource.k8s.io/v1``."""
        listed = self._send("GET", f"/apis/{group_version}")["resources"]
        return plural in {resource["name"] for resource in listed}

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


def _path(kind: str, name: str | None, namespace: str) -> str:
    if kind not in _KINDS:
        raise ValueError(f'addressing "{kind}": not a known kind; expected one of {", ".join(_KINDS)}')
    prefix, plural, namespaced = _KINDS[kind]
    scope = f"/namespaces/{namespace}" if namespaced else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")
