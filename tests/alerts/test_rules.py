"""The rules, tried by the real promtool: every case, at every supported pace, and each condition by its absence."""

import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from alerts.__main__ import HOME, RULES
from alerts.faults import CLEARED, FAULTS
from alerts.intervals import Intervals
from alerts.render import rules_file
from tests.alerts.cases import not_held_cases
from tests.alerts.cases_cleared import cleared_cases
from tests.alerts.cases_withheld import withheld_cases
from tests.alerts.promtool import promtool_file
from tests.alerts.suite import COMMITTED, all_cases
from tests.stack.binaries import require

pytestmark = pytest.mark.stack

# One second is what the committed files are for.
_PACES = [
    (5, 5),
    (15, 15),
    (30, 30),
    (5, 15),
    pytest.param(15, 5, marks=pytest.mark.slow),
    pytest.param(30, 15, marks=pytest.mark.slow),
    pytest.param(7, 3, marks=pytest.mark.slow),
]

Promtool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def promtool() -> Promtool:
    """Give a function that runs promtool."""
    binary = require("promtool")["promtool"]

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Give a function that writes a file of this name."""

    def write_text(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def _output(result: subprocess.CompletedProcess[str]) -> str:
    return result.stdout + result.stderr


def test_the_committed_cases_pass_on_the_committed_rules(promtool: Promtool) -> None:
    lint = promtool("check", "rules", "--lint=all", "--lint-fatal", HOME / RULES)
    assert lint.returncode == 0, _output(lint)
    result = promtool("test", "rules", COMMITTED)
    assert result.returncode == 0, _output(result)


@pytest.mark.parametrize(("scrape", "evaluation"), _PACES)
def test_every_case_passes(promtool: Promtool, write: Callable[[str, str], Path], scrape: int, evaluation: int) -> None:
    intervals = Intervals(scrape=scrape, evaluation=evaluation)
    rules = write("rules.yaml", rules_file(FAULTS.values(), intervals))
    lint = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
    assert lint.returncode == 0, _output(lint)
    cases = write("cases.yaml", promtool_file(rules, intervals, all_cases(intervals)))
    result = promtool("test", "rules", cases)
    assert result.returncode == 0, _output(result)


_SUM = "sum by (cluster, node, device, fault)"
_READ_ABSENT = f"""{_SUM.replace("sum", "max")} (neuron_device_fault{{node!=""}}) == 0"""
_INTERVALS = Intervals(scrape=5, evaluation=5)
_RULES = rules_file(FAULTS.values(), _INTERVALS)
_CLEARED_LINES = _RULES[_RULES.index(f"- alert: {CLEARED}") :].splitlines(keepends=True)
_CONDITIONS = [
    (join, condition)
    for join, condition in pairwise(_CLEARED_LINES)
    if join.lstrip().startswith(("and on", "unless on"))
]


def test_cleared_has_all_its_conditions() -> None:
    assert len(_CONDITIONS) == 11


@pytest.mark.slow
@pytest.mark.parametrize(("join", "condition"), _CONDITIONS, ids=[text.strip()[:70] for _, text in _CONDITIONS])
def test_no_condition_of_cleared_can_be_left_out_unnoticed(
    promtool: Promtool, write: Callable[[str, str], Path], join: str, condition: str
) -> None:
    assert _RULES.count(join + condition) == 1
    rules = write("rules.yaml", _RULES.replace(join + condition, ""))
    cases = write("cases.yaml", promtool_file(rules, _INTERVALS, cleared_cases(_INTERVALS)))
    result = promtool("test", "rules", cases)
    assert "FAILED" in _output(result)
    assert CLEARED in _output(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "instead"),
    [
        (f"{_SUM} (neuron_device_fault{{", f"{_SUM.replace('sum', 'max')} (neuron_device_fault{{"),
        ("avg by (cluster, node) (neuron_source_up", "max by (cluster, node) (neuron_source_up"),
        ("avg by (cluster, node) (neuron_source_up", "min by (cluster, node) (neuron_source_up"),
        ("min by (cluster, node) (up", "max by (cluster, node) (up"),
        ('latched="false",episode!=""', 'latched="false"'),
        (" < 15)", " < 60)"),
        ("for: 20s", "for: 10s"),
        ("for: 20s", "for: 30s"),
        ("[30s]", "[10s]"),
        ("[30m]", "[10m]"),
        (" >= 3)", " >= 4)"),
        (" >= 3)", " >= 2)"),
        ("active|covered|released|opted-out", "active|covered|released|opted-out|withheld"),
        ("active|covered|released|opted-out", "active|covered|released"),
        ("for: 15s", "for: 5s"),
        ('state="withheld",latched!="false"', 'state="withheld",latched="false"'),
        (_READ_ABSENT, _READ_ABSENT.replace("max", "min")),
        (_READ_ABSENT, _READ_ABSENT.replace("== 0", "< 2")),
        ("count by (cluster) (", "count by (cluster, node) ("),
        ("for: 45s", "for: 40s"),
        ("for: 45s", "for: 50s"),
    ],
)  # fmt: skip
def test_no_detail_can_change_unnoticed(
    promtool: Promtool, write: Callable[[str, str], Path], of: str, instead: str
) -> None:
    assert of in _RULES
    rules = write("rules.yaml", _RULES.replace(of, instead))
    cases = [*not_held_cases(_INTERVALS), *cleared_cases(_INTERVALS), *withheld_cases(_INTERVALS)]
    result = promtool("test", "rules", write("cases.yaml", promtool_file(rules, _INTERVALS, cases)))
    assert "FAILED" in _output(result)
