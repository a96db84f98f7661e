"""Silence of a device, silence of the driver, and neither shown as health."""

import asyncio
import ctypes
import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from alerts.faults import FAULTS, HEALTHY
from exporter.readings import SourceUp, Unknown
from exporter.sources.sysfs import Past, collect
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT, Moment
from exporter.sources.sysfs_tree import Failed, Tree, TreeReader
from tests.exporter.rig import TIMEOUT, Page, Rig
from tests.simulation.driver import SimulatedDriver

ALL_ABSENT = dict.fromkeys(FAULTS, 0.0)
ONLY_UNREACHABLE = {"device_unreachable": 1.0}
NOBODY = 65534


def errors(page: Page, reason: str) -> float:
    value = page.value("neuron_exporter_errors_total", reason=reason)
    assert value is not None
    return value


async def test_a_frozen_heartbeat_is_unreachable_after_the_timeout_and_not_before(rig: Rig) -> None:
    rig.driver.freeze(3)
    page = await rig.run(TIMEOUT - 0.5)
    assert page.faults(3)["device_unreachable"] == 0
    age = rig.now - (page.value("neuron_device_reading_timestamp_seconds", device="3") or 0)
    assert age + 1_800_000_000 == TIMEOUT - 0.5, "the reading ages although the file was just read"
    page = await rig.step()
    assert page.faults(3) == ONLY_UNREACHABLE
    assert page.value("neuron_device_reading_timestamp_seconds", device="3") is None
    assert "3" not in {labels["device"] for labels in page.labels("neuron_device_ecc_errors")}
    assert page.faults(2) == ALL_ABSENT
    rig.driver.thaw(3)
    assert (await rig.step()).faults(3) == ALL_ABSENT


async def test_a_device_frozen_before_the_start_is_never_shown_healthy(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.driver.freeze(3)
    for _ in range(60):
        page = await rig.step()
        assert page.faults(3) == {}
        assert page.state(3) == "unknown"
    assert (await rig.step()).faults(3) == ONLY_UNREACHABLE


async def test_a_healthy_device_is_readable_at_the_first_beat(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert (await rig.step()).faults(3) == {}
    assert (await rig.step(beat=False)).faults(3) == {}
    assert (await rig.step()).faults(3) == ALL_ABSENT


async def test_a_vanished_folder_is_unknown_once_and_unreachable_twice(rig: Rig) -> None:
    rig.driver.vanish(3)
    page = await rig.step()
    assert page.faults(3) == {}
    assert page.state(3) == "unknown"
    page = await rig.step()
    assert page.faults(3) == ONLY_UNREACHABLE
    assert page.value("neuron_devices_expected") == 4
    assert page.value("neuron_devices_reporting") == 3
    rig.driver.restore(3)
    assert (await rig.step()).faults(3) == ONLY_UNREACHABLE, "there again, but not yet seen to be alive"
    assert (await rig.step()).faults(3) == ALL_ABSENT


async def test_an_expected_device_that_never_came_is_unreachable_after_a_grace_time(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=3, expected=4).started()
    assert (await rig.run(TIMEOUT - 2)).faults(3) == {}, "the driver may still be making its folder"
    assert (await rig.run(2)).faults(3) == ONLY_UNREACHABLE


async def test_the_module_gone_is_the_source_down_and_no_fault(rig: Rig) -> None:
    rig.driver.unload_module()
    page = await rig.run(TIMEOUT * 2)
    assert page.value("neuron_source_up", source="sysfs") == 0
    assert page.labels("neuron_device_fault") == []
    assert [page.state(device) for device in range(4)] == ["unknown"] * 4
    assert page.value("neuron_devices_expected") == 4
    rig.driver.load_module("2.31")
    assert (await rig.step()).labels("neuron_device_fault") == [], "not seen to beat since"
    page = await rig.step()
    assert page.faults(3) == ALL_ABSENT
    assert page.value("neuron_driver_info", version="2.31.1.0") == 1


async def test_a_driver_exchanged_between_two_refreshes_is_found_again(rig: Rig) -> None:
    rig.driver.unload_module()
    rig.driver.load_module("2.31")
    rig.driver.set_components(3, "hbm\n")
    assert (await rig.step()).faults(3) == {**ALL_ABSENT, "hbm": 1.0}


async def test_only_files_of_the_device_itself_are_its_files(rig: Rig) -> None:
    """Cores and whatever a symbolic link leads to have files of the same names."""
    rig.driver.health_file(3, COMPONENTS).unlink()
    (rig.driver.directory(3) / "info/architecture/arch_type").unlink()
    (rig.driver.directory(3) / "peer").symlink_to(rig.driver.directory(2), target_is_directory=True)
    page = await rig.step()
    assert page.faults(3) == {}
    assert [i["architecture"] for i in page.labels("neuron_device_info") if i["device"] == "3"] == [""]


async def test_only_the_module_gone_is_the_source_down(rig: Rig) -> None:
    shutil.rmtree(rig.driver.root / "module")
    page = await rig.run(2)
    assert page.value("neuron_source_up", source="sysfs") == 0
    assert page.labels("neuron_device_fault") == []


async def test_all_devices_gone_one_refresh_after_another_is_no_fault(rig: Rig) -> None:
    for device in range(4):
        rig.driver.vanish(device)
    page = await rig.run(TIMEOUT * 2)
    assert page.labels("neuron_device_fault") == []
    assert page.value("neuron_source_up", source="sysfs") == 0


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


async def test_the_only_device_of_a_node_needs_no_witness(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=1).started()
    rig.driver.freeze(0)
    page = await rig.run(TIMEOUT + 1)
    assert page.faults(0) == ONLY_UNREACHABLE
    assert page.value("neuron_source_up", source="sysfs") == 1


@pytest.mark.parametrize("devices", [1, 4])
async def test_an_exporter_that_was_stopped_blames_nobody(tmp_path: Path, devices: int) -> None:
    """After a pause the counter may have come round to the same value: three equal reads are no freeze then."""
    rig = await Rig(tmp_path, devices=devices).started()
    await rig.step(beat=False)
    page = await rig.step(seconds=600, beat=False)
    assert all(page.faults(device) == {} for device in range(devices))
    assert (await rig.step()).faults(0) == ALL_ABSENT


async def test_the_heartbeat_may_wrap(rig: Rig) -> None:
    await rig.run(120)
    beats = [(await rig.step()).faults(3) == ALL_ABSENT for _ in range(20)]
    assert all(beats)
    assert int(rig.driver.health_file(3, HEARTBEAT).read_text()) < 20


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
async def test_an_input_output_error_is_unknown_once_and_unreachable_twice(
    tmp_path: Path, name: str, devices: int
) -> None:
    rig = await Rig(tmp_path, devices=devices).started()
    file = rig.driver.health_file(0, name)
    file.unlink()
    file.symlink_to("/proc/self/mem")  # nothing is mapped at offset 0, where reading it starts
    rig.driver.freeze(0)  # writing the heartbeat would replace the link
    assert (await rig.step()).faults(0) == {}
    page = await rig.step()
    assert page.faults(0) == ONLY_UNREACHABLE
    assert errors(page, "device_error") == 2
    file.unlink()
    rig.driver.show(0, HEALTHY)
    rig.driver.beat()
    assert (await rig.step()).faults(0) == ALL_ABSENT


@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
@pytest.mark.parametrize(
    "content", [b"?", b"\xff\xfe", b"N/A\n", b"-1\n", b"1\x00\n", b"7" * 5000, b"\n" * 5000, b"nan\n"]
)
async def test_garbage_is_unknown_for_as_long_as_it_lasts(rig: Rig, name: str, content: bytes) -> None:
    rig.driver.freeze(3)  # writing the heartbeat would replace the garbage
    rig.driver.health_file(3, name).write_bytes(content)
    for _ in range(20):
        page = await rig.step()
        assert page.faults(3) == {}
        assert page.state(3) == "unknown"
    assert errors(page, "unparsable") == 20
    assert page.labels("neuron_device_unknown_component") == []


async def test_a_driver_without_health_files_makes_no_claim(tmp_path: Path) -> None:
    """Trainium 1, and drivers before 2.30.2: who the devices are is known, how they are is not."""
    rig = Rig(tmp_path)
    for device in range(4):
        shutil.rmtree(rig.driver.health_file(device, HEARTBEAT).parent)
    page = await rig.run(TIMEOUT * 2, beat=False)
    assert page.labels("neuron_device_fault") == []
    assert [page.state(device) for device in range(4)] == ["unknown"] * 4
    assert page.value("neuron_source_up", source="sysfs") == 1
    assert page.value("neuron_devices_reporting") == 0
    assert page.value("neuron_device_ecc_errors", device="3", memory="hbm", kind="uncorrectable") == 0
    assert page.value("neuron_exporter_errors_total", reason="device_error") == 0


async def test_one_missing_file_is_unknown(rig: Rig) -> None:
    rig.driver.health_file(3, COMPONENTS).unlink()
    page = await rig.run(5)
    assert page.faults(3) == {}
    assert page.faults(2) == ALL_ABSENT


def test_a_file_that_may_not_be_read_says_nothing_of_the_device() -> None:
    """The permission is the exporter's trouble: unknown for good, and never unreachable."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        driver = SimulatedDriver(root, devices=2)
        driver.health_file(1, COMPONENTS).chmod(0)
        reader = TreeReader(root, names=(HEARTBEAT, COMPONENTS), needed=(HEARTBEAT, COMPONENTS))
        past = Past()
        for now in range(10):
            driver.beat()
            tree = _read_as_nobody(reader)
            assert tree.devices is not None
            assert tree.devices[1][COMPONENTS] == Failed(errno.EACCES)
            past, report = collect(past, tree, Moment(now=now, wall=now, timeout=TIMEOUT))
        assert isinstance(report, SourceUp)
        assert isinstance(report.readings[1].health, Unknown)


def _read_as_nobody(reader: TreeReader) -> Tree:
    """Read from a thread that, if this is root, has given up root's right to read everything."""
    trees: list[Tree] = []

    def work() -> None:
        if os.getuid() == 0:
            ctypes.CDLL(None).setfsuid(NOBODY)  # of this thread alone
        trees.append(reader.read())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return trees[0]


async def test_nothing_is_opened_for_writing_and_reset_not_at_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real_open = os.open

    def recording_open(path: str, flags: int) -> int:
        opened.append((path, flags))
        return real_open(path, flags)

    monkeypatch.setattr("exporter.sources.sysfs_tree.os.open", recording_open)
    await rig.step(beat=False)
    assert len(opened) > 4 * 8
    assert all(flags & os.O_ACCMODE == os.O_RDONLY for _, flags in opened)
    assert all(Path(path).name != "reset" for path, _ in opened)


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
