"""The exporter as a process: started, scraped, stopped."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.exporter.rig import Page
from tests.exporter.test_service_web import PROMETHEUS_ACCEPT
from tests.simulation.driver import SimulatedDriver

COMMAND = (sys.executable, "-m", "exporter")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waiting for {what}: not within 20 s"
        time.sleep(0.02)


class Exporter:
    """A running exporter process."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def get(self, route: str) -> tuple[int, http.client.HTTPMessage, str]:
        """Request as Prometheus does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", route, headers={"Accept": PROMETHEUS_ACCEPT})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def page(self) -> Page:
        """Scrape and parse."""
        _, _, body = self.get("/metrics")
        return Page(text_string_to_metric_families(body))  # type: ignore[no-untyped-call]


@contextmanager
def running(root: Path, log: Path, **environ: str) -> Iterator[Exporter]:
    with log.open("w") as written:
        process = subprocess.Popen(
            (*COMMAND, "--web.listen-address=127.0.0.1:0", f"--sysfs.root={root}", "--refresh-interval=50ms"),
            stderr=written,
            stdout=written,
            text=True,
            env={**os.environ, **environ},
        )
    try:
        until(lambda: "msg=listening" in log.read_text() or process.poll() is not None, "the exporter to listen")
        found = re.search(r"msg=listening address=127.0.0.1:(\d+)", log.read_text())
        assert found, log.read_text()
        yield Exporter(process, int(found[1]), log)
    finally:
        process.kill()
        process.wait()


def test_started_scraped_and_stopped(tmp_path: Path) -> None:
    driver = SimulatedDriver(tmp_path / "sys", devices=16)
    with driver.beating(0.02), running(tmp_path / "sys", tmp_path / "log") as exporter:
        until(lambda: exporter.page().value("neuron_devices_reporting") == 16, "sixteen live devices")
        status, headers, body = exporter.get("/metrics")
        assert status == 200
        assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert int(headers["Content-Length"]) == len(body.encode())
        assert body.endswith("# EOF\n")
        page = exporter.page()
        assert len(page.labels("neuron_device_fault")) == 16 * 11
        assert len(page.labels("neuron_exporter_build_info")) == 1
        driver.set_components(3, "hbm\n")
        until(lambda: exporter.page().faults(3)["hbm"] == 1, "the fault on the page")
        assert exporter.get("/readyz")[0] == exporter.get("/livez")[0] == exporter.get("/")[0] == 200
        assert exporter.get("/nothing")[0] == 404
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(timeout=10) == 0
    assert "Traceback" not in exporter.log.read_text()


def test_a_hundred_aborted_connections_leave_no_traceback_and_no_leak(tmp_path: Path) -> None:
    """Symptom: a client gone while the page is written costs a traceback for each scrape."""
    driver = SimulatedDriver(tmp_path / "sys")
    with driver.beating(0.02), running(tmp_path / "sys", tmp_path / "log") as exporter:
        descriptors = Path(f"/proc/{exporter.process.pid}/fd")
        until(lambda: exporter.page().value("neuron_devices_reporting") == 16, "sixteen live devices")
        before = len(list(descriptors.iterdir()))
        for number in range(100):
            with socket.create_connection(("127.0.0.1", exporter.port)) as client:
                # Closing with a reset, in the middle of whatever the exporter does with it.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" if number % 2 else b"GET /me")
        until(lambda: len(list(descriptors.iterdir())) <= before + 2, "the descriptors to be closed")
        assert exporter.get("/metrics")[0] == 200
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(timeout=10) == 0
    log = exporter.log.read_text()
    assert "Traceback" not in log
    assert "level=error" not in log


def test_without_a_driver_it_serves_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "no such folder", tmp_path / "log", NEURON_EXPORTER_DEVICES_EXPECTED="2") as exporter:
        until(lambda: exporter.get("/readyz")[0] == 200, "the first collection")
        page = exporter.page()
        assert page.value("neuron_source_up", source="sysfs") == 0
        assert page.labels("neuron_device_fault") == []
        assert [page.state(0), page.state(1)] == ["unknown", "unknown"]
        assert exporter.log.read_text().count("source delivers nothing") == 1


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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "simulating 2 devices" in process.stdout.readline()
        [heartbeat] = (tmp_path / "devices/virtual/neuron_device/neuron1").rglob("healthcheck_heartbeat")
        first = heartbeat.read_text()
        until(lambda: heartbeat.read_text() != first, "a beat")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.communicate()
