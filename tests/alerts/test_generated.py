"""The generated files are current, deterministic, well formed, and written by the command that says so."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts import __main__ as command
from alerts.faults import CLEARED, FAULTS, LATCHED, NOT_HELD, WITHHELD, Fault
from alerts.intervals import Intervals
from alerts.render import rules_file
from alerts.runbook import runbook, withheld_runbook
from remediator import metrics
from remediator.settings import MAX_NEW, MAX_UNAVAILABLE
from tests.alerts.suite import COMMITTED, outdated

_HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Does not clear?")
_MACHINE = {NOT_HELD: "taint", LATCHED: "latch", CLEARED: "clear"}


def _rules(text: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(text)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of its own that stands for `alerts/`."""
    monkeypatch.setattr(command, "HOME", tmp_path)
    return tmp_path


def test_the_committed_rules_and_runbooks_are_current() -> None:
    assert command.find_outdated(command.HOME) == []


def test_the_committed_promtool_file_is_current() -> None:
    assert outdated(COMMITTED) is None


def test_a_stale_promtool_file_is_named(tmp_path: Path) -> None:
    stale = tmp_path / "stale.yaml"
    said = f'checking "{stale}": not what the cases give; run `make generate`'
    assert outdated(stale) == said
    stale.write_text("tests: []\n", encoding="utf-8")
    assert outdated(stale) == said


def test_check_names_what_is_not_current_and_generate_repairs_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["generate"]) == 0
    assert command.main(["check"]) == 0
    assert capsys.readouterr().err == f'wrote {len(FAULTS) + 2} files below "{home}"\n'
    (home / "neuron-device-health.rules.yaml").write_text("groups: []\n")
    (home / "runbooks" / "NeuronDeviceUnreachable.md").unlink()
    assert command.main(["check"]) == 1
    rules, page = home / "neuron-device-health.rules.yaml", home / "runbooks" / "NeuronDeviceUnreachable.md"
    assert capsys.readouterr().err == (
        f'checking "{rules}": not what the fault table gives; run `make generate`\n'
        f'checking "{page}": the file is missing; run `make generate`\n'
    )
    assert command.main(["generate"]) == 0
    assert command.main(["check"]) == 0


def test_check_names_a_runbook_no_fault_has(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["generate"])
    (home / "runbooks" / "NeuronDeviceGone.md").write_text("")
    assert command.main(["check"]) == 1
    assert 'NeuronDeviceGone.md": no fault has this alert' in capsys.readouterr().err


def test_generate_with_output_writes_the_rules_asked_for_and_nothing_else(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = home / "rules.yaml"
    arguments = ["--scrape-interval=15s", "--evaluation-interval=1m", "--runbook-url=https://example.org/r/"]
    assert command.main(["generate", *arguments, "--output", str(output)]) == 0
    assert capsys.readouterr().err == f'wrote "{output}"\n'
    intervals = Intervals(scrape=15, evaluation=60)
    text = output.read_text(encoding="utf-8")
    assert text == rules_file(FAULTS.values(), intervals, runbook_url="https://example.org/r")
    assert [path for path in home.rglob("*") if path.is_file()] == [output]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scrape-interval=15s"], "give --output for others"),
        (["--runbook-url=https://example.org"], "give --output for others"),
        (["--scrape-interval=soon"], 'reading interval "soon": not a duration; expected whole seconds or minutes'),
        (["--evaluation-interval=0s"], 'setting the evaluation interval to "0s": out of range; expected 1s to 120s'),
        (["--runbook-url=docs/"], 'reading URL "docs/": not a web address; expected one that begins with "https://"'),
        (["--output=/dev/null/rules.yaml"], 'writing "/dev/null/rules.yaml": '),
        (["--output=/no-such-folder/rules.yaml"], 'writing "/no-such-folder/rules.yaml": No such file or directory'),
    ],
)
def test_wrong_usage_is_named_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(["generate", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_list_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(FAULTS)
    for line, fault in zip(lines[1:], FAULTS.values(), strict=True):
        assert [fault.name, fault.alert, fault.severity, fault.effect, fault.value] == line.split()[:5]


@pytest.mark.parametrize("url", [None, "https://example.org/runbooks"])
def test_every_alert_has_what_people_and_the_remediator_need(url: str | None) -> None:
    rules = _rules(rules_file(FAULTS.values(), Intervals(), runbook_url=url))
    by_alert = {rule["alert"]: rule for rule in rules}
    assert list(by_alert) == [*(fault.alert for fault in FAULTS.values()), WITHHELD, *_MACHINE]
    bare = [rule["alert"] for rule in rules if not rule["annotations"].keys() >= {"summary", "description"}]
    assert bare == [], "these lack a summary or a description"
    for fault in FAULTS.values():
        rule = by_alert[fault.alert]
        assert rule["labels"] == {"severity": fault.severity, "remediation": "taint"}
        assert "for" not in rule
        link = None if url is None else f"{url}/{fault.alert}.md"
        assert rule["annotations"].get("runbook_url") == link
    # For people alone: without a `remediation` label it asks the remediator for nothing.
    assert by_alert[WITHHELD]["labels"] == {"severity": "critical"}
    link = None if url is None else f"{url}/{WITHHELD}.md"
    assert by_alert[WITHHELD]["annotations"].get("runbook_url") == link
    for alert, remediation in _MACHINE.items():
        assert by_alert[alert]["labels"] == {"severity": "none", "remediation": remediation}
        assert "runbook_url" not in by_alert[alert]["annotations"]


# A JSON string is a YAML string up to U+FFFF; above it, JSON writes pairs that YAML does not join.
_text = st.text(alphabet=st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@settings(deadline=None)  # PyYAML's first parse is slow, and the machine may be busy
@given(_text, _text)
def test_whatever_a_row_says_the_file_stays_well_formed(finding: str, url: str) -> None:
    fault = FAULTS["link_efa"]
    # Any text at all, to be sure of the quoting: quotes, line ends, colons, braces, control characters.
    odd = Fault(**{field: getattr(fault, field) for field in Fault.__slots__} | {"finding": finding})
    rule = _rules(rules_file([odd], Intervals(), runbook_url=url))[0]
    assert rule["annotations"]["summary"] == f"A Neuron device {finding}."
    assert rule["annotations"]["runbook_url"] == f"{url.rstrip('/')}/{fault.alert}.md"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_runbook_has_its_headings_and_every_fact_of_its_row(fault: Fault) -> None:
    page = runbook(fault)
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [f"# {fault.alert}", *(f"## {heading}" for heading in _HEADINGS)]
    for text in (fault.meaning, fault.impact, fault.diagnosis, fault.mitigation):
        assert text in page
    assert f"device-unhealthy={fault.value}:{fault.effect}" in page
    diagnosis, mitigation = (page.partition(f"## {heading}")[2] for heading in ("Diagnosis", "Mitigation"))
    assert re.findall("`.+`", diagnosis)[0] == "`neuron-taints explain <node>/<device>`"
    assert "`neuron-taints release <node>/<device> --for 2h --reason '…'`" in mitigation
    assert "$" not in page


def test_the_runbook_of_what_is_withheld_has_its_headings_and_names_what_there_is() -> None:
    page = withheld_runbook()
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [f"# {WITHHELD}", *(f"## {heading}" for heading in _HEADINGS)]
    assert "$" not in page
    flags = {f"--{flag.name}" for flag in (MAX_UNAVAILABLE, MAX_NEW)}
    assert set(re.findall(r"--[a-z][a-z.-]+", page)) == flags | {"--state"}
    exported = Path(metrics.__file__).read_text(encoding="utf-8")
    series = {name.removesuffix("_total") for name in re.findall(r"\bneuron_\w+", page)}
    assert len(series) == 4
    latched = [f"`{fault.name}`" for fault in FAULTS.values() if fault.latched]
    assert f"but for latched ones ({', '.join(latched)}, and" in page, "clean readings do not end these"
    assert {name for name in series if f'"{name}"' not in exported} == set()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_runbook_has_a_query_for_each_condition_of_the_clear(fault: Fault) -> None:
    rule = next(rule for rule in _rules(rules_file([fault], Intervals())) if rule["alert"] == CLEARED)
    series = set(re.findall(r"\b(?:neuron_\w+|up)(?=\{)", rule["expr"]))
    ranges = set(re.findall(r"\[\w+\]", rule["expr"])) & {f"[{Intervals().transition_window}s]", "[30m]"}
    stays = runbook(fault).partition("## Does not clear?")[2]
    asked = {text for text in (*series, *ranges) if text in stays}
    assert asked == (set() if fault.latched else series | ranges)
    assert len(series) >= 8
    assert len(ranges) == 2
    assert ("never clear it" in stays) == fault.latched
