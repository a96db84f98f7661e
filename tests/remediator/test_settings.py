"""Flags and environment of the remediator: closed by default, and every problem said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.faults import Effect
from exporter.service.flags import UsageError
from exporter.service.parsers import Address
from remediator.budget import Limits, Share
from remediator.settings import Settings, read

TOKEN = "--webhook.token-file=/run/token"
KEY_EXPECTED = "expected a label name such as 'neuron.aws.com/device-unhealthy'"


def problems(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(UsageError) as caught:
        read(argv, environ)
    return caught.value.problems


def test_what_is_not_said_is_this() -> None:
    assert read([TOKEN], {}) == Settings(
        listen_address=Address("", 9780),
        log_level="info",
        log_format="logfmt",
        token_file=Path("/run/token"),
        cluster=None,
        driver="neuron.aws.com",
        taint_key="neuron.aws.com/device-unhealthy",
        backend="auto",
        kubeconfig=None,
    )


def test_the_environment_says_what_no_flag_does() -> None:
    environ = {
        "NEURON_REMEDIATOR_WEBHOOK_TOKEN_FILE": "/run/other",
        "NEURON_REMEDIATOR_CLUSTER": "c1",
        "NEURON_REMEDIATOR_BACKEND": "memory",
        "NEURON_REMEDIATOR_TAINT_KEY": "",
    }
    settings = read(["--cluster=c2"], environ)

    assert settings.token_file == Path("/run/other")
    assert settings.cluster == "c2"
    assert settings.backend == "memory"
    assert settings.taint_key == "neuron.aws.com/device-unhealthy"


@pytest.mark.parametrize("argv", [[], ["--webhook.token-file="], ["--webhook.allow-anonymous=false"]])
def test_nothing_starts_that_would_let_everybody_in(argv: list[str]) -> None:
    (problem,) = problems(*argv)

    assert problem.startswith("starting: nothing says who may send notifications; expected --webhook.token-file=FILE")


def test_letting_everybody_in_takes_a_word() -> None:
    assert read(["--webhook.allow-anonymous"], {}).token_file is None
    assert read([], {"NEURON_REMEDIATOR_WEBHOOK_ALLOW_ANONYMOUS": "true"}).token_file is None


def test_a_token_and_everybody_exclude_each_other() -> None:
    assert problems(TOKEN, "--webhook.allow-anonymous") == (
        "starting: --webhook.token-file and --webhook.allow-anonymous exclude each other",
    )


def test_all_problems_are_said_at_once() -> None:
    found = problems(
        TOKEN,
        "--driver=Neuron",
        "--backend=node",
        "--log.level=loud",
        "--web.listen-address=nowhere",
        "--taint-key=x",
        NEURON_REMEDIATOR_TAINT_KEY="a b",
    )

    assert found == (
        "reading the command line: unknown argument '--taint-key'; did you mean '--taint.key'",
        "reading --web.listen-address: expected an address such as '127.0.0.1:9779' or ':9779', got 'nowhere'",
        "reading --log.level: expected one of 'debug', 'info', 'warning', 'error', got 'loud'",
        "reading --driver: expected a driver name such as 'neuron.aws.com', got 'Neuron'",
        "reading $NEURON_REMEDIATOR_TAINT_KEY: " + KEY_EXPECTED + ", got 'a b'",
        "reading --backend: expected one of 'auto', 'device-taint-rule', 'node-taint', 'memory', got 'node'",
    )


@pytest.mark.parametrize("backend", ["auto", "device-taint-rule", "node-taint", "memory"])
def test_backends(backend: str) -> None:
    assert read([TOKEN, f"--backend={backend}"], {}).backend == backend


def test_a_node_is_emptied_only_on_request() -> None:
    assert not read([TOKEN], {}).node_no_execute
    assert read([TOKEN, "--node-taint.allow-no-execute"], {}).node_no_execute
    assert read([TOKEN], {"NEURON_REMEDIATOR_NODE_TAINT_ALLOW_NO_EXECUTE": "true"}).node_no_execute


@pytest.mark.parametrize("driver", ["neuron.aws.com", "a", "a-b.c", "a" * 63])
def test_drivers(driver: str) -> None:
    assert read([TOKEN, f"--driver={driver}"], {}).driver == driver


@pytest.mark.parametrize("driver", ["", "-", "A", "a/b", "a_b", ".a", "a..b", "a" * 64, "a ", "ä"])
def test_what_is_no_driver(driver: str) -> None:
    """An empty one would select the devices of every driver."""
    assert problems(TOKEN, f"--driver={driver}")[0].startswith("reading --driver: expected a driver name")


@pytest.mark.parametrize("key", ["unhealthy", "neuron.aws.com/device-unhealthy", "a.b/C_d.e", "a/" + "b" * 63])
def test_taint_keys(key: str) -> None:
    assert read([TOKEN, f"--taint.key={key}"], {}).taint_key == key


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a/b/c", "A/b", "a/b c", "-a", "a/" + "b" * 64, "a" * 254 + "/b"])
def test_what_is_no_taint_key(key: str) -> None:
    assert problems(TOKEN, f"--taint.key={key}")[0].startswith("reading --taint.key: expected a label name")


def test_the_budget_the_lease_and_the_cap_are_read() -> None:
    settings = read(
        [
            TOKEN,
            "--budget.max-unavailable=5%",
            "--budget.max-new=none",
            "--lease.duration=1m",
            "--lease.name=other",
            "--lease.namespace=here",
            "--lease.pod=pod-1",
            "--max-effect=None",
            "--dry-run",
        ],
        {},
    )

    assert settings.limits == Limits(max_unavailable=Share(5), max_new=None)
    assert (settings.lease_duration, settings.lease_name) == (60, "other")
    assert (settings.lease_namespace, settings.lease_pod) == ("here", "pod-1")
    assert (settings.max_effect, settings.dry_run) == (Effect.NONE, True)


@pytest.mark.parametrize(
    ("text", "limit"), [("none", None), ("0", 0), ("7", 7), ("1%", Share(1)), ("100%", Share(100))]
)
def test_a_limit_is_a_share_a_number_or_none(text: str, limit: Share | int | None) -> None:
    assert read([TOKEN, f"--budget.max-unavailable={text}"], {}).limits.max_unavailable == limit


@pytest.mark.parametrize("text", ["0%", "101%", "20 %", "-1", "1.5", "%", "1e3", "all", "\u0663%", "99999999999%", ""])
def test_no_other_limit_is_taken(text: str) -> None:
    (problem,) = problems(TOKEN, f"--budget.max-unavailable={text}")

    assert "--budget.max-unavailable" in problem
    assert "expected" in problem


@pytest.mark.parametrize("text", ["500ms", "1.5s", "0s", "61m", "15", "-2s"])
def test_a_lease_lasts_whole_seconds(text: str) -> None:
    (problem,) = problems(TOKEN, f"--lease.duration={text}")

    assert "--lease.duration" in problem
    assert "expected" in problem


@pytest.mark.parametrize("flag", ["lease.name", "lease.namespace", "lease.pod"])
@pytest.mark.parametrize("text", ["Pod", "a/b", "a b", ".."])
def test_names_are_names_of_kubernetes(flag: str, text: str) -> None:
    (problem,) = problems(TOKEN, f"--{flag}={text}")

    assert f"--{flag}" in problem


def test_an_unknown_effect_is_refused() -> None:
    (problem,) = problems(TOKEN, "--max-effect=PreferNoSchedule")

    assert "expected one of 'None', 'NoSchedule', 'NoExecute'" in problem
