"""What is read of processes and of the audit log."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tests.bench.audit_tail import REMEDIATOR, AuditTail, created, ended
from tests.bench.process_figures import cpu_seconds, memory, parse_stat, parse_status

if TYPE_CHECKING:
    from pathlib import Path


def _line(verb: str, resource: str, *, user: str = REMEDIATOR, code: int = 201, name: str = "a") -> dict[str, Any]:
    return {
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, "name": name},
        "responseStatus": {"code": code},
        "stageTimestamp": "1970-01-01T00:00:01.500000Z",
    }


def _write(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def test_memory_is_read_in_mebibytes() -> None:
    text = "Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t   3072 kB\nVmRSS:\t   1536 kB\nThreads:\t1\n"
    assert parse_status(text) == (1.5, 3.0)


def test_processor_time_is_own_and_the_kernel_s_whatever_the_name() -> None:
    fields = " ".join(map(str, range(3, 53)))
    ticks = os.sysconf("SC_CLK_TCK")
    assert parse_stat(f"1 (a) S (b) {fields}\n") == (14 + 15) / ticks


def test_this_process_has_both() -> None:
    seen = memory(os.getpid())
    assert 1 < seen.resident <= seen.peak
    assert cpu_seconds(os.getpid()) > 0


def test_the_tail_begins_where_it_was_made_and_takes_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    _write(path, _line("create", "events", name="before"))
    tail = AuditTail(path)
    _write(path, _line("create", "events", name="first"))
    second = f"{json.dumps(_line('create', 'events', name='second'))}\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(second[:10])

    assert [line["objectRef"]["name"] for line in tail.lines()] == ["first"]
    with path.open("a", encoding="utf-8") as file:
        file.write(second[10:])
    assert [line["objectRef"]["name"] for line in tail.lines()] == ["first", "second"]


def test_writes_are_the_remediator_s_without_leases(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    tail = AuditTail(path)
    _write(
        path,
        _line("update", "leases"),
        _line("list", "nodes"),
        _line("create", "devicetaintrules", user="admin"),
        _line("create", "devicetaintrules", name="made"),
        _line("create", "devicetaintrules", name="refused", code=409),
    )

    assert [line["objectRef"]["name"] for line in tail.writes()] == ["made", "refused"]
    assert tail.writes("events") == []
    assert len(tail.writes("leases")) == 1
    assert tail.writes("devicetaintrules", since=4) == tail.lines()[4:]
    assert created(tail.writes()) == {"made"}
    assert len(tail.reads("list", "nodes")) == 1
    assert ended(tail.lines()[0]) == 1.5
