"""Many nodes, and the whole way from the pages of their exporters to taints.

The exporters are the stand-in of `many_exporters`; everything after their pages is real.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.stack.config import alertmanager_config, prometheus_config
from tests.stack.http import is_ok
from tests.stack.many_exporters import DEVICES
from tests.stack.monitoring import Alertmanager, Prometheus
from tests.stack.pipeline import RULES, TOKEN, Service, install
from tests.stack.process import Process, Startable, free_port

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane


class Exporters(Startable):
    """The page of each of these nodes, as one process."""

    def __init__(self, directory: Path, nodes: Sequence[str]) -> None:
        self._folder = directory / "out-of-reach"
        self._folder.mkdir()
        self.addresses = {node: f"127.0.0.1:{free_port()}" for node in nodes}
        for node in nodes:
            self.lose(node, ())
        ports = (f"{node}={address.rpartition(':')[2]}" for node, address in self.addresses.items())
        command = (sys.executable, "-m", "tests.stack.many_exporters", str(self._folder), *ports)
        self._process = Process("exporters", command, directory)

    def lose(self, node: str, devices: Collection[int] = range(DEVICES)) -> None:
        """Have exactly these devices of a node out of reach from now on; all the others read clean."""
        file = self._folder / node
        new = file.with_name(f".{node}.new")
        new.write_text(" ".join(map(str, devices)), encoding="utf-8")
        new.replace(file)

    def start(self) -> None:
        """Start it; returns once every page has readings."""
        self._process.start()
        self._process.wait_ready(lambda: all(is_ok(f"http://{one}/readyz") for one in self.addresses.values()))

    def stop(self) -> None:
        """End it in order."""
        self._process.stop()


class Fleet(Startable):
    """These nodes, which are there already, and everything that watches over them.

    With `repeat_interval` Alertmanager repeats notifications that often; without, as the route that ships says.
    """

    def __init__(
        self,
        directory: Path,
        control_plane: ControlPlane,
        nodes: Sequence[str],
        *,
        repeat_interval: str | None = None,
    ) -> None:
        self._control_plane = control_plane
        self._directory = directory
        self.exporters = Exporters(directory, nodes)
        token = directory / "token"
        token.write_text(f"{TOKEN}\n", encoding="utf-8")
        kubeconfig = control_plane.kubeconfig("neuron-remediator")
        flags = (f"--webhook.token-file={token}", f"--kubeconfig={kubeconfig}")
        self.remediator = Service("remediator", directory, flags)
        config = alertmanager_config(webhook_url=f"{self.remediator.url}/api/v1/alerts", token_file=token)
        if repeat_interval is not None:
            config["route"]["routes"][0]["repeat_interval"] = repeat_interval
        self.alertmanager = Alertmanager(directory, config)
        self.prometheus = Prometheus(
            directory,
            prometheus_config(
                exporters={node: [address] for node, address in self.exporters.addresses.items()},
                remediators=[self.remediator.address],
                alertmanagers=[self.alertmanager.address],
                rules=[RULES],
            ),
        )
        self._running = ExitStack()

    def start(self) -> None:
        """Start every part; returns once all are ready."""
        install(self._control_plane)
        # Whichever process it is by then.
        self._running.callback(lambda: self.remediator.process.stop())  # noqa: PLW0108
        self.remediator.start()
        for part in (self.exporters, self.alertmanager, self.prometheus):
            self._running.callback(part.stop)
            part.start()

    def stop(self) -> None:
        """Stop every part, last started first."""
        self._running.close()

    def restart_remediator(self, *flags: str) -> None:
        """End the remediator in order and start it anew at the same address, with these flags besides its own."""
        old = self.remediator.process
        old.stop()
        self.remediator.process = Process(old.name, (*old.argv, *flags), self._directory)
        self.remediator.start()
