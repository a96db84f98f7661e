"""Symptoms that users of neighbouring exporters reported, as far as the exporter's page is concerned.

Two more are elsewhere: a client gone while the page is written (test_process, test_service_web), and a
healthy value of one source shadowing the fault another one reads (test_fusion).
"""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from exporter.readings import Problem
from exporter.sources.sysfs_health import COMPONENTS
from tests.exporter.rig import ALL_ABSENT, TIMEOUT, WALL_OFFSET, Rig


async def test_a_device_that_cannot_be_read_does_not_blank_the_page(tmp_path: Path) -> None:
    """Symptom: an exception in one collector gives a blank page, or an error for all of it.

    Before the first collection there is no snapshot; the page then says that the source is down, and readiness
    says 503, instead of the page failing: it carries the process's own state too.
    """
    rig = await Rig(tmp_path, devices=8).started()
    file = rig.driver.health_file(7, COMPONENTS)
    file.unlink()
    file.symlink_to("/proc/self/mem")
    page = await rig.step()
    assert [page.faults(device) for device in range(7)] == [ALL_ABSENT] * 7
    assert page.faults(7) == {}
    assert page.value("neuron_exporter_errors_total", reason=Problem.DEVICE_ERROR) == 1


async def test_a_page_being_written_is_of_one_moment(rig: Rig) -> None:
    """Symptom: the dictionary behind a page changes while the page is built from it."""
    families = iter(rig.registry.collect())
    first = next(families)
    rig.driver.set_components(3, "hbm\n")
    await rig.step()
    rest = {family.name: family for family in families}
    assert {sample.value for sample in first.samples} == {0.0}
    states = {s.labels["state"] for s in rest["neuron_device_health"].samples if s.value == 1}
    assert states == {"healthy"}


async def test_a_fault_gauge_goes_back_after_recovery(rig: Rig) -> None:
    """Symptom: the error gauge never goes back, or history is lost with it: a counter keeps that."""
    rig.driver.set_components(3, "link_efa\n")
    assert (await rig.step()).faults(3)["link_efa"] == 1
    rig.driver.set_components(3, "\n")
    page = await rig.step()
    assert page.faults(3)["link_efa"] == 0
    assert page.value("neuron_device_faults_total", device="3", fault="link_efa") == 1


@pytest.mark.parametrize(
    "hostile",
    [
        b'a"b\\c\nd',
        b"\\n",
        b'"} 1\nneuron_device_fault{device="3",fault="hbm"} 0',
        b"\xff\xfe\x00",
        b"x" * 10_000,
        "\N{SNOWMAN}\r\n".encode(),
        b"\x85\xa0",
    ],
)
@pytest.mark.parametrize("name", ["serial_number", "device_name", "arch_type", COMPONENTS, "version"])
async def test_a_hostile_name_cannot_break_the_page(rig: Rig, name: str, hostile: bytes) -> None:
    """Symptom: one wrong sample fails the whole scrape."""
    folder = rig.driver.root / "module/neuron" if name == "version" else rig.driver.directory(3)
    for path in folder.rglob(name):
        path.write_bytes(hostile)
    page = await rig.step()
    assert page.faults(2) == ALL_ABSENT
    assert page.faults(3).get("hbm", 0) == 0
    assert all(len(value) <= 64 for _, labels in page.samples for _, value in labels)


async def test_no_sample_has_a_timestamp(rig: Rig) -> None:
    """Symptom: a series with explicit timestamps lives on for minutes after it is gone."""
    samples = [line for line in generate_latest(rig.registry).decode().splitlines() if not line.startswith("#")]
    assert samples
    assert [line for line in samples if not re.fullmatch(r"\w+(\{.*\})? \S+", line)] == []


@pytest.mark.parametrize("blank", ["", "null", "-1", "9223372036854775807", "N/A", "NaN", " "])
async def test_a_sentinel_is_no_reading(rig: Rig, blank: str) -> None:
    """Symptom: blank and sentinel values after an error are exported as if they were measured."""
    rig.driver.freeze(3)
    rig.driver.health_file(3, "sram_ecc_err_count").write_text(blank)
    (rig.driver.directory(3) / "stats/hardware/sram_ecc_uncorrected").write_text(blank)
    page = await rig.step()
    assert page.value("neuron_device_ecc_errors", device="3", memory="sram", kind="uncorrectable") is None
    assert page.faults(3) == ALL_ABSENT
    rig.driver.health_file(3, COMPONENTS).write_text(blank)
    page = await rig.step()
    assert page.faults(3) == {}
    assert page.state(3) == "unknown"
    assert "NaN" not in generate_latest(rig.registry).decode()


@pytest.mark.parametrize(("serial", "duplicates"), [("0000000000000000\n", 0), ("\n", 0), ("19fc\n", 2)])
async def test_equal_serial_numbers_do_not_merge_devices(rig: Rig, serial: str, duplicates: int) -> None:
    """Symptom: virtual devices share an all-zero identifier, and their series collide."""
    for device in (2, 3):
        (rig.driver.directory(device) / "info/serial_number").write_text(serial)
    rig.driver.set_components(3, "hbm\n")
    page = await rig.step()
    assert page.faults(2)["hbm"] == 0
    assert page.faults(3)["hbm"] == 1
    assert page.value("neuron_exporter_errors_total", reason=Problem.DUPLICATE_SERIAL) == duplicates
    shown = [labels["serial_number"] for labels in page.labels("neuron_device_info") if labels["device"] in "23"]
    assert shown == [serial.strip() if duplicates else ""] * 2


async def test_a_reading_that_gets_old_shows_its_age(rig: Rig) -> None:
    """Symptom: a target counts as up though it has delivered nothing new for a week.

    Scrapes go on, files can be read, and yet the device is silent: its timestamp stands still, which is what
    the alerts on stale readings compare, and after the timeout its values are gone.
    """
    rig.driver.freeze(3)
    silent_since = rig.now + WALL_OFFSET
    page = await rig.run(TIMEOUT - 1)
    assert page.value("neuron_source_up", source="sysfs") == 1
    assert page.value("neuron_device_reading_timestamp_seconds", device="3") == silent_since
    page = await rig.run(2)
    assert page.value("neuron_device_reading_timestamp_seconds", device="3") is None


async def test_an_exporter_that_restarts_in_a_fault_never_shows_it_absent(tmp_path: Path, rig: Rig) -> None:
    """Symptom: the pod restarts, its series are gone, and the fault looks resolved in between."""
    rig.driver.set_components(3, "hbm\n")
    await rig.step()
    restarted = Rig(tmp_path)
    restarted.driver.set_components(3, "hbm\n")
    pages = [restarted.page(), await restarted.step(beat=False), await restarted.step()]
    assert [page.faults(3).get("hbm") for page in pages] == [None, None, 1.0]
