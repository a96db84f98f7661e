"""The configuration that ships, pointed at processes on this machine.

Pure, apart from reading the two files under `deploy/`. Only addresses, paths and discovery change. Routes,
relabelling, intervals and the rest are what users get: `AssertionError` if a change here ever touches more.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
PROMETHEUS: Final = DEPLOY / "prometheus.yaml"
ALERTMANAGER: Final = DEPLOY / "alertmanager.yaml"

_REPLACED: Final = "replaced"


def prometheus_config(
    *,
    exporters: Mapping[str, Sequence[str]],
    remediators: Sequence[str],
    alertmanagers: Sequence[str],
    rules: Sequence[Path],
) -> dict[str, Any]:
    """Return `deploy/prometheus.yaml` for these addresses ("host:port"), exporters by the name of their node.

    The targets carry the labels that pod discovery would give them, so the relabelling that ships is what makes
    their final labels.
    """
    shipped = _load(PROMETHEUS)
    config = copy.deepcopy(shipped)
    config["rule_files"] = [str(path.resolve()) for path in rules]
    (alertmanager,) = config["alerting"]["alertmanagers"]
    alertmanager["static_configs"] = [{"targets": list(alertmanagers)}]
    pods = {
        "neuron-exporter": [(node, address) for node, addresses in exporters.items() for address in addresses],
        "neuron-remediator": [("control-plane", address) for address in remediators],
    }
    for job in config["scrape_configs"]:
        name = job["job_name"]
        del job["kubernetes_sd_configs"]
        job["static_configs"] = [
            _discovered(name, f"{name}-{number}", node, address) for number, (node, address) in enumerate(pods[name])
        ]
    assert _masked_prometheus(config) == _masked_prometheus(shipped)
    return config


def alertmanager_config(*, webhook_url: str, token_file: Path, humans_url: str | None = None) -> dict[str, Any]:
    """Return `deploy/alertmanager.yaml` with the remediator at this URL; `humans_url` is a webhook for people."""
    shipped = _load(ALERTMANAGER)
    config = copy.deepcopy(shipped)
    webhook = _webhook(config)
    webhook["url"] = webhook_url
    webhook["http_config"]["authorization"]["credentials_file"] = str(token_file.resolve())
    if humans_url is not None:
        _receiver(config, "humans")["webhook_configs"] = [{"url": humans_url}]
    assert _masked_alertmanager(config) == _masked_alertmanager(shipped)
    return config


def _load(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


def _discovered(app: str, pod: str, node: str, address: str) -> dict[str, Any]:
    meta = {
        "pod_label_app_kubernetes_io_name": app,
        "pod_container_port_name": "metrics",
        "pod_phase": "Running",
        "pod_node_name": node,
        "pod_name": pod,
    }
    return {
        "targets": [address],
        "labels": {f"__meta_kubernetes_{name}": value for name, value in meta.items()},
    }


def _receiver(config: dict[str, Any], name: str) -> dict[str, Any]:
    receiver: dict[str, Any]
    (receiver,) = (entry for entry in config["receivers"] if entry["name"] == name)
    return receiver


def _webhook(config: dict[str, Any]) -> dict[str, Any]:
    webhook: dict[str, Any]
    (webhook,) = _receiver(config, "neuron-remediator")["webhook_configs"]
    return webhook


def _masked_prometheus(config: dict[str, Any]) -> dict[str, Any]:
    masked = copy.deepcopy(config)
    masked["rule_files"] = _REPLACED
    for alertmanager in masked["alerting"]["alertmanagers"]:
        alertmanager["static_configs"] = _REPLACED
    for job in masked["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)
        job.pop("static_configs", None)
    return masked


def _masked_alertmanager(config: dict[str, Any]) -> dict[str, Any]:
    masked = copy.deepcopy(config)
    webhook = _webhook(masked)
    webhook["url"] = _REPLACED
    webhook["http_config"]["authorization"]["credentials_file"] = _REPLACED
    _receiver(masked, "humans").pop("webhook_configs", None)
    return masked
