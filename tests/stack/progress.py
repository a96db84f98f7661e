"""Tell a waiting person what is being waited for and for how long."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_QUIET_SECONDS = 2.0
_TERMINAL_INTERVAL = 0.5
_LINE_INTERVAL = 5.0


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show ``what`` and the elapsed seconds on stderr while the block runs, if it runs for over two seconds.

    A terminal gets one line rewritten in place; anything else a new line every few seconds.
    """
    over = threading.Event()
    reporter = threading.Thread(target=_report, args=(what, over), daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _report(what: str, over: threading.Event) -> None:
    began = time.monotonic()
    if over.wait(_QUIET_SECONDS):
        return
    terminal = sys.stderr.isatty()
    start, end = ("\r\033[K", "") if terminal else ("", "\n")
    while True:
        ended = over.is_set()
        elapsed = f"{time.monotonic() - began:.0f} s"
        sys.stderr.write(f"{start}{what}: done after {elapsed}\n" if ended else f"{start}{what}: {elapsed}{end}")
        sys.stderr.flush()
        if ended:
            return
        over.wait(_TERMINAL_INTERVAL if terminal else _LINE_INTERVAL)
