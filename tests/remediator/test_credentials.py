"""The webhook's token: what a file may hold, and that a changed one is taken over without a restart."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exporter.service.process import StartError
from remediator.credentials import Token
from tests.remediator.fakes import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def admits(token: Token, text: str) -> bool:
    return token.admits(f"Bearer {text}")


@pytest.mark.parametrize("content", ["secret", "secret\n", "  secret\r\n", "\nsecret"])
async def test_white_space_around_the_token_does_not_count(tmp_path: Path, content: str) -> None:
    """Alertmanager strips it on its side too."""
    file = tmp_path / "token"
    file.write_text(content)

    assert admits(await Token.load(file), "secret")


@pytest.mark.parametrize("content", ["", "\n", "  \r\n\t"])
async def test_a_file_without_a_token_is_no_start(tmp_path: Path, content: str) -> None:
    """An empty token would let everybody in who sends none."""
    file = tmp_path / "token"
    file.write_text(content)

    with pytest.raises(StartError, match=r"^reading the webhook token from '.*': the file is empty; expected a token$"):
        await Token.load(file)


@pytest.mark.parametrize("content", ["one\ntwo\n", "token: secret", "Bearer secret"])
async def test_a_file_with_more_than_a_token_is_no_start(tmp_path: Path, content: str) -> None:
    """It could never match, and every notification would be refused without a hint why."""
    file = tmp_path / "token"
    file.write_text(content)

    with pytest.raises(StartError, match=r"^reading .*: the file holds several words; expected one token$"):
        await Token.load(file)


async def test_a_missing_file_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^reading the webhook token from '.*missing': No such file or directory$"):
        await Token.load(tmp_path / "missing")


LONGEST = "x" * 4096
NO_TOKENS = [
    pytest.param(b"secr\xc3\xa9t", "other bytes than printable ASCII", id="not ASCII"),
    pytest.param(b"\xef\xbb\xbfsecret", "other bytes than printable ASCII", id="byte order mark"),
    pytest.param(b"\x80\xff\xfe\x01", "other bytes than printable ASCII", id="binary"),
    pytest.param(bytes(4096), "other bytes than printable ASCII", id="zeros, as after a crash"),
    pytest.param(b"secr\x7fet", "other bytes than printable ASCII", id="unprintable"),
    pytest.param(f"{LONGEST}x".encode(), "too large; expected at most 4096 bytes", id="too large"),
    pytest.param(b"secret" + b"\n" * 4096, "too large; expected at most 4096 bytes", id="too large, mostly empty"),
]


@pytest.mark.parametrize(("content", "reason"), NO_TOKENS)
async def test_what_no_header_could_carry_is_no_start(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(StartError, match=rf"^reading the webhook token from '.*': the file .*{reason}") as raised:
        await Token.load(file)

    assert "secr" not in str(raised.value)


async def test_a_token_may_be_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(LONGEST)

    assert admits(await Token.load(file), LONGEST)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
async def test_only_a_regular_file_holds_a_token(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe would hold the thread that reads it for ever, and the end of the process with it."""
    file = tmp_path / "token"
    make(file)

    with pytest.raises(StartError, match=r"^reading the webhook token from '.*': not a regular file; expected a file"):
        await Token.load(file)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_reading_leaves_no_descriptor_open(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    await Token.load(file)
    before = descriptors()
    for _ in range(5):
        await Token.load(file)
        with pytest.raises(StartError):
            await Token.load(tmp_path)
    assert descriptors() == before


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


def swap_file(file: Path, text: str) -> None:
    """Replace the file, as an editor or a careful script does."""
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(file)


def swap_secret(file: Path, text: str) -> None:
    """Swap the link of the folder behind the file, as the kubelet does with a mounted Secret."""
    folder = file.parent
    version = len(list(folder.glob("..version-*")))
    data = folder / f"..version-{version}"
    data.mkdir()
    (data / file.name).write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(data.name)
    link.replace(folder / "..data")
    if not os.path.lexists(file):
        file.symlink_to(f"..data/{file.name}")


@asynccontextmanager
async def following(token: Token, file: Path) -> AsyncIterator[None]:
    """Follow the file. It is changed once before, so that the watch stands when that change has been taken over."""
    task = asyncio.create_task(token.follow(file))
    try:
        await eventually(lambda: admits(token, "second"), what="the token as it is when following begins")
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


WAYS = [rewrite, swap_file, swap_secret]


@pytest.mark.parametrize("change", WAYS)
async def test_a_changed_token_is_taken_over(
    tmp_path: Path, change: Callable[[Path, str], None], logged: Callable[[], str]
) -> None:
    """Between the first reading and the watch a change may come too; it must not wait for the next one."""
    file = tmp_path / "token"
    change(file, "first")
    token = await Token.load(file)
    change(file, "second")
    async with following(token, file):
        assert not admits(token, "first")
        change(file, "third")
        await eventually(lambda: admits(token, "third"), what="the changed token")
        assert not admits(token, "second")

    everything = logged()
    assert "webhook token changed" in everything
    assert not any(word in everything for word in ("first", "second", "third"))


def empty(file: Path) -> None:
    file.write_text("")


def replace_by_pipe(file: Path) -> None:
    fresh = file.with_name("fresh")
    os.mkfifo(fresh)
    fresh.replace(file)


def write_binary(file: Path) -> None:
    file.write_bytes(b"\x80\xff\xfe\x01")


def write_too_much(file: Path) -> None:
    file.write_text(f"{LONGEST}x")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lose", [empty, Path.unlink, replace_by_pipe, write_binary, write_too_much])
async def test_a_token_that_is_lost_stays_in_force_until_there_is_another(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = await Token.load(file)
    file.write_text("second")
    async with following(token, file):
        lose(file)
        await eventually(lambda: "keeping the last good one" in caplog.text, what="the word that it is kept")
        assert admits(token, "second")
        swap_file(file, "third")
        await eventually(lambda: admits(token, "third"), what="the next token")
