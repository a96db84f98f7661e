"""The page is the contract: which lines it has for which state of the devices."""

from pathlib import Path

import pytest

from alerts.faults import FAULTS, HEALTHY, UNREACHABLE, Fault
from exporter.readings import Problem
from tests.exporter.rig import ALL_ABSENT, TIMEOUT, WALL_OFFSET, Rig
from tests.simulation.driver import Layout


async def test_a_healthy_device_has_all_eleven_faults_at_zero(rig: Rig) -> None:
    page = rig.page()
    assert page.faults(3) == ALL_ABSENT
    assert page.state(3) == "healthy"
    assert page.value("neuron_device_reading_timestamp_seconds", device="3") == rig.now + WALL_OFFSET
    assert page.value("neuron_devices_expected") == page.value("neuron_devices_reporting") == 4
    assert page.value("neuron_source_up", source="sysfs") == 1
    assert page.value("neuron_driver_info", version="2.30.2.0") == 1
    assert page.value("neuron_device_ecc_errors", device="3", memory="hbm", kind="repairable") == 0
    identity = {"serial_number": "19fcda00f5ff6e03", "device_type": "Trainium2", "architecture": "NDv3"}
    assert page.value("neuron_device_info", device="3", **identity) == 1


@pytest.mark.parametrize("layout", ["2.30", "2.31"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
async def test_the_example_of_a_fault_becomes_exactly_that_fault(tmp_path: Path, fault: Fault, layout: Layout) -> None:
    rig = await Rig(tmp_path, layout=layout).started()
    rig.driver.show(3, fault.example)
    page = await rig.run(TIMEOUT + 1 if fault is UNREACHABLE else 0.5)
    others = {} if fault is UNREACHABLE else ALL_ABSENT
    assert page.faults(3) == {**others, fault.name: 1.0}
    assert page.state(3) == "unhealthy"
    assert page.faults(2) == ALL_ABSENT
    assert page.value("neuron_device_faults_total", device="3", fault=fault.name) == 1

    rig.driver.show(3, HEALTHY)
    page = await rig.step()
    assert page.faults(3) == ALL_ABSENT
    assert page.value("neuron_device_faults_total", device="3", fault=fault.name) == 1


async def test_before_the_first_collection_nothing_is_claimed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, expected=4)
    page = rig.page()
    assert page.value("neuron_source_up", source="sysfs") == 0
    assert page.labels("neuron_device_fault") == []
    assert page.state(3) == "unknown"
    assert page.value("neuron_device_faults_total", device="3", fault="hbm") == 0
    assert {labels["reason"] for labels in page.labels("neuron_exporter_errors_total")} == set(Problem)
    assert rig.poller.ready() is not None
    await rig.step()
    assert rig.poller.ready() is None


async def test_a_fault_that_was_there_at_the_start_is_no_transition(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.driver.set_components(3, "hbm\n")
    await rig.started()
    assert rig.page().faults(3)["hbm"] == 1
    assert rig.page().value("neuron_device_faults_total", device="3", fault="hbm") == 0


@pytest.mark.parametrize(("last", "counted"), [("\n", 1), ("hbm\n", 0)])
async def test_a_silence_of_the_source_does_not_forget_the_last_value(rig: Rig, last: str, counted: int) -> None:
    rig.driver.set_components(3, last)
    before = (await rig.step()).value("neuron_device_faults_total", device="3", fault="hbm")
    rig.driver.unload_module()
    assert (await rig.step()).value("neuron_source_up", source="sysfs") == 0
    rig.driver.load_module()
    rig.driver.set_components(3, "hbm\n")
    await rig.started()
    assert rig.page().faults(3)["hbm"] == 1
    after = rig.page().value("neuron_device_faults_total", device="3", fault="hbm")
    assert before is not None
    assert after == before + counted


async def test_an_unknown_component_is_shown_and_is_no_fault(rig: Rig) -> None:
    rig.driver.set_components(3, "HBM, quantum_flux\n")
    page = await rig.step()
    assert page.faults(3) == {**ALL_ABSENT, "hbm": 1.0}
    assert page.value("neuron_device_unknown_component", device="3", component="quantum_flux") == 1
    rig.driver.set_components(3, "quantum_flux\n")
    page = await rig.step()
    assert page.faults(3) == ALL_ABSENT
    assert page.state(3) == "unhealthy"


async def test_a_repairable_error_is_exported_and_is_no_fault(rig: Rig) -> None:
    rig.driver.health_file(3, "repairable_hbm_ecc_err_count").write_text("7\n")
    page = await rig.step()
    assert page.value("neuron_device_ecc_errors", device="3", memory="hbm", kind="repairable") == 7
    assert page.faults(3) == ALL_ABSENT


async def test_the_source_never_says_latched(rig: Rig) -> None:
    rig.driver.set_components(3, "hbm\n")
    assert (await rig.step()).labels("neuron_device_fault_latched") == []


async def test_no_line_names_the_node(rig: Rig) -> None:
    assert all("node" not in dict(labels) for _, labels in rig.page().samples)
