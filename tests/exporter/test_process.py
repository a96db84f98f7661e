"""The exporter as a process: started, scraped, stopped."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.exporter.rig import Page
from tests.exporter.test_service_web import PROMETHEUS_ACCEPT
from tests.simulation.driver import SimulatedDriver
from tests.stack.http import Response, request
from tests.stack.process import Process, wait_until

COMMAND = (sys.executable, "-m", "exporter")


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, timeout=20, what=what)


class Exporter:
    """A running exporter process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        found = re.search(r"msg=listening address=127.0.0.1:(\d+)", self.log)
        assert found, self.log
        self.port = int(found[1])

    @property
    def log(self) -> str:
        """Everything it has printed."""
        return self.process.log_path.read_text()

    def get(self, route: str) -> Response:
        """Request as Prometheus does."""
        url = f"http://127.0.0.1:{self.port}{route}"
        return request("GET", url, headers={"Accept": PROMETHEUS_ACCEPT}, check=False)

    def page(self) -> Page:
        """Scrape and parse."""
        return Page(text_string_to_metric_families(self.get("/metrics").text))  # type: ignore[no-untyped-call]


@contextmanager
def running(root: Path, log_dir: Path, *before: str, **environ: str) -> Iterator[Exporter]:
    arguments = ("--web.listen-address=127.0.0.1:0", f"--sysfs.root={root}", "--refresh-interval=50ms")
    with Process("exporter", (*before, *COMMAND, *arguments), log_dir, env=environ) as process:
        process.wait_ready(lambda: "msg=listening" in process.log_path.read_text())
        yield Exporter(process)


def test_started_scraped_and_stopped(tmp_path: Path) -> None:
    driver = SimulatedDriver(tmp_path / "sys", devices=16)
    with driver.beating(0.02), running(tmp_path / "sys", tmp_path) as exporter:
        until(lambda: exporter.page().value("neuron_devices_reporting") == 16, "sixteen live devices")
        answer = exporter.get("/metrics")
        assert answer.status == HTTPStatus.OK
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert answer.text.endswith("# EOF\n")
        page = exporter.page()
        assert len(page.labels("neuron_device_fault")) == 16 * 11
        assert len(page.labels("neuron_exporter_build_info")) == 1
        driver.set_components(3, "hbm\n")
        until(lambda: exporter.page().faults(3)["hbm"] == 1, "the fault on the page")
        statuses = {route: exporter.get(route).status for route in ("/readyz", "/livez", "/", "/nothing")}
        assert statuses == {"/readyz": 200, "/livez": 200, "/": 200, "/nothing": 404}
        exporter.process.stop()
    assert exporter.process.returncode == 0
    assert "Traceback" not in exporter.log


def test_a_hundred_aborted_connections_leave_no_traceback_and_no_leak(tmp_path: Path) -> None:
    """Symptom: a client gone while the page is written costs a traceback for each scrape."""
    driver = SimulatedDriver(tmp_path / "sys")
    with driver.beating(0.02), running(tmp_path / "sys", tmp_path) as exporter:
        descriptors = Path(f"/proc/{exporter.process.pid}/fd")
        until(lambda: exporter.page().value("neuron_devices_reporting") == 16, "sixteen live devices")
        before = len(list(descriptors.iterdir()))
        for number in range(100):
            with socket.create_connection(("127.0.0.1", exporter.port)) as client:
                # Closing with a reset, in the middle of whatever the exporter does with it.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" if number % 2 else b"GET /me")
        until(lambda: len(list(descriptors.iterdir())) <= before + 2, "the descriptors to be closed")
        assert exporter.get("/metrics").status == HTTPStatus.OK
        exporter.process.stop()
    assert exporter.process.returncode == 0
    assert "Traceback" not in exporter.log
    assert "level=error" not in exporter.log


def test_a_crowd_of_half_open_connections_keeps_nobody_out_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Symptom: more connections that send nothing than there are descriptors, and a log of 100 MB within seconds."""
    few_descriptors = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    with running(tmp_path / "sys", tmp_path, *few_descriptors) as exporter, ExitStack() as crowd:
        for number in range(600):
            client = crowd.enter_context(socket.create_connection(("127.0.0.1", exporter.port)))
            # Some have been closed to make room for others by the time they send.
            with suppress(ConnectionError):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n" if number % 2 else b"")
            if number % 60 == 0:
                assert exporter.get("/livez").status == HTTPStatus.OK
        assert exporter.get("/livez").status == HTTPStatus.OK
        began = time.monotonic()
        exporter.process.stop()
        assert time.monotonic() - began < 3
    assert exporter.process.returncode == 0
    assert "Traceback" not in exporter.log
    assert "level=error" not in exporter.log
    assert len(exporter.log.splitlines()) < 20


def test_without_a_driver_it_serves_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "no such folder", tmp_path, NEURON_EXPORTER_DEVICES_EXPECTED="2") as exporter:
        until(lambda: exporter.get("/readyz").status == HTTPStatus.OK, "the first collection")
        page = exporter.page()
        assert page.value("neuron_source_up", source="sysfs") == 0
        assert page.labels("neuron_device_fault") == []
        assert [page.state(0), page.state(1)] == ["unknown", "unknown"]
        assert exporter.log.count("source delivers nothing") == 1


def test_every_wrong_flag_is_named_and_the_exit_code_is_two() -> None:
    wrong = ("--refresh-interval=fast", "--sysfs.rot=/sys", "--devices.expected=-1")
    ended = subprocess.run((*COMMAND, *wrong), capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "reading the command line: unknown argument '--sysfs.rot'; did you mean '--sysfs.root'",
        "reading --refresh-interval: expected a duration such as '500ms', '5s' or '2m', got 'fast'",
        "reading --devices.expected: expected an integer of at least 1, got '-1'",
    ]


def test_an_address_in_use_is_one_line_and_the_exit_code_is_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            (*COMMAND, f"--web.listen-address={address}"), capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"listening on '{address}': address already in use"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("layout", ["2.30", "2.31"])
def test_the_simulation_runs_as_a_process(tmp_path: Path, layout: str) -> None:
    command = (sys.executable, "-m", "tests.simulation", "--root", tmp_path, "--devices", "2", "--layout", layout)
    with Process("simulation", command, tmp_path) as process:
        process.wait_ready(lambda: "simulating 2 devices" in process.log_path.read_text())
        [heartbeat] = (tmp_path / "devices/virtual/neuron_device/neuron1").rglob("healthcheck_heartbeat")
        first = heartbeat.read_text()
        until(lambda: heartbeat.read_text() != first, "a beat")
        process.stop()
    assert process.returncode == 0
