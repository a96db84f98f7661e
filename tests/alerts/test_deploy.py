"""The Prometheus and Alertmanager configuration that ships, read by the real programs."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.__main__ import HOME, RULES
from tests.stack.binaries import require
from tests.stack.config import ALERTMANAGER, PROMETHEUS, alertmanager_config, prometheus_config
from tests.stack.controlplane import NAMESPACE
from tests.stack.monitoring import Prometheus
from tests.stack.process import wait_until

_EXPORTERS = {"node-a": ["127.0.0.1:1"], "node-b": ["127.0.0.1:2", "127.0.0.1:3"]}


def _prometheus_config() -> dict[str, Any]:
    return prometheus_config(
        exporters=_EXPORTERS,
        remediators=["127.0.0.1:4"],
        alertmanagers=["127.0.0.1:5", "127.0.0.1:6"],
        rules=[HOME / RULES],
    )


def _run(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    binary = require(tool)[tool]
    return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)


def _write(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def test_only_addresses_and_discovery_differ_from_what_ships() -> None:
    config = _prometheus_config()
    exporter, remediator = config["scrape_configs"]
    assert [entry["targets"] for entry in exporter["static_configs"]] == [
        ["127.0.0.1:1"],
        ["127.0.0.1:2"],
        ["127.0.0.1:3"],
    ]
    assert remediator["honor_labels"] is True
    shipped = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    for job, original in zip(config["scrape_configs"], shipped["scrape_configs"], strict=True):
        assert job["relabel_configs"] == original["relabel_configs"]
        assert job["scrape_interval"] == original["scrape_interval"] == "1s"


def test_the_remediators_job_sets_no_node_label() -> None:
    shipped = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    exporter, remediator = shipped["scrape_configs"]
    set_by = {
        job["job_name"]: {rule.get("target_label") for rule in job["relabel_configs"]} for job in (exporter, remediator)
    }
    assert set_by == {"neuron-exporter": {None, "node", "pod"}, "neuron-remediator": {None, "pod"}}


def test_pods_are_discovered_only_where_the_product_is_installed() -> None:
    """A pod's labels are chosen by whoever makes it: a pod of another namespace must not pass for one of ours."""
    shipped = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    found = [job["kubernetes_sd_configs"] for job in shipped["scrape_configs"]]
    assert found == [[{"role": "pod", "namespaces": {"names": [NAMESPACE]}}]] * 2


def test_the_webhook_url_the_token_and_people_are_all_that_differs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    config = alertmanager_config(webhook_url="http://127.0.0.1:7/x", token_file=token, humans_url="http://127.0.0.1:8")
    shipped = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))
    assert config["route"] == shipped["route"]
    receivers = {receiver["name"]: receiver.get("webhook_configs") for receiver in config["receivers"]}
    assert receivers["humans"] == [{"url": "http://127.0.0.1:8"}]
    (webhook,) = receivers["neuron-remediator"]
    assert webhook == {
        "url": "http://127.0.0.1:7/x",
        "send_resolved": True,
        "max_alerts": 0,
        "http_config": {
            "follow_redirects": False,
            "authorization": {"type": "Bearer", "credentials_file": str(token)},
        },
    }


@pytest.mark.stack
def test_promtool_accepts_what_ships_and_what_tests_make_of_it(tmp_path: Path) -> None:
    shipped = _run("promtool", "check", "config", "--syntax-only", PROMETHEUS)
    assert shipped.returncode == 0, shipped.stdout + shipped.stderr
    made = _run("promtool", "check", "config", _write(tmp_path / "prometheus.yaml", _prometheus_config()))
    assert made.returncode == 0, made.stdout + made.stderr
    assert "15 rules found" in made.stdout


@pytest.mark.stack
def test_amtool_accepts_what_ships_and_what_tests_make_of_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    config = alertmanager_config(webhook_url="http://127.0.0.1:7/x", token_file=token)
    for file in (ALERTMANAGER, _write(tmp_path / "alertmanager.yaml", config)):
        result = _run("amtool", "check-config", file)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.stack
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["alertname=NeuronDeviceUnreachable", "severity=critical", "remediation=taint"], "neuron-remediator,humans"),
        (["alertname=NeuronDeviceEFALinkError", "severity=warning", "remediation=taint"], "neuron-remediator,humans"),
        (["alertname=NeuronDeviceFaultNotHeld", "severity=none", "remediation=taint"], "neuron-remediator"),
        (["alertname=NeuronDeviceFaultLatched", "severity=none", "remediation=latch"], "neuron-remediator"),
        (["alertname=NeuronDeviceFaultCleared", "severity=none", "remediation=clear"], "neuron-remediator"),
        (["alertname=Heartbeat", "severity=none", "remediation=heartbeat"], "neuron-remediator"),
        (["alertname=NeuronDeviceFaultWithheld", "severity=critical"], "humans"),
        (["alertname=Other", "severity=none"], "nobody"),
        (["alertname=Other", "severity=none", "remediation=taints"], "nobody"),
        (["alertname=Other", "severity=warning", "remediation=hold"], "humans"),
        (["alertname=Other", "severity=info"], "humans"),
        (["alertname=Other"], "humans"),
    ],
)  # fmt: skip
def test_each_alert_goes_where_it_belongs(labels: list[str], receivers: str) -> None:
    result = _run(
        "amtool",
        "config",
        "routes",
        "test",
        f"--config.file={ALERTMANAGER}",
        f"--verify.receivers={receivers}",
        *labels,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.stack
def test_the_relabelling_that_ships_names_the_node_for_exporters_alone(tmp_path: Path) -> None:
    with Prometheus(tmp_path, _prometheus_config(), binary=require("prometheus")["prometheus"]) as prometheus:
        targets = wait_until(
            lambda: found if len(found := prometheus.targets()) == 4 else None, timeout=20, what="four targets"
        )
    labels = {target["scrapeUrl"].split("/")[2]: target["labels"] for target in targets}
    common = {"job": "neuron-exporter"}
    assert labels == {
        "127.0.0.1:1": {**common, "instance": "127.0.0.1:1", "node": "node-a", "pod": "neuron-exporter-0"},
        "127.0.0.1:2": {**common, "instance": "127.0.0.1:2", "node": "node-b", "pod": "neuron-exporter-1"},
        "127.0.0.1:3": {**common, "instance": "127.0.0.1:3", "node": "node-b", "pod": "neuron-exporter-2"},
        "127.0.0.1:4": {
            "job": "neuron-remediator",
            "instance": "127.0.0.1:4",
            "pod": "neuron-remediator-0",
        },
    }


_FORGED_PAGE = b"""\
# TYPE neuron_device_fault gauge
neuron_device_fault{node="victim",cluster="evil",device="0",fault="hbm"} 1
# TYPE neuron_remediator_leader gauge
neuron_remediator_leader{cluster="evil"} 1
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1
"""


class _ForgedPage(BaseHTTPRequestHandler):
    """Answers every scrape with series of both services."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(_FORGED_PAGE)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.mark.stack
def test_neither_service_can_speak_for_the_other(tmp_path: Path) -> None:
    """What one service's target says of the other's subject is dropped at the scrape, whatever labels it carries."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ForgedPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    config = prometheus_config(
        exporters={"node-a": [address]}, remediators=[address], alertmanagers=[], rules=[HOME / RULES]
    )
    try:
        with Prometheus(tmp_path, config, binary=require("prometheus")["prometheus"]) as prometheus:
            scraped = "count(process_start_time_seconds) == 2"
            wait_until(lambda: prometheus.query(scraped), timeout=20, what="both targets to be scraped")
            faults = prometheus.query("neuron_device_fault")
            leaders = prometheus.query("neuron_remediator_leader")
    finally:
        server.shutdown()
        server.server_close()
    assert [(labels["job"], labels["node"]) for labels, _ in faults] == [("neuron-exporter", "node-a")]
    assert [labels["job"] for labels, _ in leaders] == ["neuron-remediator"]
    assert not any("cluster" in labels for labels, _ in faults + leaders)
