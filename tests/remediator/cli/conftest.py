"""`neuron-taints` as an operator runs it: with credentials of its own, on the real API server."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from alerts.faults import Effect
from remediator.cli.__main__ import run
from remediator.inventory import Node
from remediator.node_records import node_target, patch, read
from remediator.records import Key
from remediator.rule_records import object_name, to_object
from remediator.targets import Target
from tests.remediator.samples import DRIVER, NODE, STARTED, record
from tests.stack.client import Client
from tests.stack.http import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from remediator.records import Record
    from tests.remediator.samples import Json
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

_RESOURCE = "resource.k8s.io"
Rights = list[tuple[str, str, tuple[str, ...]]]
_OPERATOR: Rights = [
    (_RESOURCE, "devicetaintrules", ("get", "list", "patch")),
    (_RESOURCE, "resourceslices", ("list",)),
    ("", "nodes", ("get", "list")),
    (_RESOURCE, "resourceclaims", ("list",)),
]
_NODE_OPERATOR: Rights = [("", "nodes", ("get", "list", "patch"))]
RIGHTS: dict[str, Rights] = {
    # As `neuron-taints release --help` lists them.
    "operator": _OPERATOR,
    "node-operator": _NODE_OPERATOR,
    "both": _OPERATOR + _NODE_OPERATOR,
    # As `neuron-remediator uninstall --help` lists them.
    "uninstaller": [
        (_RESOURCE, "devicetaintrules", ("get", "list", "delete")),
        ("", "nodes", ("get", "list", "patch")),
        ("coordination.k8s.io", "leases", ("get", "list", "delete")),
        (_RESOURCE, "resourceslices", ("list",)),
    ],
    "onlooker": [(_RESOURCE, "devicetaintrules", ("get", "list")), ("", "nodes", ("get",))],
    "nobody": [],
}


@dataclass(frozen=True)
class Said:
    """What a command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def taints(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Give a way to run a command line; its output is a pipe."""

    def run_line(*arguments: str) -> Said:
        code = run(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run_line


@pytest.fixture
def login(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Give a way to log in as somebody with some of the `RIGHTS`: a kubeconfig file.

    `only` are names of rules that may be patched as well.
    """
    admin = Client(control_plane)
    made: list[tuple[str, str]] = []

    def create(manifest: Json) -> None:
        admin.create(manifest)
        made.append((manifest["kind"], manifest["metadata"]["name"]))

    def login_as(rights: str, *, only: tuple[str, ...] = ()) -> Path:
        name = f"{rights}-{secrets.token_hex(3)}"
        for manifest in _manifests(name, rights, only):
            create(manifest)
        token = _token(control_plane, name)
        file = tmp_path / f"{name}.kubeconfig"
        file.write_text(yaml.safe_dump(kubeconfig(control_plane.url, str(control_plane.ca_file), token)))
        return file

    yield login_as
    for kind, name in reversed(made):
        admin.delete(kind, name)


def _manifests(name: str, rights: str, only: tuple[str, ...]) -> list[Json]:
    metadata = {"name": name}
    rules: list[Json] = [
        {"apiGroups": [group], "resources": [plural], "verbs": list(verbs)} for group, plural, verbs in RIGHTS[rights]
    ]
    if only:
        patch = {"apiGroups": [_RESOURCE], "resources": ["devicetaintrules"], "verbs": ["patch"]}
        rules.append(patch | {"resourceNames": list(only)})
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
    ]


def _token(control_plane: ControlPlane, name: str) -> str:
    answer = request(
        "POST",
        f"{control_plane.url}/api/v1/namespaces/default/serviceaccounts/{name}/token",
        body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        headers={"Authorization": f"Bearer {control_plane.token('admin')}", "Content-Type": "application/json"},
        context=ssl.create_default_context(cafile=control_plane.ca_file),
    )
    return str(answer.json()["status"]["token"])


def kubeconfig(server: str, ca_file: str, token: str) -> Json:
    """What a kubeconfig file holds."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": server, "certificate-authority": ca_file}}],
        "users": [{"name": "me", "user": {"token": token}}],
    }


@dataclass(frozen=True)
class Held:
    """A node with records, and the administrator's view of them."""

    admin: Admin
    uid: str

    def put(self, fault: str = "hbm", device: int = 3, *, node: str = NODE, **changes: Any) -> Key:
        """Make a record as the remediator would have."""
        made: Record = record(fault, node_uid=self.uid)
        key = replace(made.key, device=device, node=node)
        target = Target(DRIVER, node, f"neuron-device-{device}")
        standard: dict[str, Any] = {"key": key, "target": target}
        made = replace(made, **(standard | changes))
        self.admin.create(to_object(made, "resource.k8s.io/v1"))
        return made.key

    def put_on_node(
        self, fault: str = "hbm", device: int = 3, *, effect: Effect = Effect.NO_SCHEDULE, **changes: Any
    ) -> Key:
        """Make a record on the Node itself as the remediator would have, with its taint; others there stay."""
        made = record(fault, node_uid=self.uid)
        target = node_target(DRIVER, NODE, device)
        taint = replace(made.taint, effect=effect)
        standard: dict[str, Any] = {
            "key": Key(NODE, device, fault),
            "target": target,
            "taint": taint,
            "tainted_since": STARTED,
        }
        made = replace(made, **(standard | changes))
        node = self.node()
        records = read(node, driver=DRIVER) | {made.key: made}
        self.admin.patch("Node", NODE, patch(node, records.values(), now=STARTED))
        return made.key

    def node(self) -> Node:
        """The sample node as the commands read it."""
        return msgspec.convert(self.admin.get("Node", NODE), Node)

    def on_node(self, key: Key) -> Record:
        """A record of the sample node."""
        return read(self.node(), driver=DRIVER)[key]

    def rule(self, key: Key) -> Json:
        """The record's rule as the API server has it."""
        return self.admin.get("DeviceTaintRule", object_name(key))

    def annotation(self, key: Key, name: str) -> str:
        """One of our annotations; empty if there is none."""
        return str(self.rule(key)["metadata"]["annotations"].get(f"neuron-remediator/{name}", ""))


def written_by(control_plane: ControlPlane, file: Path) -> list[tuple[str, str, str]]:
    """What somebody who logged in with that file has written so far: verb, resource, name.

    The API server's own questions about itself, such as who one is, are no writes.
    """
    who = f"system:serviceaccount:default:{file.stem}"
    events = [event for event in control_plane.audit() if event["user"]["username"] == who]
    return [
        (event["verb"], event["objectRef"]["resource"], event["objectRef"]["name"])
        for event in events
        if event["objectRef"]["resource"] != "selfsubjectreviews"
    ]


@pytest.fixture
def held(admin: Admin) -> Held:
    """Give the sample node on the real API server, with sixteen devices and no record yet."""
    return held_on(admin)


def held_on(admin: Admin) -> Held:
    """Make the sample node on a cluster."""
    return Held(admin, str(admin.node(NODE)["metadata"]["uid"]))
