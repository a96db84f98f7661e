"""Silence of a device: unknown at once, unreachable once another device bears witness, and never health."""

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.readings import Problem
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT
from tests.exporter.rig import ALL_ABSENT, ONLY_UNREACHABLE, TIMEOUT, WALL_OFFSET, Rig


def make_unreadable(rig: Rig, device: int, name: str) -> None:
    file = rig.driver.health_file(device, name)
    file.unlink()
    file.symlink_to("/proc/self/mem")  # nothing is mapped at offset 0, where reading it starts
    rig.driver.freeze(device)  # writing the heartbeat would replace the link


async def test_a_frozen_heartbeat_is_unreachable_after_the_timeout_and_not_before(rig: Rig) -> None:
    rig.driver.freeze(3)
    page = await rig.run(TIMEOUT - 0.5)
    assert page.faults(3)["device_unreachable"] == 0
    age = rig.now + WALL_OFFSET - (page.value("neuron_device_reading_timestamp_seconds", device="3") or 0)
    assert age == TIMEOUT - 0.5, "the reading ages although the file was just read"
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


async def test_a_vanished_folder_is_unknown_at_once_and_unreachable_after_half_the_timeout(rig: Rig) -> None:
    rig.driver.vanish(3)
    page = await rig.step()
    assert page.faults(3) == {}
    assert page.state(3) == "unknown"
    assert (await rig.run(TIMEOUT / 2 - 0.5)).faults(3) == {}
    page = await rig.step()
    assert page.faults(3) == ONLY_UNREACHABLE
    assert page.value("neuron_devices_expected") == 4
    assert page.value("neuron_devices_reporting") == 3
    rig.driver.restore(3)
    assert (await rig.step()).faults(3) == ONLY_UNREACHABLE, "there again, but not yet seen to be alive"
    assert (await rig.step()).faults(3) == ALL_ABSENT


async def test_a_device_that_comes_and_goes_does_not_hide_that_another_is_gone(rig: Rig) -> None:
    rig.driver.vanish(3)
    for _ in range(4):
        rig.driver.vanish(2)
        await rig.run(TIMEOUT / 6)
        rig.driver.restore(2)
        await rig.run(TIMEOUT / 6)
    assert rig.unreachable == [3]


async def test_an_expected_device_that_never_came_is_unreachable_after_a_grace_time(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=3, expected=4).started()
    assert (await rig.run(TIMEOUT - 2)).faults(3) == {}, "the driver may still be making its folder"
    assert (await rig.run(2)).faults(3) == ONLY_UNREACHABLE


async def test_the_only_device_of_a_node_needs_no_witness(tmp_path: Path) -> None:
    rig = await Rig(tmp_path, devices=1).started()
    rig.driver.freeze(0)
    page = await rig.run(TIMEOUT + 1)
    assert page.faults(0) == ONLY_UNREACHABLE
    assert page.value("neuron_source_up", source="sysfs") == 1


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("beat", [False, True])
async def test_an_exporter_that_was_stopped_blames_nobody_and_trusts_nobody(
    tmp_path: Path, *, devices: int, beat: bool
) -> None:
    """After a pause the counter may have come round to the same value, or stopped long ago at another one."""
    rig = await Rig(tmp_path, devices=devices).started()
    await rig.step(beat=False)
    page = await rig.step(seconds=600, beat=beat)
    assert all(page.faults(device) == {} for device in range(devices))
    assert (await rig.step()).faults(0) == ALL_ABSENT


async def test_the_heartbeat_may_wrap(rig: Rig) -> None:
    await rig.run(120)
    beats = [(await rig.step()).faults(3) == ALL_ABSENT for _ in range(20)]
    assert all(beats)
    assert int(rig.driver.health_file(3, HEARTBEAT).read_text()) < 20


@pytest.mark.parametrize(("devices", "seconds"), [(1, 0.5), (4, TIMEOUT / 2)])
@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
async def test_an_input_output_error_is_unknown_at_once_and_unreachable_when_it_lasts(
    tmp_path: Path, name: str, devices: int, seconds: float
) -> None:
    rig = await Rig(tmp_path, devices=devices).started()
    make_unreadable(rig, 0, name)
    page = await rig.step()
    for _ in range(round(seconds / 0.5)):
        assert page.faults(0) == {}
        page = await rig.step()
    assert page.faults(0) == ONLY_UNREACHABLE
    assert page.errors(Problem.DEVICE_ERROR) == 1 + round(seconds / 0.5)


@pytest.mark.parametrize("lasting", [0.5, TIMEOUT / 2 + 0.5])
@pytest.mark.parametrize("name", [HEARTBEAT, COMPONENTS])
@pytest.mark.parametrize("moved", [0, 1])
async def test_after_an_error_only_a_heart_that_is_seen_to_move_is_alive(
    rig: Rig, name: str, lasting: float, moved: int
) -> None:
    """Readable again with the old value, or with one it had moved to before anybody could see that it stopped."""
    make_unreadable(rig, 3, name)
    await rig.run(lasting)
    standing = rig.unreachable
    rig.driver.restore(3)
    for _ in range(moved):
        rig.driver.beat()
    rig.driver.freeze(3)
    for _ in range(10):
        page = await rig.step()
        assert page.faults(3) == (ONLY_UNREACHABLE if standing else {})
    rig.driver.thaw(3)
    assert (await rig.step()).faults(3) == ALL_ABSENT


@pytest.mark.parametrize(
    "fall_silent",
    [
        lambda rig: rig.driver.freeze(3),
        lambda rig: rig.driver.vanish(3),
        lambda rig: make_unreadable(rig, 3, HEARTBEAT),
        lambda rig: make_unreadable(rig, 3, COMPONENTS),
    ],
    ids=["frozen", "vanished", "heartbeat unreadable", "components unreadable"],
)
async def test_no_kind_of_silence_is_blamed_on_a_device_without_a_witness_since(
    rig: Rig, fall_silent: Callable[[Rig], None]
) -> None:
    """The others beat on for a little less than half the timeout, then they are silent too."""
    await rig.run(TIMEOUT)
    fall_silent(rig)
    await rig.run(TIMEOUT / 2 - 0.5)
    for _ in range(round(TIMEOUT * 4)):
        await rig.refresh(beat=False)
        assert rig.unreachable == []
