"""What the documents promise is what the code has: faults, series, flags, links, queries."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.faults import FAULTS
from exporter import settings as exporter_settings
from exporter.families import FAMILIES, Family
from exporter.service import flags
from exporter.service.flags import Flag
from remediator import settings as remediator_settings
from remediator.assembly import Terms, assemble
from remediator.audit import AllTraces
from remediator.backends.memory import AnyCluster, MemoryBackend
from remediator.election import AlwaysLeads
from remediator.policy import Policy
from remediator.traces import Reason

ROOT = Path(__file__).parents[1]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _remediator_series() -> set[str]:
    backend = MemoryBackend()
    parts = assemble(
        backend=backend,
        held=backend.records,
        surroundings=AnyCluster("neuron.aws.com"),
        leadership=AlwaysLeads(),
        terms=Terms(policy=Policy(taint_key="neuron.aws.com/device-unhealthy")),
        traces=AllTraces(()),
        clock=lambda: datetime.now(UTC),
        elapsed=time.monotonic,
    )
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in parts.metrics.registry.collect()
        if family.name.startswith("neuron_")
    }


def _kept(job: str) -> re.Pattern[str]:
    """Return what the shipped configuration keeps of a job's page."""
    jobs: list[dict[str, Any]] = yaml.safe_load(_text("deploy/prometheus.yaml"))["scrape_configs"]
    (rules,) = (entry["metric_relabel_configs"] for entry in jobs if entry["job_name"] == job)
    (regex,) = (rule["regex"] for rule in rules if rule.get("action") == "keep")
    return re.compile(regex)


def _flags() -> set[str]:
    modules = (flags, exporter_settings, remediator_settings)
    return {value.name for module in modules for value in vars(module).values() if isinstance(value, Flag)}


def test_the_readme_has_the_table_of_the_faults() -> None:
    table = _text("README.md").partition("### The faults")[2].partition("###")[0]
    _heading, _line, *rows = [line for line in table.splitlines() if line.startswith("|")]
    assert rows == [
        f"| {fault.name} | {fault.effect} | {fault.value} | {'no' if fault.latched else 'yes'} |"
        for fault in FAULTS.values()
    ]


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_each_series_of_the_exporter_is_public_and_scraped(family: Family) -> None:
    labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
    assert f"`{family.name}{labels}`" in _text("CHANGELOG.md")
    assert _kept("neuron-exporter").fullmatch(family.name)


@pytest.mark.parametrize("name", sorted(_remediator_series()))
def test_each_series_of_the_remediator_is_public_and_scraped(name: str) -> None:
    assert re.search(rf"`{name}[`{{]", _text("CHANGELOG.md"))
    assert _kept("neuron-remediator").fullmatch(name)


@pytest.mark.parametrize("flag", sorted(_flags()))
def test_each_flag_is_public(flag: str) -> None:
    assert f"`--{flag}`" in _text("CHANGELOG.md")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/stack/README.md"])
def test_each_link_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", _text(name))
    relative = [link for link in links if not link.startswith(("http://", "https://"))]
    assert [link for link in relative if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_the_alerts_of_the_readme_ask_for_series_that_there_are() -> None:
    """They go to people: none may look like a request to the remediator."""
    (block,) = re.findall(r"```yaml\n(.*?)```", _text("README.md"), re.DOTALL)
    (group,) = yaml.safe_load(block)["groups"]
    asked = set(re.findall(r"neuron_\w+", " ".join(rule["expr"] for rule in group["rules"])))
    assert asked == {"neuron_source_up", "neuron_device_fault", "neuron_remediator_leader", "neuron_remediator_record"}
    assert asked <= {family.name for family in FAMILIES} | _remediator_series()
    assert [rule["alert"] for rule in group["rules"] if "remediation" in rule["labels"]] == []


def test_the_reasons_of_events_are_public() -> None:
    listed = set(re.findall(r"`(NeuronDevice(?:Taint|FaultRecorded)[A-Za-z]*)`", _text("CHANGELOG.md")))
    assert listed == set(Reason)
