"""The refresh loop outlives its sources, and shows nothing old as if it were new."""

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from exporter.polling import Poller
from exporter.readings import Live, Problem, Reading, SourceReport, SourceUp
from tests.stack.process import wait_for

CLEAN = SourceUp(readings={0: Reading(health=Live(present=frozenset(), taken=1.0))})


class Scripted:
    """A source that answers, raises or hangs as the script says, then keeps to the last."""

    name = "scripted"

    def __init__(self, *script: SourceReport | Exception | None) -> None:
        self.script = list(script)

    async def read(self) -> SourceReport:
        """Act out the next line of the script; None hangs."""
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


def poller(source: Scripted) -> Poller:
    return Poller((source,), expected=(), interval=0.001, monotonic=time.monotonic, timeout=0.02)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def now() -> bool:
        return condition()

    await wait_for(now, timeout=10, what=what)


@pytest.mark.parametrize(
    ("failure", "problem"),
    [(RuntimeError("boom"), Problem.REFRESH_FAILED), (None, Problem.SOURCE_TIMEOUT)],
)
async def test_a_source_that_fails_is_down_and_comes_back(failure: Exception | None, problem: Problem) -> None:
    under_test = poller(Scripted(CLEAN, failure, CLEAN))
    await under_test.refresh()
    assert under_test.snapshot.sources == {"scripted": True}
    await under_test.refresh()
    assert under_test.snapshot.sources == {"scripted": False}
    assert under_test.snapshot.errors[problem] == 1
    assert under_test.snapshot.devices[0].faults == {}
    await under_test.refresh()
    assert under_test.snapshot.devices[0].state == "healthy"


async def test_the_loop_survives_a_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    under_test = poller(Scripted(CLEAN))
    async with under_test.running():
        await until(lambda: under_test.snapshot.sources["scripted"], "the source to be up")
        with monkeypatch.context() as broken:
            broken.setattr("exporter.polling.fuse", lambda *_: 1 / 0)
            await until(lambda: under_test.snapshot.errors[Problem.REFRESH_FAILED] > 2, "three failures")
            assert under_test.snapshot.sources == {"scripted": False}
            assert under_test.snapshot.devices[0].state == "unknown"
        await until(lambda: under_test.snapshot.devices[0].state == "healthy", "a reading")
    assert any("refreshing: failed" in record.getMessage() for record in caplog.records)


async def test_a_condition_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    under_test = poller(Scripted(CLEAN, RuntimeError("boom")))
    for _ in range(20):
        await under_test.refresh()
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("source delivers nothing") == 1
    assert messages.count("device changed") == 2


async def test_the_task_ends_with_its_block() -> None:
    under_test = poller(Scripted(None))
    async with under_test.running():
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "refresh"] == []
