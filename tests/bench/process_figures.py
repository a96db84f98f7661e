"""What Linux says of a process: its memory and the processor time it has used. Parsing is apart from reading."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/<pid>/stat behind the name (proc_pid_stat(5)): the third of all, state, comes first.
_UTIME, _STIME = 14 - 3, 15 - 3
_KIBI = 1024


class Memory(NamedTuple):
    """In MiB: what is resident now, and the most that ever was."""

    resident: float
    peak: float


def memory(pid: int) -> Memory:
    """The memory of a process. `OSError` when it has ended."""
    return parse_status(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))


def cpu_seconds(pid: int) -> float:
    """The processor time of a process since it began, in its own code and in the kernel for it."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"))


def parse_status(text: str) -> Memory:
    """Read /proc/<pid>/status."""
    kibibytes = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB$", text, re.MULTILINE))
    return Memory(int(kibibytes["VmRSS"]) / _KIBI, int(kibibytes["VmHWM"]) / _KIBI)


def parse_stat(text: str) -> float:
    """Read /proc/<pid>/stat; the name in it may hold spaces and parentheses."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_A_SECOND
