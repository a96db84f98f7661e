"""How soon a record may be raised again without an alert. Pure: times are seconds of a monotonic clock, handed in.

Somebody else may take a taint away as often as we put it on (a controller that resets the taints of its nodes, say).
The first time it is put back at once, then ever more slowly, so that the two do not fill the cluster with writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from remediator.records import Key

SHORTEST, LONGEST = 2.0, 60.0
_FORGOTTEN_AFTER = 4 * LONGEST


class _Raise(NamedTuple):
    at: float
    pause: float


class Pacing:
    """What was raised of late, and from when on it may be again."""

    def __init__(self) -> None:
        # Oldest first.
        self._raises: dict[Key, _Raise] = {}

    def due(self, key: Key, now: float) -> float:
        """From when on that record may be raised; a time that has passed for most of them."""
        last = self._raises.get(key)
        return now if last is None else last.at + last.pause

    def raised(self, key: Key, now: float) -> None:
        """Note that it has been."""
        while self._raises and now - next(iter(self._raises.values())).at >= _FORGOTTEN_AFTER:
            del self._raises[next(iter(self._raises))]
        last = self._raises.pop(key, None)
        self._raises[key] = _Raise(now, min(2 * last.pause, LONGEST) if last else SHORTEST)
