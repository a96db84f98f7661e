"""The audit line: one JSON object for each change, after the answer, whatever the other traces do."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest

from exporter.service import logs
from remediator.audit import LOGGER, AllTraces, Audit
from remediator.traces import Change, audit_of
from tests.remediator.samples import record

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGE = Change("create", None, record())


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, audit = logging.getLogger(), logging.getLogger(LOGGER)
    handlers, levels = root.handlers[:], (root.level, audit.level)
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    audit.setLevel(levels[1])


@pytest.mark.parametrize("style", ["logfmt", "json"])
async def test_a_change_is_one_line_of_json(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("error", style, audit=[LOGGER])
    Audit().changed(CHANGE)
    assert capsys.readouterr().err == ""  # the answer comes first
    await asyncio.sleep(0)

    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    line = json.loads(printed)
    assert line.pop("ts").endswith("Z")
    assert [line.pop(name) for name in ("level", "logger", "msg")] == ["info", LOGGER, "create"]
    assert line == audit_of(CHANGE)


class _Noted:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def changed(self, change: Change) -> None:
        self.changes.append(change)


class _Broken:
    def changed(self, change: Change) -> None:
        raise ZeroDivisionError(change)


def test_all_are_told_whatever_becomes_of_one(caplog: pytest.LogCaptureFixture) -> None:
    first, last = _Noted(), _Noted()
    AllTraces((first, _Broken(), last)).changed(CHANGE)
    assert first.changes == last.changes == [CHANGE]
    (logged,) = caplog.records
    assert logged.levelname == "ERROR"
