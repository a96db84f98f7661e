"""Everything between a driver file and a taint, as the processes that ship, around a simulated node.

Exporter, Prometheus, Alertmanager and remediator run as they would in a cluster; the driver files are the only
fake. With a control plane the remediator writes to it; without one it keeps its records in memory. Ports and
configuration stay the same over restarts of any part.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.simulation.driver import SimulatedDriver
from tests.stack.binaries import locate
from tests.stack.config import alertmanager_config, prometheus_config
from tests.stack.http import Response, is_ok, request
from tests.stack.kube import Admin
from tests.stack.monitoring import Alertmanager, Prometheus
from tests.stack.process import Process, Startable, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.stack.controlplane import ControlPlane

ROOT = Path(__file__).parents[2]
RULES = ROOT / "alerts/neuron-device-health.rules.yaml"
TOKEN = "stack-token"


def install(control_plane: ControlPlane) -> None:
    """Apply the RBAC that ships, so that the remediator may do what it may do in a cluster, and no more."""
    admin = Admin(control_plane)
    for manifest in yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text(encoding="utf-8")):
        admin.apply(manifest)


LIFTED = ("--budget.max-unavailable=none", "--budget.max-new=none")
"""For who breaks more of a small fleet than a budget would let be tainted."""


class Service:
    """One of the two services of the product as a process with a fixed address."""

    def __init__(self, package: str, directory: Path, arguments: tuple[str, ...]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        command = (sys.executable, "-m", package, f"--web.listen-address={self.address}", *arguments)
        self.process = Process(package, command, directory)

    def start(self) -> None:
        """Start it; returns once it is ready."""
        self.process.start()
        self.process.wait_ready(lambda: is_ok(f"{self.url}/readyz"))

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Every sample on its page."""
        page = request("GET", f"{self.url}/metrics").text
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample of that name whose labels include these; None if there is none."""
        found = [value for sample, own, value in self.metrics() if sample == name and labels.items() <= own.items()]
        if len(found) > 1:
            raise AssertionError(f'reading "{name}" with {labels}: expected one sample, got {len(found)}')
        return found[0] if found else None


class Pipeline(Startable):
    """A node with `devices` Neuron devices, and the whole way from its driver files to a taint."""

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        control_plane: ControlPlane | None = None,
        devices: int = 16,
        heartbeat_timeout: str = "3s",
        remediator_flags: tuple[str, ...] = (),
        find: Callable[[str], Path] = locate,
    ) -> None:
        self.node = node
        self.directory = directory
        self.driver = SimulatedDriver(directory / "sys", devices=devices)
        self._token_file = directory / "token"
        self._token_file.write_text(f"{TOKEN}\n", encoding="utf-8")
        exporter_flags = (f"--sysfs.root={self.driver.root}", f"--sysfs.heartbeat-timeout={heartbeat_timeout}")
        self.exporter = Service("exporter", directory, exporter_flags)
        self.remediator = Service("remediator", directory, (*self._remediator_flags(control_plane), *remediator_flags))
        self.webhook_url = f"{self.remediator.url}/api/v1/alerts"
        self.alertmanager = Alertmanager(
            directory,
            alertmanager_config(webhook_url=self.webhook_url, token_file=self._token_file),
            binary=find("alertmanager"),
        )
        self.prometheus = Prometheus(directory, self._prometheus_config(), binary=find("prometheus"))
        self._control_plane = control_plane
        self._running = ExitStack()

    def _prometheus_config(self, *, rules: Path = RULES, with_exporter: bool = True) -> dict[str, Any]:
        return prometheus_config(
            exporters={self.node: [self.exporter.address]} if with_exporter else {},
            remediators=[self.remediator.address],
            alertmanagers=[self.alertmanager.address],
            rules=[rules],
        )

    def reload_prometheus(self, *, rules: Path = RULES, with_exporter: bool = True) -> None:
        """Change the rules, or take the exporter out of discovery, while everything runs."""
        self.prometheus.reload(self._prometheus_config(rules=rules, with_exporter=with_exporter))

    def _remediator_flags(self, control_plane: ControlPlane | None) -> tuple[str, ...]:
        token = f"--webhook.token-file={self._token_file}"
        if control_plane is None:
            return (token, "--backend=memory")
        return (token, f"--kubeconfig={control_plane.kubeconfig('neuron-remediator')}")

    def start(self) -> None:
        """Start every part, in the order in which they are of use; returns once all are ready."""
        if self._control_plane is not None:
            install(self._control_plane)
        self._running.enter_context(self.driver.beating())
        for service in (self.exporter, self.remediator):
            self._running.callback(service.process.stop)
            service.start()
        # It may have to wait for the Lease of a predecessor that could not give it back.
        wait_until(self._leads, timeout=30, what="the remediator to lead")
        for server in (self.alertmanager, self.prometheus):
            self._running.callback(server.stop)
            server.start()

    def _leads(self) -> bool:
        return self.remediator.value("neuron_remediator_leader") == 1

    def stop(self) -> None:
        """Stop every part, last started first."""
        self._running.close()

    def notify(self, *alerts: Mapping[str, Any], token: str = TOKEN) -> Response:
        """Post a notification to the remediator by hand, as Alertmanager would."""
        body = {"version": "4", "truncatedAlerts": 0, "alerts": list(alerts)}
        return self.post(json.dumps(body).encode(), token=token)

    def post(self, body: bytes, *, token: str = TOKEN) -> Response:
        """Post any bytes to the remediator's webhook."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return request("POST", self.webhook_url, body=body, headers=headers, check=False)

    def outcome(self, outcome: str) -> float:
        """How many alerts the remediator has counted with that outcome."""
        return self.remediator.value("neuron_remediator_alerts_total", outcome=outcome) or 0.0
