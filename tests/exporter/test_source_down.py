"""Silence of the driver is the source's: it is down, every device is unknown, and none of them is at fault."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from exporter.readings import Problem
from exporter.sources.sysfs_files import Tree
from exporter.sources.sysfs_health import HEARTBEAT
from exporter.sources.sysfs_tree import TreeReader
from tests.exporter.rig import ALL_ABSENT, TIMEOUT, Page, Rig


def assert_down(page: Page, devices: int) -> None:
    assert page.value("neuron_source_up", source="sysfs") == 0
    assert page.labels("neuron_device_fault") == []
    assert [page.state(device) for device in range(devices)] == ["unknown"] * devices
    assert page.value("neuron_devices_expected") == devices
    assert page.value("neuron_devices_reporting") == 0


def remove_health_files(rig: Rig) -> None:
    for device in range(4):
        shutil.rmtree(rig.driver.health_file(device, HEARTBEAT).parent)


async def test_the_module_gone_is_the_source_down_and_no_fault(rig: Rig) -> None:
    rig.driver.unload_module()
    assert_down(await rig.run(TIMEOUT * 2), devices=4)
    rig.driver.load_module("2.31")
    assert (await rig.step()).labels("neuron_device_fault") == [], "not seen to beat since"
    page = await rig.step()
    assert page.faults(3) == ALL_ABSENT
    assert page.value("neuron_driver_info", version="2.31.1.0") == 1


async def test_only_the_module_gone_is_the_source_down(rig: Rig) -> None:
    shutil.rmtree(rig.driver.root / "module")
    assert_down(await rig.run(2), devices=4)


@pytest.mark.parametrize("devices", [4, 16])
@pytest.mark.parametrize(("together", "seconds"), [(1, 0.5), (2, 0.5), (4, 0.5), (1, 1), (1, 3), (1, 10)])
async def test_a_driver_unloading_device_by_device_is_no_fault(
    tmp_path: Path, devices: int, together: int, seconds: float
) -> None:
    rig = await Rig(tmp_path, devices=devices).started()
    await rig.run(TIMEOUT)
    for first in range(0, devices, together):
        for device in range(first, first + together):
            rig.driver.vanish(device)
        for _ in range(round(seconds / 0.5)):
            await rig.refresh()
            assert rig.unreachable == []
    for _ in range(round(TIMEOUT * 2)):
        assert rig.unreachable == []
        await rig.refresh()
    assert_down(rig.page(), devices)


async def test_a_driver_that_makes_its_devices_slowly_is_no_fault(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=16).started()
    rig.driver.unload_module()
    await rig.run(TIMEOUT)
    rig.driver.load_module()
    for device in range(16):
        rig.driver.vanish(device)
    for device in range(16):
        rig.driver.restore(device)
        for _ in range(6):
            await rig.refresh()
            assert rig.unreachable == []
    assert all(rig.page().faults(device) == ALL_ABSENT for device in range(16))


@pytest.mark.parametrize("seconds", [0.5, 1, 3, 5])
async def test_hearts_that_stop_one_by_one_are_no_fault(tmp_path: Path, seconds: float) -> None:
    rig = await Rig(tmp_path, devices=16).started()
    await rig.run(TIMEOUT)
    for device in range(16):
        rig.driver.freeze(device)
        for _ in range(round(seconds / 0.5)):
            await rig.refresh()
            assert rig.unreachable == []
    for _ in range(round(TIMEOUT * 2)):
        await rig.refresh()
        assert rig.unreachable == []
    assert_down(rig.page(), devices=16)


async def test_all_hearts_stopped_at_once_is_the_source_down_and_their_return_no_fault(rig: Rig) -> None:
    """Stopped within one refresh of each other, found out at different refreshes, back one after another."""
    rig.driver.freeze(0)
    rig.driver.freeze(1)
    await rig.step()
    for _ in range(round(TIMEOUT * 4)):
        page = await rig.step(beat=False)
        assert all(value == 0 for device in range(4) for value in page.faults(device).values())
    assert page.value("neuron_source_up", source="sysfs") == 0
    for device in range(4):
        rig.driver.thaw(device)
        for other in range(device + 1, 4):
            rig.driver.freeze(other)
        page = await rig.step()
        assert page.faults(device) == ALL_ABSENT
        assert all(page.faults(other) == {} for other in range(device + 1, 4))


async def test_a_driver_that_never_had_health_files_makes_no_claim(tmp_path: Path) -> None:
    """Trainium 1, and drivers before 2.30.2: who the devices are is known, how they are is not."""
    rig = Rig(tmp_path)
    remove_health_files(rig)
    page = await rig.run(TIMEOUT * 2, beat=False)
    assert page.labels("neuron_device_fault") == []
    assert [page.state(device) for device in range(4)] == ["unknown"] * 4
    assert page.value("neuron_source_up", source="sysfs") == 1
    assert page.value("neuron_devices_reporting") == 0
    assert page.value("neuron_device_ecc_errors", device="3", memory="hbm", kind="uncorrectable") == 0
    assert page.errors(Problem.DEVICE_ERROR) == 0
    assert page.errors(Problem.NO_HEALTH_FILE) == 4 * TIMEOUT * 2 / 0.5


@pytest.mark.parametrize("reloaded", [False, True])
async def test_a_driver_that_has_lost_its_health_files_is_down(rig: Rig, *, reloaded: bool) -> None:
    """Files renamed under a running driver, or another driver loaded that has none: nothing is read any more."""
    if reloaded:
        rig.driver.unload_module()
        await rig.step()
        rig.driver.load_module()
    remove_health_files(rig)
    page = await rig.step(beat=False)
    assert_down(page, devices=4)
    assert page.errors(Problem.NO_HEALTH_FILE) == 4
    assert_down(await rig.run(TIMEOUT * 2, beat=False), devices=4)
    rig.driver.load_module()
    assert_down(await rig.step(), devices=4)
    assert (await rig.step()).faults(3) == ALL_ABSENT


async def test_a_single_unreachable_device_that_loses_its_health_files_is_down_too(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=1).started()
    rig.driver.freeze(0)
    await rig.run(TIMEOUT + 1)
    assert rig.unreachable == [0]
    shutil.rmtree(rig.driver.health_file(0, HEARTBEAT).parent)
    assert_down(await rig.step(), devices=1)


async def test_a_read_that_hangs_costs_the_source_and_not_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    calls: list[int] = []

    def hang(_reader: TreeReader) -> Tree:
        calls.append(1)
        released.wait()
        return Tree(devices=None)

    monkeypatch.setattr(TreeReader, "read", hang)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await rig.source.read()
    assert len(calls) == 1, "no second thread while the first one hangs"
    released.set()
    await rig.source.read()
