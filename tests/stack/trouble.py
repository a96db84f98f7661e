"""What goes wrong between a client and the API server, and when: plans for ``apiproxy.ApiProxy``.

Pure: says what is to happen to a request, and does nothing. A storm is reproducible: what happens to the n-th request
of one method and path follows from the seed alone, in whatever order requests of other paths come in between.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

WATCH = "WATCH"
"""Stands for the method of a request that watches."""

DELAY_SECONDS = 2.0
"""The longest delay of a request."""

WATCH_SECONDS = 3.0
WATCH_LINES = 10
"""Trouble strikes an open watch after at most so many seconds, or so many events: what comes first."""


class Trouble(StrEnum):
    """One thing that can happen to a request; the last four to one that watches, the others to all but those."""

    CONFLICT = "409"
    """Writes only, as the API server does; a read that would have met it passes."""
    THROTTLED = "429"
    ERROR = "500"
    UNAVAILABLE = "503"
    HTML = "html"
    """503 with a page for people, as load balancers answer."""
    HANG = "hang"
    """Taken and never answered nor forwarded. Cut when the plan changes."""
    CUT_BEFORE = "cut before"
    CUT_AFTER = "cut after"
    """Forwarded and carried out, and the answer is lost."""
    DELAY = "delay"
    WATCH_GONE = "watch gone"
    """HTTP 410 instead of a watch."""
    WATCH_ERROR = "watch error"
    """An ERROR event 410 in an open watch, which then ends."""
    WATCH_CUT = "watch cut"
    """The connection ends in the middle of a line, before the event on it is complete."""
    WATCH_HANG = "watch hang"
    """Nothing comes any more. Cut when the plan changes."""


OF_WATCHES = frozenset({Trouble.WATCH_GONE, Trouble.WATCH_ERROR, Trouble.WATCH_CUT, Trouble.WATCH_HANG})

EVERYTHING: Mapping[Trouble, float] = MappingProxyType(
    {
        Trouble.CONFLICT: 0.05,
        Trouble.THROTTLED: 0.05,
        Trouble.ERROR: 0.05,
        Trouble.UNAVAILABLE: 0.05,
        Trouble.HTML: 0.03,
        Trouble.HANG: 0.02,
        Trouble.CUT_BEFORE: 0.05,
        Trouble.CUT_AFTER: 0.1,
        Trouble.DELAY: 0.1,
        Trouble.WATCH_GONE: 0.1,
        Trouble.WATCH_ERROR: 0.2,
        Trouble.WATCH_CUT: 0.4,
        Trouble.WATCH_HANG: 0.1,
    }
)
"""A storm of all kinds, in which half of the requests and a fifth of the watches pass unharmed."""

Where = Callable[[str, str], bool]
"""Which requests may be struck: from method (``WATCH`` included) and path."""


def everywhere(_method: str, _path: str) -> bool:
    """Let any request be struck."""
    return True


def leases(_method: str, path: str) -> bool:
    """Only requests about Leases: what holds the leadership."""
    return path.startswith("/apis/coordination.k8s.io/")


def but_leases(method: str, path: str) -> bool:
    """All requests but those about Leases."""
    return not leases(method, path)


class Strike(NamedTuple):
    """What happens to one request; ``fraction`` in [0, 1) says how long it takes until it does."""

    kind: Trouble
    fraction: float = 0.0

    @property
    def delay(self) -> float:
        """Seconds before the request is forwarded."""
        return self.fraction * DELAY_SECONDS

    @property
    def watch_seconds(self) -> float:
        """Seconds after which an open watch is struck."""
        return self.fraction * WATCH_SECONDS

    @property
    def watch_lines(self) -> int:
        """Events that pass before an open watch is struck."""
        return int(self.fraction * WATCH_LINES)


class Plan(Protocol):
    """Says what is to happen to each request."""

    blocks: bool
    """Whether nothing reaches the client any more, not even answers and events that were under way."""

    def strike(self, method: str, path: str, /) -> Strike | None:
        """Say what happens to the next request; ``None`` lets it pass. ``method`` is ``WATCH`` for one that watches."""


class Calm:
    """Everything passes."""

    blocks = False

    def strike(self, _method: str, _path: str, /) -> Strike | None:
        """Let it pass."""


class Partition:
    """Nothing passes: each request hangs, or is cut before it is forwarded."""

    blocks = True

    def __init__(self, *, cut: bool) -> None:
        self._cut = cut

    def strike(self, _method: str, _path: str, /) -> Strike | None:
        """Let nothing pass."""
        return Strike(Trouble.CUT_BEFORE if self._cut else Trouble.HANG)


@dataclass
class Storm:
    """Each request meets each kind of trouble with its probability. ``ValueError`` if they add up to more than 1."""

    probabilities: Mapping[Trouble, float]
    seed: int
    where: Where = everywhere
    blocks: bool = field(default=False, init=False)
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        for watching in (True, False):
            total = sum(value for kind, value in self.probabilities.items() if (kind in OF_WATCHES) == watching)
            if total > 1 + 1e-9:
                raise ValueError(f"planning a storm: its probabilities add up to {total:g}; expected at most 1")

    def strike(self, method: str, path: str, /) -> Strike | None:
        """Draw from the seed, the method, the path, and how many of these there were before."""
        if not self.where(method, path):
            return None
        self._seen[method, path] += 1
        random = Random(f"{self.seed} {method} {path} {self._seen[method, path]}")  # noqa: S311 - to be repeatable
        drawn, fraction = random.random(), random.random()
        for kind in Trouble:
            if (kind in OF_WATCHES) == (method == WATCH):
                drawn -= self.probabilities.get(kind, 0.0)
                if drawn < 0:
                    return None if kind is Trouble.CONFLICT and method == "GET" else Strike(kind, fraction)
        return None


class Refusal(NamedTuple):
    """An answer that the API server has not given."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


def refusal(kind: Trouble, method: str) -> Refusal:
    """Return the answer that stands for a kind of trouble. ``KeyError`` for one that is no answer."""
    if kind is Trouble.HTML:
        return Refusal(503, "text/html", b"<html><body><h1>503 Service Unavailable</h1></body></html>\n")
    conflict = "AlreadyExists" if method == "POST" else "Conflict"
    code, reason = {
        Trouble.CONFLICT: (409, conflict),
        Trouble.THROTTLED: (429, "TooManyRequests"),
        Trouble.ERROR: (500, "InternalError"),
        Trouble.UNAVAILABLE: (503, "ServiceUnavailable"),
        Trouble.WATCH_GONE: (410, "Expired"),
    }[kind]
    headers = {"Retry-After": "1"} if kind is Trouble.THROTTLED else {}
    return Refusal(code, "application/json", json.dumps(_status(code, reason)).encode(), headers)


def error_event() -> bytes:
    """Return the line with which the API server ends a watch whose version has expired."""
    return json.dumps({"type": "ERROR", "object": _status(410, "Expired")}).encode() + b"\n"


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"trouble on purpose: {reason}",
        "reason": reason,
        "code": code,
    }
