"""The process `neuron-remediator`: it serves, it stops when told, and it says in one sentence why it cannot start."""

from __future__ import annotations

import gzip
import re
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.remediator.samples import alert_json, body
from tests.stack.http import request
from tests.stack.process import Process, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LISTENING = re.compile(r"msg=listening address=(\S+)")
SECONDS = 20


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Give a way to start the process with flags; it is ended after the test."""
    started: list[Process] = []

    def start(*flags: str) -> Process:
        process = Process("remediator", (sys.executable, "-m", "remediator", *flags), tmp_path / "logs")
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def listening(process: Process) -> str:
    """Wait for the line that says where it listens."""
    found = wait_until(lambda: LISTENING.search(log_of(process)), timeout=SECONDS, what="the listening line")
    return f"http://{found[1]}"


def log_of(process: Process) -> str:
    return process.log_path.read_text()


def ended(process: Process) -> tuple[int | None, str]:
    """Wait for its end; its exit code and all it has said."""
    wait_until(lambda: not process.running, timeout=SECONDS, what="the process to end")
    return process.returncode, log_of(process)


def test_it_serves_until_it_is_told_to_stop(start: Callable[..., Process], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    process = start("--web.listen-address=127.0.0.1:0", "--backend=memory", f"--webhook.token-file={token}")
    url = listening(process)

    def post(bearer: str) -> int:
        headers = {"Authorization": f"Bearer {bearer}"}
        return request("POST", f"{url}/api/v1/alerts", body=body(alert_json()), headers=headers, check=False).status

    assert post("wrong") == 401
    assert post("first") == 200
    page = request("GET", f"{url}/metrics").text
    assert 'neuron_remediator_record{device="3",effect="NoExecute"' in page
    assert "neuron_remediator_leader 1.0" in page
    assert request("GET", f"{url}/readyz").text == "ok\n"
    token.write_text("second\n")
    wait_until(lambda: post("second") == 200, timeout=SECONDS, what="the changed token")
    assert post("first") == 401

    process.stop()
    code, said = ended(process)
    assert code == 0
    assert "Traceback" not in said
    assert "first" not in said
    assert "second" not in said


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_compressed_body_is_malformed(start: Callable[..., Process], encoding: str) -> None:
    """Alertmanager never compresses; what only claims to be compressed must not be an error of ours."""
    process = start("--web.listen-address=127.0.0.1:0", "--backend=memory", "--webhook.allow-anonymous")
    url = f"{listening(process)}/api/v1/alerts"
    headers = {"Content-Encoding": encoding}
    answers = [
        request("POST", url, body=sent, headers=headers, check=False)
        for sent in (b"\x1f\x8bnonsense", gzip.compress(body(alert_json())))
    ]

    assert [(answer.status, answer.text.count("\n")) for answer in answers] == [(400, 1)] * 2
    assert request("POST", url, body=body(alert_json())).status == 200
    assert "Traceback" not in log_of(process)


def one_sentence(said: str) -> str:
    assert said.count("\n") == 1, said
    return said.rstrip("\n")


def test_an_address_in_use_is_said_in_one_sentence(start: Callable[..., Process]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = ended(start(f"--web.listen-address={address}", "--backend=memory", "--webhook.allow-anonymous"))

    assert code == 1
    started, told = said.splitlines()
    assert "msg=starting" in started
    assert told.startswith(f"listening on '{address}': ")


def test_a_missing_token_file_is_said_in_one_sentence(start: Callable[..., Process], tmp_path: Path) -> None:
    code, said = ended(start("--backend=memory", f"--webhook.token-file={tmp_path / 'missing'}"))

    assert code == 1
    assert one_sentence(said).startswith("reading the webhook token from '")


def _config(*, cluster: str = "server: 'http://127.0.0.1:1'", user: str = "token: x") -> str:
    return (
        "current-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"clusters: [{{name: x, cluster: {{{cluster}}}}}]\nusers: [{{name: x, user: {{{user}}}}}]\n"
    )


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "a: [b\n",
        "hello",
        "{}\n",
        "clusters: 3\n",
        "\0",
        _config(cluster="server: 'https://127.0.0.1:1', certificate-authority-data: bm9uZQ=="),
        _config(user="exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-login, args: []}"),
        _config(cluster="server: 'https://127.0.0.1:1'", user="client-certificate: /no/such, client-key: /no/such"),
    ],
)
def test_credentials_that_are_none_are_said_in_one_sentence(
    start: Callable[..., Process], tmp_path: Path, content: str | None
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if content is not None:
        kubeconfig.write_text(content)
    code, said = ended(start("--webhook.allow-anonymous", f"--kubeconfig={kubeconfig}"))

    assert code == 1
    told = said.splitlines()[-1]
    assert told.startswith(f"reading the cluster's credentials from '{kubeconfig}': ")
    assert ("there is no such file" in told) == (content is None)
    assert "Traceback" not in said


def test_an_api_server_that_is_not_there_is_waited_for(start: Callable[..., Process], tmp_path: Path) -> None:
    """It serves at once and says 503 and why; ending instead would leave the restart to the kubelet's backoff."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_config(user="token: s3cret-token"))
    process = start("--web.listen-address=127.0.0.1:0", "--webhook.allow-anonymous", f"--kubeconfig={kubeconfig}")
    url = listening(process)
    wait_until(lambda: "will retry" in log_of(process), timeout=SECONDS, what="a first attempt")
    answer = request("POST", f"{url}/api/v1/alerts", body=body(), check=False)

    assert answer.status == 503
    assert answer.text == "waiting for the API server to say how it serves DeviceTaintRules\n"
    process.stop()
    code, said = ended(process)
    assert code == 0
    assert "Traceback" not in said
    assert "s3cret" not in said


def test_wrong_usage_is_exit_code_2(start: Callable[..., Process]) -> None:
    code, said = ended(start("--webhook.token=x", "--backend=memory"))

    assert code == 2
    assert one_sentence(said).startswith("reading the command line: unknown argument '--webhook.token'")


def test_nobody_named_as_sender_is_exit_code_2(start: Callable[..., Process]) -> None:
    code, said = ended(start("--backend=memory"))

    assert code == 2
    assert one_sentence(said).startswith("starting: nothing says who may send notifications")
