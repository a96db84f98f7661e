"""A real Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler.

There is no kubelet: ``kube.Admin`` does by hand what one would. The node lifecycle controller is off for the same
reason, as nothing renews the nodes' leases.
"""

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.stack.access import IDENTITIES, NAMESPACE, USERS, Access
from tests.stack.binaries import locate
from tests.stack.http import is_ok
from tests.stack.process import Process, Startable, free_port
from tests.stack.releases import Release, Rules

__all__ = ["COMPONENTS", "NAMESPACE", "USERS", "WRITES", "ControlPlane"]

COMPONENTS = Release().programs
"""The programs of a control plane as it is by default."""
WRITES = ("create", "update", "patch", "delete", "deletecollection")
"""The audit log's verbs that change something."""


class ControlPlane(Startable):
    """One control plane whose files are all under ``directory``; ``start`` returns once it serves.

    ``kubernetes`` is "1.37" or "1.36", ``rules`` the version in which DeviceTaintRules are served. ``ValueError``
    for a combination that there is not.
    """

    def __init__(self, directory: Path, *, kubernetes: str = "1.37", rules: Rules = "v1") -> None:
        self._directory = directory
        self._certificates = directory / "certificates"
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._port, self._controllers_port, self._scheduler_port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.ca_file = self._certificates / "apiserver.crt"
        self.audit_log = directory / "audit.log"
        self._access = Access(directory, self.url, self.ca_file)
        self._etcd = Process("etcd", (locate("etcd"), *self._etcd_arguments()), self._logs)
        self._take(Release(kubernetes, rules))

    def _take(self, release: Release) -> None:
        """Make the processes of a release, not yet started."""
        self.release = release
        self._apiserver = self._process("kube-apiserver", self._apiserver_arguments())
        # Without a heartbeat from kubelets it would call every node dead.
        controllers = ("--controllers=*,-node-lifecycle-controller",)
        self._controllers = self._client("kube-controller-manager", self._controllers_port, controllers)
        self._scheduler = self._client("kube-scheduler", self._scheduler_port, ())

    def token(self, user: str) -> str:
        """Return the bearer token of one of ``USERS``."""
        return self._access.token(user)

    def kubeconfig(self, user: str) -> Path:
        """Return a kubeconfig file for one of ``USERS``."""
        return self._access.kubeconfig(user)

    def start(self) -> None:
        """Start everything; ``RuntimeError`` shows the log of a part that does not come up."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._access.write()
        self._etcd.start()
        self._etcd.wait_ready(lambda: is_ok(f"{self._etcd_url}/readyz"))
        self._start_apiserver()
        self._start_clients()

    def stop(self) -> None:
        """End everything. The data is of no further use, so nothing is given time to save it."""
        for process in (self._scheduler, self._controllers, self._apiserver, self._etcd):
            process.kill()

    def upgrade(self, *, kubernetes: str = "1.37", rules: Rules = "v1") -> None:
        """Go on as another release, newer or older, with the same data; returns once all parts serve.

        etcd runs on; port, certificate, tokens and audit log stay. So clients need nothing new: they find the API
        server away for about four seconds. The other parts are down meanwhile too. ``ValueError`` as at the start.
        """
        release = Release(kubernetes, rules)
        for process in (self._controllers, self._scheduler):
            process.kill()
        self.stop_apiserver()
        self._take(release)
        self._start_apiserver()
        self._start_clients()

    def stop_apiserver(self) -> None:
        """End the API server alone; the other parts go on and lose their connection."""
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
        name = IDENTITIES[user].name if user else None
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

    @property
    def _logs(self) -> Path:
        return self._directory / "logs"

    def _process(self, name: str, arguments: Sequence[str | Path]) -> Process:
        binary = locate(self.release.program(name))
        return Process(name, (binary, *arguments, *self.release.flags(name)), self._logs)

    def _client(self, name: str, port: int, arguments: Sequence[str]) -> Process:
        common = (
            f"--kubeconfig={self.kubeconfig(name)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._certificate(name).parent}",
            *arguments,
        )
        return self._process(name, common)

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
        access = self._access
        return (
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._certificates}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={access.signing_key}",
            f"--service-account-signing-key-file={access.signing_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={access.tokens_file}",
            # Pods here name no ServiceAccount, and nothing could hand them its token.
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={access.audit_policy}",
            f"--audit-log-path={self.audit_log}",
        )

    @staticmethod
    def _healthy(url: str, certificate: Path) -> Any:
        def healthy() -> bool:
            # Each part writes a certificate of its own at its first start.
            return is_ok(url, context=ssl.create_default_context(cafile=certificate))

        return healthy
