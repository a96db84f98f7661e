"""Who may act on a control plane: its users, their tokens and kubeconfigs, and what the audit log says of them.

Writes files and starts nothing.
"""

import base64
import csv
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

NAMESPACE = "neuron-device-taints"
"""Where the remediator is installed, by ``deploy/rbac.yaml``."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the API server takes a user for."""

    name: str
    groups: tuple[str, ...]


IDENTITIES = MappingProxyType(
    {
        "admin": Identity("admin", ("system:masters",)),
        # The name a pod with the shipped ServiceAccount has, so that the shipped RBAC file applies unchanged.
        "neuron-remediator": Identity(
            f"system:serviceaccount:{NAMESPACE}:neuron-remediator",
            ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"),
        ),
        "kube-controller-manager": Identity("system:kube-controller-manager", ("system:masters",)),
        "kube-scheduler": Identity("system:kube-scheduler", ("system:masters",)),
    }
)
USERS = ("admin", "neuron-remediator")
"""The users a test may act as; the others are the control plane's own."""

_OWN = ("system:apiserver", "system:kube-controller-manager", "system:kube-scheduler")
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [
        # Informers, and tests that poll, would bury the rest.
        {"level": "None", "users": ["admin", *_OWN], "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


class Access:
    """The files in ``directory`` that let the users of a control plane at ``url`` in; ``write`` makes them."""

    def __init__(self, directory: Path, url: str, ca_file: Path) -> None:
        self._directory = directory
        self._cluster = {"server": url, "certificate-authority": str(ca_file)}
        self._tokens = {user: secrets.token_hex(16) for user in IDENTITIES}
        self.tokens_file = directory / "tokens.csv"
        self.audit_policy = directory / "audit-policy.yaml"
        self.signing_key = directory / "service-account.key"

    def token(self, user: str) -> str:
        """Return the bearer token of a user."""
        return self._tokens[user]

    def kubeconfig(self, user: str) -> Path:
        """Return where the kubeconfig of a user is."""
        return self._directory / f"{user}.kubeconfig"

    def write(self) -> None:
        """Write everything; over what is there, with the same tokens and another signing key."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with self.tokens_file.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                (self._tokens[user], identity.name, user, ",".join(identity.groups))
                for user, identity in IDENTITIES.items()
            )
        for user in IDENTITIES:
            self.kubeconfig(user).write_text(yaml.safe_dump(self._kubeconfig(user)), encoding="utf-8")
        self.audit_policy.write_text(yaml.safe_dump(_AUDIT_POLICY), encoding="utf-8")
        self.signing_key.write_text(_elliptic_key(), encoding="utf-8")

    def _kubeconfig(self, user: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "contexts": [{"name": user, "context": {"cluster": "stack", "user": user}}],
            "clusters": [{"name": "stack", "cluster": self._cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
        }


def _elliptic_key() -> str:
    """Return a fresh P-256 private key as PEM, for signing tokens nobody uses.

    Written out by hand (RFC 5915), as the standard library makes no keys: version 1, the secret, the curve's name.
    """
    secret = b"\x00" + secrets.token_bytes(31)  # the leading zero keeps it below the order of the curve
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    body = b"\x02\x01\x01" + b"\x04\x20" + secret + curve
    encoded = base64.b64encode(b"\x30" + bytes([len(body)]) + body).decode()
    label = "EC PRIVATE KEY"
    return f"-----BEGIN {label}-----\n{encoded}\n-----END {label}-----\n"
