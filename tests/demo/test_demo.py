"""The demo is what a newcomer judges the project by: it must work, and must not say so when it did not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.demo.__main__ import _keep_wanted
from tests.demo.narrator import Narrator, Step, StoryError
from tests.demo.story import Story
from tests.stack.binaries import require
from tests.stack.http import request
from tests.stack.pipeline import ROOT, Pipeline
from tests.stack.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path


_PROGRESS = re.compile(r"(.+: (done after )?[0-9]+ s\n)*")
_TOLD = (
    r"device 3: tainted hbm-uncorrectable-error:NoExecute, latched",
    r"device 5: tainted link-efa-error:NoSchedule, clears on clean readings",
    r"device 5: taint removed",
    r"device 3: still tainted hbm-uncorrectable-error; it stays until the node is recycled or the device released",
)


def _start(arguments: tuple[str, ...], directory: Path, **environment: str) -> subprocess.Popen[str]:
    """Start it as a script would do with `&`, its temporary files and its output in `directory`."""
    command = [sys.executable, "-m", "tests.demo", *arguments]
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(directory), **environment},
            stdout=out,
            stderr=err,
            text=True,
        )


def _said(directory: Path) -> str:
    return (directory / "out").read_text(encoding="utf-8")


def _untold(out: str, *words: str) -> list[str]:
    return [told for told in words if not re.search(rf"\d+\.\d s +\S+ +.*{told}", out)]


@pytest.mark.stack
def test_the_demo_tells_the_whole_story_on_a_cluster(tmp_path: Path) -> None:
    """It ends by itself with 0 in under two minutes, and shows both taints, the clear, and the latch that stays."""
    require("prometheus", "alertmanager", "kube-apiserver")
    code = _start(("--cluster",), tmp_path, KEEP="0").wait(timeout=120)
    out, err = _said(tmp_path), (tmp_path / "err").read_text(encoding="utf-8")
    assert code == 0, err
    assert _untold(out, *_TOLD, "pod-on-3 deleted") == [], out
    assert _PROGRESS.fullmatch(err), err
    assert "all parts are stopped" in out
    assert list(tmp_path.glob("neuron-demo-*")) == []


@pytest.mark.stack
def test_a_kept_demo_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    require("prometheus", "alertmanager")
    demo = _start((), tmp_path, KEEP="1")
    wait_until(lambda: "still runs" in _said(tmp_path) or demo.poll() is not None, timeout=120, what="the story")
    assert demo.poll() is None, _said(tmp_path)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=30) == 0
    out = _said(tmp_path)
    assert _untold(out, *_TOLD) == [], out
    for address in re.findall(r"http://\S+", out):
        with pytest.raises(OSError, match="refused"):
            request("GET", address)
    assert list(tmp_path.glob("neuron-demo-*")) == []


@pytest.mark.stack
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    require("prometheus", "alertmanager")
    demo = _start((), tmp_path)
    wait_until(lambda: "Every device is healthy" in _said(tmp_path), timeout=60, what="the story to begin")
    assert len(list(tmp_path.glob("neuron-demo-*"))) == 1
    demo.send_signal(number)
    assert demo.wait(timeout=30) == 128 + number
    assert list(tmp_path.glob("neuron-demo-*")) == []


@pytest.mark.parametrize(
    ("value", "keeps"),
    [("1", True), ("true", True), ("YES", True), ("0", False), ("", False), ("no", False), ("false", False)],
)
def test_keep_is_wanted_only_where_it_says_so(value: str, keeps: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    assert _keep_wanted(value) is keeps


@pytest.mark.parametrize("ways", [("apt-get", "dpkg-deb"), ("go",)], ids=["Debian", "Go"])
def test_a_cache_that_cannot_be_made_is_one_sentence(tmp_path: Path, ways: tuple[str, ...]) -> None:
    """No Prometheus to be found, one way to get it, and a file where the cache would have to be."""
    (tmp_path / "file").touch()
    (tmp_path / "bin").mkdir()
    for way in ways:
        program = tmp_path / "bin" / way
        program.write_text("#!/bin/sh\necho go version go1.26.0\n", encoding="utf-8")
        program.chmod(0o755)
    cache = str(tmp_path / "file" / "cache")
    done = _start((), tmp_path, NEURON_STACK_CACHE=cache, NEURON_STACK_BIN="", PATH=str(tmp_path / "bin"))
    assert done.wait(timeout=30) == 1
    err = (tmp_path / "err").read_text(encoding="utf-8")
    assert err.startswith("demo: ")
    assert "NEURON_STACK_CACHE" in err
    assert err.count("\n") == 1, err


def test_a_step_that_does_not_happen_ends_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    """What happened is told, what did not is named, and a part that cannot be reached counts as not seen."""

    def unreachable() -> str | None:
        raise ConnectionRefusedError

    steps = [
        Step("exporter", lambda: "reads 1", "a fault"),
        Step("prometheus", lambda: None, "an alert"),
        Step("remediator", unreachable, "a record"),
    ]
    with pytest.raises(StoryError, match="prometheus: an alert; remediator: a record"):
        Narrator().watch(*([step] for step in steps), within=0.1)
    assert "exporter      reads 1" in capsys.readouterr().out


def test_effects_are_told_after_their_causes(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever order things are seen in: the cause is looked at before the effect, and told before it."""
    looks = iter([None, "cause"])
    chain = [Step("prometheus", lambda: next(looks), "an alert"), Step("remediator", lambda: "effect", "a record")]
    Narrator().watch(chain, [Step("exporter", lambda: "other", "a fault")], within=5)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["other", "cause", "effect"]


@pytest.mark.stack
def test_a_dead_part_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Alertmanager gone no taint can come of the fault, and the story says which parts saw nothing."""
    require("prometheus", "alertmanager")
    monkeypatch.setattr("tests.demo.story._TAINT_SECONDS", 5.0)
    with Pipeline(tmp_path, node="n1") as pipeline:
        pipeline.alertmanager.kill()
        with pytest.raises(StoryError, match=r"alertmanager: .* remediator: a record of hbm on device 3"):
            Story(pipeline, Narrator(), None).tell()
