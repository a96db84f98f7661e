"""Tells what happened and when, as it happens; a step that does not happen in time is the end of the story."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.stack.progress import progress

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

    def watch(self, *chains: Sequence[Step], within: float) -> None:
        """Tell each step when it is first seen; raises `StoryError` naming those that were not seen in time.

        A chain is told from cause to effect: each of its steps is looked for once the one before it was seen.
        """
        deadline = time.monotonic() + within
        waiting = [deque(chain) for chain in chains]
        while waiting := [chain for chain in waiting if chain]:
            # Ends before anything is told: a terminal has one last line, and progress is written over it.
            with progress(f"waiting for {_next(waiting)}"):
                chain, words = _first_seen(waiting, deadline)
            if chain is None:
                missing = "; ".join(f"{step.who}: {step.expected}" for chain in waiting for step in chain)
                raise StoryError(f"not seen within {within:g} s: {missing}")
            self.say(chain.popleft().who, words)


def _next(chains: Sequence[deque[Step]]) -> str:
    return " and ".join(dict.fromkeys(chain[0].who for chain in chains))


def _first_seen(chains: Sequence[deque[Step]], deadline: float) -> tuple[deque[Step] | None, str]:
    """Return the first chain whose next step is seen, and the words for it; no chain at the deadline."""
    while True:
        for chain in chains:
            with suppress(OSError):  # a part that cannot be reached has not been seen to do it
                if words := chain[0].seen():
                    return chain, words
        if time.monotonic() > deadline:
            return None, ""
        time.sleep(_POLL_SECONDS)
