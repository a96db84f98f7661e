"""A real Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler.

There is no kubelet: ``kube.Admin`` does by hand what one would. The node lifecycle controller is off for the same
reason, as nothing renews the nodes' leases.
"""

import base64
import csv
import json
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.stack.binaries import locate
from tests.stack.http import is_ok
from tests.stack.process import Process, free_port

COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
NAMESPACE = "neuron-device-taints"
"""Where the remediator is installed, by ``deploy/rbac.yaml``."""


@dataclass(frozen=True, slots=True)
class _Identity:
    name: str
    groups: tuple[str, ...]


_USERS = MappingProxyType(
    {
        "admin": _Identity("admin", ("system:masters",)),
        # The name a pod with the shipped ServiceAccount has, so that the shipped RBAC file applies unchanged.
        "neuron-remediator": _Identity(
            f"system:serviceaccount:{NAMESPACE}:neuron-remediator",
            ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"),
        ),
        "kube-controller-manager": _Identity("system:kube-controller-manager", ("system:masters",)),
        "kube-scheduler": _Identity("system:kube-scheduler", ("system:masters",)),
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
WRITES = ("create", "update", "patch", "delete", "deletecollection")
"""The audit log's verbs that change something."""


class ControlPlane:
    """One control plane whose files are all under ``directory``; ``start`` returns once it serves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._certificates = directory / "certificates"
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._port = free_port()
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self.url = f"https://127.0.0.1:{self._port}"
        self.ca_file = self._certificates / "apiserver.crt"
        self.audit_log = directory / "audit.log"
        self._etcd = self._process("etcd", self._etcd_arguments())
        self._apiserver = self._process("kube-apiserver", self._apiserver_arguments())
        # Without a heartbeat from kubelets it would call every node dead.
        controllers = ("--controllers=*,-node-lifecycle-controller",)
        self._controllers, self._controllers_port = self._client("kube-controller-manager", controllers)
        self._scheduler, self._scheduler_port = self._client("kube-scheduler", ())

    def token(self, user: str) -> str:
        """Return the bearer token of one of ``USERS``."""
        return self._tokens[user]

    def kubeconfig(self, user: str) -> Path:
        """Return a kubeconfig file for one of ``USERS``."""
        return self._directory / f"{user}.kubeconfig"

    def start(self) -> None:
        """Start everything; ``RuntimeError`` shows the log of a part that does not come up."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._write_files()
        self._etcd.start()
        self._etcd.wait_ready(lambda: is_ok(f"{self._etcd_url}/readyz"))
        self._start_apiserver()
        self._start_clients()

    def stop(self) -> None:
        """End everything. The data is of no further use, so nothing is given time to save it."""
        for process in (self._scheduler, self._controllers, self._apiserver, self._etcd):
            process.kill()

    def stop_apiserver(self) -> None:
        """End the API server alone, as an upgrade of it would; the other parts go on and lose their connection."""
        self._apiserver.stop(timeout=1)  # it stops listening at once, but open watches would hold it for a minute

    def start_apiserver(self) -> None:
        """Start the API server on the same port, certificate and etcd; returns once it is of use again.

        Scheduler and controllers are started anew: after an outage, and more so after a second one, their clients wait
        for up to half a minute before they look again.
        """
        self._start_apiserver()
        for process in (self._controllers, self._scheduler):
            process.kill()
        self._start_clients()

    def _start_clients(self) -> None:
        for process, port in (
            (self._controllers, self._controllers_port),
            (self._scheduler, self._scheduler_port),
        ):
            process.start()
            process.wait_ready(self._healthy(f"https://127.0.0.1:{port}/healthz", self._certificate(process.name)))

    def _start_apiserver(self) -> None:
        self._apiserver.start()
        self._apiserver.wait_ready(self._healthy(f"{self.url}/readyz", self.ca_file))

    def audit(
        self, *, user: str | None = None, verbs: Sequence[str] = WRITES, resource: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the completed requests so far, oldest first: by default all writes by anybody.

        ``user`` is a name that ``token`` knows. Reads are there for the remediator alone. A line is written just
        after its answer was sent, so wait for an expected one, and count when it is there.
        """
        name = _USERS[user].name if user else None
        text = self.audit_log.read_text(encoding="utf-8") if self.audit_log.exists() else ""
        complete, _, _ = text.rpartition("\n")
        events: list[dict[str, Any]] = [json.loads(line) for line in complete.splitlines()]
        return [
            event
            for event in events
            if event["verb"] in verbs
            and name in (None, event["user"]["username"])
            and resource in (None, event.get("objectRef", {}).get("resource"))
        ]

    def _process(self, name: str, arguments: Sequence[str | Path]) -> Process:
        return Process(name, (locate(name), *arguments), self._directory / "logs")

    def _client(self, name: str, arguments: Sequence[str]) -> tuple[Process, int]:
        port = free_port()
        common = (
            f"--kubeconfig={self.kubeconfig(name)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._certificate(name).parent}",
            *arguments,
        )
        return self._process(name, common), port

    def _certificate(self, name: str) -> Path:
        return self._certificates / name / f"{name}.crt"

    def _etcd_arguments(self) -> tuple[str, ...]:
        peer = f"http://127.0.0.1:{free_port()}"
        return (
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _apiserver_arguments(self) -> tuple[str, ...]:
        key = self._directory / "service-account.key"
        return (
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._certificates}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            # Pods here name no ServiceAccount, and nothing could hand them its token.
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={self._directory / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
        )

    def _write_files(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "tokens.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                (self._tokens[user], identity.name, user, ",".join(identity.groups))
                for user, identity in _USERS.items()
            )
        for user in _USERS:
            self.kubeconfig(user).write_text(yaml.safe_dump(self._kubeconfig(user)), encoding="utf-8")
        (self._directory / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY), encoding="utf-8")
        (self._directory / "service-account.key").write_text(_elliptic_key(), encoding="utf-8")

    def _kubeconfig(self, user: str) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "contexts": [{"name": user, "context": {"cluster": "stack", "user": user}}],
            "clusters": [{"name": "stack", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
        }

    @staticmethod
    def _healthy(url: str, certificate: Path) -> Any:
        def healthy() -> bool:
            # Each part writes a certificate of its own at its first start.
            return is_ok(url, context=ssl.create_default_context(cafile=certificate))

        return healthy


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
