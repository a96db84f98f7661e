"""What is typed wrongly is refused before anything is asked or read, in one sentence, with exit code 2."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from remediator.cli.__main__ import run
from remediator.cli.address import Address, parse_address
from remediator.cli.options import RELEASE_TIME
from tests.remediator.cli.conftest import RIGHTS
from tests.remediator.samples import NODE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.remediator.cli.conftest import Said
    from tests.remediator.samples import Json

    Taints = Callable[..., Said]

REASON = ("--reason", "why")
FOR = ("--for", "4h")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("lst",), "No such command 'lst'"),
        (("list", "a/b"), "expected a device number such as '3', got 'b'"),
        (("list", "--state", "gone"), "'gone' is not one of"),
        (("list", "-o", "yaml"), "'yaml' is not one of"),
        (("list", "--driver", "no/driver"), "expected a driver name"),
        (("list", "--kubeconfig", ""), "expected a path, got ''"),
        (("explain",), "Missing argument"),
        (("explain", "x" * 300), "expected the name of a Node"),
        (("explain", "../etc/passwd"), "expected the name of a Node, got '..'"),
        (("explain", "a/1/hbm/x"), "expected NODE, NODE/DEVICE or NODE/DEVICE/FAULT"),
        (("explain", "\x1b[31mnode"), "got '\\x1b[31mnode'"),
        (("explain", "nöde"), "got 'n\\xf6de'"),
        (("explain", "node/٣"), "expected a device number"),
        (("explain", "node/-1"), "expected a device number"),
        (("explain", "node/99999"), "expected a device number"),
        (("explain", "node/03"), "expected a device number"),
        (("explain", "node/3/HBM!"), "expected a fault such as 'hbm'"),
        (
            ("explain", "us-2/neuron-node"),
            "got 'neuron-node'; for the whole node write us-2 alone (release: with --all-",
        ),
        (
            ("release", "us-1/neuron-node", *FOR, *REASON, "--yes"),
            "; for the whole node write us-1 alone (release: with",
        ),
        (("explain", ""), "expected the name of a Node, got ''"),
        (("explain", NODE, "--runbook-url", "\n"), "expected an address or a folder, got '\\n'"),
        (("release", NODE, *FOR, *REASON, "--yes"), f"expected a device, such as {NODE}/3, or --all-devices"),
        (("release", f"{NODE}/3", "--all-devices", *FOR, *REASON, "--yes"), "--all-devices goes with a node alone"),
        (("release", f"{NODE}/3", *REASON, "--yes"), "expected --for DURATION"),
        (("release", f"{NODE}/3", *FOR, "--yes"), "expected --reason TEXT"),
        (("release", f"{NODE}/3", *FOR, *REASON, "--end", "--yes"), "--end and --for exclude each other"),
        (("release", f"{NODE}/3", *FOR, *REASON), "there is no terminal to ask for confirmation"),
        (("release", f"{NODE}/3", *FOR, "--reason", "  ", "--yes"), "expected 1 to 200 printable characters"),
        (("release", f"{NODE}/3", *FOR, "--reason", "x" * 201, "--yes"), "expected 1 to 200 printable characters"),
        (("release", f"{NODE}/3", *FOR, "--reason", "a\nb", "--yes"), "expected 1 to 200 printable characters"),
        (("release", f"{NODE}/3", *FOR, "--reason", "\udcff", "--yes"), "expected 1 to 200 printable characters"),
        (("release", f"{NODE}/3", *FOR, *REASON, "--by", "\x07", "--yes"), "expected 1 to 200 printable characters"),
        *(
            (("release", f"{NODE}/3", "--for", length, *REASON, "--yes"), "expected a duration such as '30m'")
            for length in ("0", "0s", "-1h", "1", "h", "8d", "7d1s", "9" * 400 + "d", "1e3s", "٣h", "")
        ),
    ],
)
def test_wrong_usage_is_one_sentence(taints: Taints, line: tuple[str, ...], text: str) -> None:
    said = taints(*line)
    assert (said.code, said.out) == (2, "")
    assert text in said.err
    assert said.err.startswith("neuron-taints: ")
    assert said.err.rstrip().endswith("--help')")
    assert len(said.err.splitlines()) == 1
    assert said.err.strip().isprintable()


def test_no_command_shows_the_help(taints: Taints) -> None:
    said = taints()
    assert said.code == 2
    assert "neuron-taints explain" in said.err


@pytest.mark.parametrize("command", ["list", "explain", "release"])
def test_each_help_teaches_by_example(taints: Taints, command: str) -> None:
    said = taints(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"  neuron-taints {command} ip-10-1-1-200.ec2.internal" in said.out


def _leading(cluster: Json, user: Json) -> str:
    return yaml.safe_dump(
        {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"} | cluster}],
            "users": [{"name": "u", "user": user}],
        }
    )


def _login_command(command: str) -> Json:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "\x00\x01",
        "apiVersion: v1",
        "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: []\nusers: []",
        _leading({"certificate-authority": "/nowhere"}, {}),
        _leading({"certificate-authority-data": "bm8="}, {}),
        _leading({"server": "no address"}, {}),
        _leading({"server": "https://[::1"}, {}),
        _leading({"server": 5}, {}),
        _leading({}, {"tokenFile": "/nowhere"}),
        _leading({}, _login_command("no-such-command")),
        _leading({}, _login_command("/bin/false")),
    ],
)
def test_a_broken_kubeconfig_is_said_to_be(taints: Taints, tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    said = taints("list", f"--kubeconfig={file}")
    assert (said.code, said.out) == (1, "")
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("neuron-taints: ")
    assert "; " in said.err, "the next step"
    assert said.err.strip().isprintable()


def test_a_kubeconfig_that_is_not_there_is_said_not_to_be(taints: Taints, tmp_path: Path) -> None:
    said = taints("list", f"--kubeconfig={tmp_path / 'none'}")
    assert said.code == 1
    assert said.err == (
        f"neuron-taints: no credentials: there is no such file as '{tmp_path / 'none'}'; "
        "name another one with --kubeconfig\n"
    )


def test_a_file_of_the_environment_that_is_not_there_is_said_not_to_be(
    taints: Taints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'one'}:{tmp_path / 'other'}")
    said = taints("list")
    assert said.code == 1
    assert "/other', which $KUBECONFIG names; name another one with --kubeconfig" in said.err


def test_no_credentials_at_all_is_said_with_where_they_were_looked_for(
    taints: Taints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = taints("list")
    assert said.code == 1
    assert said.err == (
        "neuron-taints: no credentials: $KUBECONFIG is not set, ~/.kube/config is not there, and this is no Pod; "
        "name a file with --kubeconfig\n"
    )


@given(st.text(max_size=300))
def test_no_argument_makes_more_than_a_refusal(text: str) -> None:
    refusal = ""
    try:
        address = parse_address(text)
    except ValueError as error:
        refusal = str(error)
    else:
        assert parse_address(str(address)) == address
    assert refusal.isprintable()


def test_a_target_can_be_pasted_for_its_device() -> None:
    assert parse_address("node/neuron-device-3/link_efa") == Address("node", 3, "link_efa")


@pytest.mark.parametrize(("text", "hours"), [("4h", 4), ("1h30m", 1.5), ("7d", 168), ("5400s", 1.5)])
def test_durations_are_written_as_in_prometheus(text: str, hours: float) -> None:
    assert RELEASE_TIME.convert(text, None, None) == timedelta(hours=hours)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("neuron-taints, version ")


def test_the_help_lists_the_rights_that_suffice(taints: Taints) -> None:
    """The other tests act as an operator with these rights and no others."""
    listed = taints("release", "--help").out.partition("Rights needed")[2]
    for group, plural, verbs in RIGHTS["both"]:
        assert re.search(rf"^ +{group or re.escape('(core)')} +{plural} +{', '.join(verbs)}\b", listed, re.MULTILINE)
