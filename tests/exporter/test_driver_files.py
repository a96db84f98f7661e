"""Which files are read and how; what is missing, ambiguous or garbled is unknown, and no fault of the device."""

import ctypes
import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest

from exporter.readings import Problem, SourceUp, Unknown
from exporter.sources.sysfs_collect import HEALTH_FILES, Past, collect
from exporter.sources.sysfs_files import Failed, Tree
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT, Moment
from exporter.sources.sysfs_tree import TreeReader
from tests.exporter.rig import ALL_ABSENT, TIMEOUT, Rig
from tests.simulation.driver import SimulatedDriver

NOBODY = 65534


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


async def test_one_entry_that_cannot_be_looked_at_costs_no_other(rig: Rig) -> None:
    """Symptom: one link to itself among the devices, and all of them vanish."""
    loop = rig.driver.directory(3).with_name("neuron900")
    loop.symlink_to(loop.name)
    rig.driver.set_components(3, "hbm\n")
    page = await rig.step()
    assert page.faults(3) == {**ALL_ABSENT, "hbm": 1.0}
    assert page.faults(2) == ALL_ABSENT
    assert page.value("neuron_source_up", source="sysfs") == 1
    assert not [labels for labels in page.labels("neuron_device_info") if labels["device"] == "900"]


@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
async def test_one_missing_file_is_unknown_for_as_long_as_it_lasts(rig: Rig, name: str) -> None:
    rig.driver.freeze(3)  # writing the heartbeat would bring the file back
    rig.driver.health_file(3, name).unlink()
    page = await rig.run(TIMEOUT / 2)
    assert page.faults(3) == {}
    assert page.state(3) == "unknown"
    assert page.faults(2) == ALL_ABSENT
    assert page.errors(Problem.NO_HEALTH_FILE) == TIMEOUT / 2 / 0.5


@pytest.mark.parametrize("second", ["aside", "zone"])  # before and after the real one, in any order of folders
@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
async def test_of_two_files_of_one_name_none_is_taken(tmp_path: Path, name: str, second: str) -> None:
    rig = Rig(tmp_path)
    double = rig.driver.health_file(3, name).parent.with_name(second) / name
    double.parent.mkdir()
    double.write_text("1\n" if name == HEARTBEAT else "\n")
    rig.driver.set_components(3, "hbm\n")
    for _ in range(round(TIMEOUT * 2)):
        await rig.refresh()
        assert rig.poller.snapshot.devices[3].faults == {}
    page = rig.page()
    assert page.state(3) == "unknown"
    assert page.faults(2) == ALL_ABSENT
    assert page.errors(Problem.AMBIGUOUS_FILE) == TIMEOUT * 2
    double.unlink()
    await rig.started()
    assert rig.page().faults(3) == {**ALL_ABSENT, "hbm": 1.0}


async def test_of_two_files_of_one_name_the_nearer_one_is_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    deeper = rig.driver.health_file(3, COMPONENTS).parent / "history" / COMPONENTS
    deeper.parent.mkdir()
    deeper.write_text("hbm\n")
    await rig.started()
    assert rig.page().faults(3) == ALL_ABSENT


async def test_an_error_counter_that_two_files_have_is_not_exported(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    double = rig.driver.directory(3) / "stats/other/mem_ecc_corrected"
    double.parent.mkdir()
    double.write_text("5\n")
    page = (await rig.started()).page()
    assert page.value("neuron_device_ecc_errors", device="3", memory="hbm", kind="corrected") is None
    assert page.value("neuron_device_ecc_errors", device="2", memory="hbm", kind="corrected") == 0
    assert page.faults(3) == ALL_ABSENT


@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
@pytest.mark.parametrize(
    "content", [b"", b"?", b"\xff\xfe", b"N/A\n", b"-1\n", b"1\x00\n", b"7" * 5000, b"\n" * 5000, b"nan\n"]
)
async def test_garbage_is_unknown_for_as_long_as_it_lasts(rig: Rig, name: str, content: bytes) -> None:
    refreshes = round(TIMEOUT * 4)
    for _ in range(refreshes):
        rig.driver.beat()
        rig.driver.health_file(3, name).write_bytes(content)
        await rig.refresh(beat=False)
        assert rig.poller.snapshot.devices[3].faults == {}
    page = rig.page()
    assert page.state(3) == "unknown"
    assert page.errors(Problem.UNPARSABLE) == refreshes
    assert page.labels("neuron_device_unknown_component") == []


@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.EACCES, Problem.NOT_PERMITTED),
        (errno.EPERM, Problem.NOT_PERMITTED),
        (errno.EMFILE, Problem.READ_FAILED),
        (errno.EFBIG, Problem.UNPARSABLE),
        (errno.ENOTUNIQ, Problem.AMBIGUOUS_FILE),
    ],
)
def test_an_error_of_the_reader_itself_is_unknown_for_as_long_as_it_lasts(
    name: str, number: int, problem: Problem
) -> None:
    past, healths = Past(), []
    for now in range(round(TIMEOUT * 3)):
        device = {HEARTBEAT: b"%d\n" % now, COMPONENTS: b"\n"}
        failing: dict[str, bytes | Failed] = {**device, name: Failed(number)} if now > TIMEOUT else {**device}
        moment = Moment(now=now, wall=now, timeout=TIMEOUT)
        past, report = collect(past, Tree(devices={0: device, 1: failing}), moment)
        if now > TIMEOUT:
            assert isinstance(report, SourceUp)
            assert report.readings[1].problems == (problem,)
            healths.append(report.readings[1].health)
    assert healths == [Unknown(reason=problem)] * (len(healths))
    assert len(healths) > TIMEOUT


def test_a_file_that_may_not_be_read_says_nothing_of_the_device() -> None:
    """The permission is the exporter's trouble: unknown for good, and never unreachable."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        driver = SimulatedDriver(root, devices=2)
        driver.health_file(1, COMPONENTS).chmod(0)
        reader = TreeReader(root, names=HEALTH_FILES, needed=HEALTH_FILES)
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
