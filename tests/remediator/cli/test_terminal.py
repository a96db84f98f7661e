"""`neuron-taints` as a process on a terminal: colour, width, questions, Ctrl-C; and in a pipe that breaks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from remediator.rule_records import object_name
from tests.remediator.samples import NODE
from tests.stack.apiproxy import ApiProxy
from tests.stack.process import wait_until
from tests.stack.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.remediator.cli.conftest import Held
    from tests.stack.controlplane import ControlPlane

COMMAND = (sys.executable, "-m", "remediator.cli")
SECONDS = 20.0
PATIENCE = 5.0
RELEASE = ("--for", "4h", "--reason", "test")


@dataclass
class Terminal:
    """A process on a terminal; what it has written so far is in `screen`."""

    process: subprocess.Popen[bytes]
    handle: int
    _read: bytearray = field(default_factory=bytearray)

    @property
    def screen(self) -> str:
        """Everything written so far."""
        os.set_blocking(self.handle, False)
        try:
            while got := os.read(self.handle, 65536):
                self._read += got
        except OSError:  # nothing more for now, or the process has gone
            pass
        return self._read.decode()

    def shows(self, text: str) -> None:
        """Wait until it has written that."""
        wait_until(lambda: text in self.screen, timeout=SECONDS, what=f"{text!r} on the terminal")

    def types(self, text: str) -> None:
        """Press keys."""
        os.write(self.handle, text.encode())

    def answered(self, keys: str) -> int:
        """Answer a question with keys that end it; returns the exit code.

        Python keeps an interrupt that comes in the very moment before it waits for a line until there is another key:
        like a person, this presses the keys again when nothing has happened for some time.
        """
        pressed: list[float] = []

        def ended() -> bool:
            if not pressed or time.monotonic() - pressed[-1] > PATIENCE:
                pressed.append(time.monotonic())
                self.types(keys)
            return (len(self.screen), self.process.poll())[1] is not None

        wait_until(ended, timeout=SECONDS, what=f"the end of {self.process.args!r}")
        return self.ends()

    def ends(self) -> int:
        """Wait for its end; returns the exit code."""

        def ended() -> bool:
            # Read meanwhile: a terminal that nobody reads stops whoever writes to it.
            return (len(self.screen), self.process.poll())[1] is not None

        wait_until(ended, timeout=SECONDS, what=f"the end of {self.process.args!r}")
        assert self.process.returncode is not None
        return self.process.returncode


@contextmanager
def terminal(
    *arguments: str,
    width: int = 80,
    environment: Mapping[str, str] = MappingProxyType({}),
    command: tuple[str, ...] = COMMAND,
) -> Iterator[Terminal]:
    """Run a command line on a terminal of that width."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, width))
    base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(  # its session has the terminal, so that Ctrl-C comes as a signal
        (*command, *arguments),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**base, "TERM": "xterm-256color", **environment},
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - the one way to make it the controlling terminal; no threads here
    )
    os.close(inner)
    try:
        yield Terminal(process, outer)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def _take_terminal() -> None:
    import fcntl  # noqa: PLC0415 - in the child alone

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def ours(login: Callable[..., Path]) -> str:
    """Give the option with which an operator logs in."""
    return f"--kubeconfig={login('operator')}"


@pytest.mark.parametrize(
    ("command", "setting", "colour"),
    [
        ("list", "TERM=xterm-256color", True),
        ("list", "NO_COLOR=1", False),
        ("explain", "NO_COLOR=", True),
        ("explain", "TERM=dumb", False),
    ],
)
def test_a_terminal_gets_colour_unless_it_is_not_wanted(
    held: Held, ours: str, command: str, setting: str, *, colour: bool
) -> None:
    held.put("hbm")
    name, _, value = setting.partition("=")
    with terminal(command, NODE, ours, environment={name: value}) as shown:
        assert shown.ends() == 0
        assert "NoExecute" in shown.screen
        assert ("\x1b[" in shown.screen) is colour


@pytest.mark.parametrize("width", [80, 40])
def test_a_terminal_that_is_narrow_gets_lines_that_fit(held: Held, ours: str, width: int) -> None:
    held.put("firmware_service_processor")
    with terminal("list", "-o", "wide", ours, width=width, environment={"NO_COLOR": "1"}) as shown:
        assert shown.ends() == 0
        lines = shown.screen.splitlines()
    assert lines[0] == NODE
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("keys", ["\n", "n\n", "\x03", "\x04"])
def test_nothing_is_written_without_a_yes(held: Held, ours: str, keys: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        assert "is active with effect NoExecute, latched" in shown.screen
        assert shown.answered(keys) == 1
        assert "\r\nneuron-taints: stopped: nothing was changed\r\n" in shown.screen
    assert held.annotation(key, "state") == "active"


def test_ctrl_c_at_the_question_ends_it_at_once(held: Held, ours: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        assert shown.answered("\x03") == 1
        assert "Traceback" not in shown.screen
    assert held.annotation(key, "state") == "active"


def test_ctrl_c_during_a_write_says_what_is_known_of_it(
    held: Held, control_plane: ControlPlane, tmp_path: Path
) -> None:
    key, other = held.put("hbm"), held.put("sram")
    with ApiProxy(control_plane, tmp_path) as proxy:
        proxy.storm({Trouble.HANG: 1.0}, seed=1, where=lambda method, _path: method == "PATCH")
        file = proxy.kubeconfig("admin")
        with terminal("release", f"{NODE}/3", *RELEASE, "--yes", f"--kubeconfig={file}") as shown:
            wait_until(lambda: proxy.done[Trouble.HANG], timeout=SECONDS, what="the write to be under way")
            shown.types("\x03")
            assert shown.ends() == 1
            assert f"unknown: may have released {key}: it was interrupted" in shown.screen
            assert f"failed: has not released {other}: not tried" in shown.screen
            assert "Traceback" not in shown.screen


def test_what_changed_while_a_person_was_thinking_is_decided_anew(held: Held, ours: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        annotations = {"neuron-remediator/episode": "newspell", "somebody": "was-here"}
        held.admin.patch("DeviceTaintRule", object_name(key), {"metadata": {"annotations": annotations}})
        shown.types("y\n")
        assert shown.ends() == 0, shown.screen
    assert held.annotation(key, "state") == "released"
    assert held.annotation(key, "episode") == "newspell", "nothing older was written over it"
    assert held.rule(key)["metadata"]["annotations"]["somebody"] == "was-here"


def test_a_record_that_was_cleared_meanwhile_needs_no_release(held: Held, ours: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        held.admin.delete("DeviceTaintRule", object_name(key))
        shown.types("y\n")
        assert shown.ends() == 0
        assert f"left {key}: its fault was cleared meanwhile" in shown.screen
    assert held.admin.rules() == []


def test_a_record_that_is_another_one_by_now_is_not_released(held: Held, ours: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        held.admin.delete("DeviceTaintRule", object_name(key))
        held.put("hbm")
        shown.types("y\n")
        assert shown.ends() == 1
        assert "it was removed and has fired anew meanwhile" in shown.screen
    assert held.annotation(key, "state") == "active"


def test_a_node_that_was_replaced_meanwhile_is_left_alone(held: Held, ours: str) -> None:
    key = held.put("hbm")
    with terminal("release", f"{NODE}/3", *RELEASE, ours) as shown:
        shown.shows("Go on? [y/N]")
        held.admin.delete_node(NODE)
        held.admin.gone("DeviceTaintRule", object_name(key))
        held.admin.node(NODE)
        shown.types("y\n")
        assert shown.ends() == 0
        assert "was cleared meanwhile" in shown.screen
    assert held.admin.rules() == []


def test_a_reader_that_leaves_is_no_error_to_shout_about(held: Held, ours: str) -> None:
    for number in range(3):
        held.put("hbm", number)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        (*COMMAND, "list", ours), stdout=writing, stderr=subprocess.PIPE, timeout=SECONDS, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_terminal_without_unicode_gets_no_traceback(held: Held, ours: str) -> None:
    held.put("hbm", reason="größer", released_by="Zoë")
    done = subprocess.run(
        (*COMMAND, "list", "-o", "json", ours),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gr\\xf6\\xdfer" in done.stdout
