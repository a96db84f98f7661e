"""Whatever bytes the driver's files hold, the page parses and shows nothing clean that was not read clean."""

import asyncio
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.faults import BY_TOKEN, FAULTS
from exporter.sources import sysfs_text
from exporter.sources.sysfs_health import COMPONENTS, HEARTBEAT
from tests.exporter.rig import Rig

TOKENS = sorted(BY_TOKEN)
SENTINELS = ("n/a", "na", "nan", "null", "nil", "unknown", "unavailable", "undefined", "error", "invalid", "busy")

words = st.sampled_from((*TOKENS, *map(str.upper, TOKENS), "none", "OK", "healthy", "N/A", "nan", "-1", "new_part"))
contents = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(words, max_size=6).flatmap(
        lambda found: st.sampled_from((",", ", ", " ", "\n", ",,", ";")).map(lambda by: by.join(found).encode())
    ),
    st.integers(-1, 2**64).map(lambda number: f"{number}\n".encode()),
    st.sampled_from((b"", b" ", b"\n", b"x" * 10_000)),
)


def clean_of(content: bytes) -> set[str] | None:
    """Faults a reader may call absent, told from the text in another way than the exporter does."""
    if len(content) > 4096 or not content.isascii():
        return None
    if not content.strip() and b"\n" not in content:
        return None
    rest = re.sub(r"[\s,]+", " ", content.decode("ascii").casefold()).strip(" ").split(" ")
    found = set(rest) - {"", "none", "healthy", "ok"}
    if found & set(SENTINELS) or not all(re.match(r"[a-z]\w{0,63}\Z", word) for word in found):
        return None
    return FAULTS.keys() - {fault.name for token, fault in BY_TOKEN.items() if token in found}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_zero_that_was_not_read_clean(data: st.DataObject) -> None:
    async def scenario(root: Path) -> None:
        rig = await Rig(root, devices=2).started()
        rig.driver.freeze(1)  # so that its heartbeat file stays as it is written below
        folder = rig.driver.directory(1)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=4, unique=True))
        written = {path.name: data.draw(contents) for path in chosen}
        for path in chosen:
            path.write_bytes(written[path.name])
        page = await rig.step()  # parses both formats, and refuses doubles and timestamps
        zeros = {fault for fault, value in page.faults(1).items() if value == 0}
        allowed = clean_of(written.get(COMPONENTS, b"\n"))
        if not re.fullmatch(rb"\s*(\d{1,20}|0[xX][0-9a-fA-F]{1,16})\s*", written.get(HEARTBEAT, b"1")):
            allowed = None
        assert zeros == (allowed or set())
        assert page.faults(0) == dict.fromkeys(FAULTS, 0.0)
        assert len(page.labels("neuron_device_unknown_component")) <= 16

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(scenario(Path(root)))


@given(contents)
def test_every_parser_takes_any_bytes(content: bytes) -> None:
    components = sysfs_text.components(content)
    assert all(re.fullmatch(r"[a-z][!-~]{0,63}", name) for name in components.unknown)
    assert len(components.unknown) <= 16
    count = sysfs_text.counter(content)
    assert count is None or 0 <= count < 2**32
    assert re.fullmatch(r"[\w.+-]*", sysfs_text.word(content) + sysfs_text.serial_number(content))


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (b"", None),
        (b" ", None),
        (b"\n", set()),
        (b" \r\n", set()),
        (b"none\n", set()),
        (b"OK", set()),
        (b"healthy, none\n", set()),
        (b"hbm,axi_fabric\n", {"hbm", "fabric_error"}),
        (b" LINK_EFA ,, Sram\n", {"link_efa", "sram"}),
        (b"hbm hbm\n", {"hbm"}),
        (b"hbm,new_part\n", {"hbm"}),
        (b"hbm;sram\n", None),
        (b"hbm[3]\n", None),
        (b"null", None),
        (b"0", None),
        (b"a" * 65, None),
    ],
)
def test_components(content: bytes, faults: set[str] | None) -> None:
    assert sysfs_text.components(content).faults == faults


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b"0\n", 0),
        (b"12", 12),
        (b"4294967294\n", 4294967294),
        (b"4294967295\n", None),
        (b"3735928559\n", None),
        (b"9223372036854775807\n", None),
        (b"-1\n", None),
        (b"N/A\n", None),
        (b"NaN", None),
        (b"", None),
        (b"1e3", None),
    ],
)
def test_counters_drop_what_stands_for_no_value(content: bytes, count: int | None) -> None:
    assert sysfs_text.counter(content) == count


@pytest.mark.parametrize("content", [b"\n", b"0000000000000000\n", b"deadbeef\n", b"00000000deadbeef\n", b"xyz\n"])
def test_a_serial_number_that_is_none_is_empty(content: bytes) -> None:
    assert sysfs_text.serial_number(content) == ""
