"""Text of a flag or environment variable → a typed value, or a ValueError that says what was expected.

Pure. Every parser takes the text and raises ``ValueError("expected …, got …")``; who reads the flags adds
which flag and which environment variable the text came from.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\[\]:\s]*):(?P<port>\d{1,5})", re.ASCII)
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. An empty host means every interface; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value:
        raise ValueError("expected text, got ''")
    return value


def path(value: str) -> Path:
    """Name a file or folder; whether it exists is for the user of the path to find out."""
    if not value or "\0" in value:
        raise ValueError(f"expected a path, got {value!r}")
    return Path(value)


def boolean(value: str) -> bool:
    """Read ``true`` or ``false``, as switches are written in an environment variable."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
    except KeyError:
        raise ValueError(f"expected 'true' or 'false', got {value!r}") from None


def positive_int(value: str) -> int:
    """Read a decimal integer of at least 1."""
    if not (value.isascii() and value.isdigit()) or int(value) < 1:
        raise ValueError(f"expected an integer of at least 1, got {value!r}")
    return int(value)


def duration(value: str) -> float:
    """Seconds from ``500ms``, ``5s``, ``1m30s``, ``0.5s`` (Prometheus' way of writing, fractions allowed)."""
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f"expected a duration such as '500ms', '5s' or '2m', got {value!r}")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if not math.isfinite(seconds):
        raise ValueError(f"expected a duration such as '500ms', '5s' or '2m', got {value!r}")
    return seconds


def positive_duration(value: str) -> float:
    """Like `duration`, but zero is refused: for intervals and timeouts."""
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError(f"expected a duration above zero, got {value!r}")
    return seconds


def address(value: str) -> Address:
    """``127.0.0.1:9779``, ``localhost:9779``, ``[::1]:9779``, or ``:9779`` for every interface."""
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > _HIGHEST_PORT:
        raise ValueError(f"expected an address such as '127.0.0.1:9779' or ':9779', got {value!r}")
    return Address(match["host"].strip("[]"), int(match["port"]))


def choice(*options: str) -> Callable[[str], str]:
    """Make a parser that takes exactly one of the options."""

    def parse(value: str) -> str:
        if value not in options:
            raise ValueError(f"expected one of {', '.join(map(repr, options))}, got {value!r}")
        return value

    return parse


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Make a parser for which empty text, usually the default of the flag, means None."""
    return lambda value: parse(value) if value else None


def comma_separated(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Make a parser of lists, for repeatable flags: empty text is the empty tuple."""
    return lambda value: tuple(parse(item.strip()) for item in value.split(",")) if value else ()
