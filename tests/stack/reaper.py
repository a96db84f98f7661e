"""Kill what a dead test run left running.

A process of its own that reads ``+<pid>`` and ``-<pid>`` lines from the run and, once the pipe closes, kills the
process groups that were not taken back. The pipe closes however the run ends: by itself, by a crash, by SIGKILL.
Asking the kernel for a signal at the parent's death is no substitute: it fires when the *thread* that started the
child ends.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the run is gone, then kill."""
    os.setsid()  # the terminal's Ctrl-C is for the run, which ends its processes in order
    watched: set[int] = set()
    for line in sys.stdin:
        sign, pid = line[0], int(line[1:])
        if sign == "+":
            watched.add(pid)
        else:
            watched.discard(pid)
    for pid in watched:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
