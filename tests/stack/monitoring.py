"""A real Prometheus and a real Alertmanager on loopback, with a configuration given as a dict."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.stack.binaries import locate
from tests.stack.http import is_ok, request
from tests.stack.process import Process, Startable, free_port

Config = Mapping[str, Any]


class _Server(Startable):
    """What both have in common. The port is known before the start, so that configurations can name each other."""

    name: str

    def __init__(self, directory: Path, config: Config, *, binary: Path | None = None) -> None:
        self._directory = directory
        self._config = config
        self._address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self._address}"
        self.config_file = directory / f"{self.name}.yaml"
        common = (f"--config.file={self.config_file}", f"--web.listen-address={self._address}")
        command: list[str | Path] = [binary or locate(self.name), *common, *self._arguments()]
        self.process = Process(self.name, command, directory)

    @property
    def address(self) -> str:
        """Host and port, as a target or a static configuration wants it."""
        return self._address

    def start(self) -> None:
        """Write the configuration and start; returns once it is ready, ``RuntimeError`` shows the log."""
        self._write()
        self.process.start()
        self.process.wait_ready(lambda: is_ok(f"{self.url}/-/ready"))

    def stop(self) -> None:
        """End it in order; a later ``start`` finds its data."""
        self.process.stop()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()

    def reload(self, config: Config | None = None) -> None:
        """Make it read its files again, with another configuration if given; ``HTTPError`` if it rejects them."""
        if config is not None:
            self._config = config
        self._write()
        request("POST", f"{self.url}/-/reload")

    @abstractmethod
    def _arguments(self) -> tuple[str, ...]:
        """Give the arguments of this program alone."""

    def _document(self) -> Config:
        return self._config

    def _write(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(self._document()), sort_keys=False)
        self.config_file.write_text(text, encoding="utf-8")


class Prometheus(_Server):
    """Prometheus 2.42 or later. ``rule_files`` are added to those of ``config``."""

    name = "prometheus"

    def __init__(
        self, directory: Path, config: Config, rule_files: Sequence[Path] = (), *, binary: Path | None = None
    ) -> None:
        self._rule_files = tuple(map(str, rule_files))
        super().__init__(directory, config, binary=binary)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluate an instant-vector or scalar expression now; the metric's name is the label ``__name__``."""
        data = self._get("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, _number(data["result"][1]))]
        return [(series["metric"], _number(series["value"][1])) for series in data["result"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the pending and firing alerts: ``labels``, ``annotations``, ``state``, ``activeAt``, ``value``."""
        alerts: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return alerts

    def targets(self) -> list[dict[str, Any]]:
        """Return the active scrape targets: ``labels``, ``health``, ``lastError`` and more."""
        targets: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return targets

    def _get(self, endpoint: str, **parameters: str) -> Any:
        answer = request("GET", f"{self.url}/api/v1/{endpoint}?{urlencode(parameters)}").json()
        return answer["data"]

    def _arguments(self) -> tuple[str, ...]:
        return (
            f"--storage.tsdb.path={self._directory / 'prometheus-data'}",
            "--web.enable-lifecycle",
            # What the product recommends: Alertmanager learns within seconds what it missed.
            "--rules.alert.resend-delay=5s",
            "--log.level=info",
        )

    def _document(self) -> Config:
        rule_files = [*self._config.get("rule_files", ()), *self._rule_files]
        return {**self._config, "rule_files": rule_files}


class Alertmanager(_Server):
    """Alertmanager 0.25 or later, without a cluster."""

    name = "alertmanager"

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts it holds, silenced and inhibited ones too, as its API gives them."""
        alerts: list[dict[str, Any]] = request("GET", f"{self.url}/api/v2/alerts").json()
        return alerts

    def silence(self, labels: Mapping[str, str], *, minutes: float = 60) -> str:
        """Silence what has exactly these labels; returns the silence's id."""
        now = datetime.now(UTC)
        body = {
            "matchers": [
                {"name": name, "value": value, "isRegex": False, "isEqual": True} for name, value in labels.items()
            ],
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(minutes=minutes)).isoformat(),
            "createdBy": "test",
            "comment": "test",
        }
        return str(request("POST", f"{self.url}/api/v2/silences", body=body).json()["silenceID"])

    def _arguments(self) -> tuple[str, ...]:
        return (
            f"--storage.path={self._directory / 'alertmanager-data'}",
            "--cluster.listen-address=",
            "--log.level=debug",  # notifications are logged at this level alone
        )


def _number(text: str) -> float:
    return {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan}.get(text) or float(text)
