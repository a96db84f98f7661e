"""Tells what happened and when, as it happens; a step that does not happen in time is the end of the story."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_POLL_SECONDS = 0.05
_WHO_WIDTH = 12


class StoryError(Exception):
    """A step did not happen."""


@dataclass(frozen=True, slots=True)
class Step:
    """What `who` is expected to see: `seen` returns the words for it, or nothing while it has not happened."""

    who: str
    seen: Callable[[], str | None]
    expected: str


class Narrator:
    """Prints lines with the seconds since its start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def headline(self, text: str) -> None:
        """Begin a part of the story."""
        print(f"\n{text}", flush=True)

    def say(self, who: str, what: str) -> None:
        """Tell one thing."""
        print(f"  {time.monotonic() - self._began:6.1f} s  {who:<{_WHO_WIDTH}}  {what}", flush=True)

    def watch(self, steps: Sequence[Step], *, within: float) -> None:
        """Tell each step when it is first seen; raises `StoryError` naming those that were not seen in time."""
        deadline = time.monotonic() + within
        waiting = list(steps)
        while waiting:
            for step in tuple(waiting):
                words = None
                with suppress(OSError):  # a part that cannot be reached has not been seen to do it
                    words = step.seen()
                if words:
                    self.say(step.who, words)
                    waiting.remove(step)
            if waiting and time.monotonic() > deadline:
                missing = "; ".join(f"{step.who}: {step.expected}" for step in waiting)
                raise StoryError(f"not seen within {within:g} s: {missing}")
            time.sleep(_POLL_SECONDS)
