"""The demo is what a newcomer judges the project by: it must work, and must not say so when it did not."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.demo.narrator import Narrator, Step, StoryError
from tests.demo.story import Story
from tests.stack.binaries import require
from tests.stack.pipeline import ROOT, Pipeline

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.stack
@pytest.mark.parametrize("arguments", [(), ("--cluster",)], ids=["without a cluster", "with a cluster"])
def test_the_demo_tells_the_whole_story(arguments: tuple[str, ...]) -> None:
    """It ends by itself with 0 in under two minutes, and shows both taints, the clear, and the latch that stays."""
    require("prometheus", "alertmanager", *(("kube-apiserver",) if arguments else ()))
    command = [sys.executable, "-m", "tests.demo", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    told = [
        r"device 3: tainted hbm-uncorrectable-error:NoExecute, latched",
        r"device 5: tainted link-efa-error:NoSchedule, clears on clean readings",
        r"device 5: taint removed",
        r"device 3: still tainted hbm-uncorrectable-error",
    ]
    if arguments:
        told.insert(2, r"pod-on-3 deleted")
    positions = [re.search(words, done.stdout) for words in told]
    assert all(positions), done.stdout
    assert all(re.search(rf"\d+\.\d s +\S+ +.*{words}", done.stdout) for words in told)


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
        Narrator().watch(steps, within=0.1)
    assert "exporter      reads 1" in capsys.readouterr().out


@pytest.mark.stack
def test_a_dead_part_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Alertmanager gone no taint can come of the fault, and the story says which parts saw nothing."""
    require("prometheus", "alertmanager")
    monkeypatch.setattr("tests.demo.story._TAINT_SECONDS", 5.0)
    with Pipeline(tmp_path, node="n1") as pipeline:
        pipeline.alertmanager.kill()
        with pytest.raises(StoryError, match=r"alertmanager: .* remediator: a record of hbm on device 3"):
            Story(pipeline, Narrator(), None).tell()
