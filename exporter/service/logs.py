"""Structured logging: one line a record, to standard error, as logfmt or JSON.

Fields come from ``extra={...}``. A record is never more than one line, whatever was logged, so an exception
is its type, message and place. Nothing here may log request bodies or tokens: libraries that print those at
debug level are kept at info.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_BODY_PRINTING_LIBRARIES: Final = ("aiohttp", "asyncio", "kubernetes_asyncio")
_SERVER: Final = "aiohttp.server"
_ERRORS_SECONDS: Final = 10.0
_PLAIN_VALUE: Final = re.compile(r"[\w./:@%+,\-\[\]{}()~*#<>]+", re.ASCII)
_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(
    level: str,
    format: str,  # noqa: A002 - the word the flag uses
    *,
    audit: Collection[str] = (),
) -> None:
    """Send every record of at least ``level`` to standard error, written as ``logfmt`` or ``json``.

    ``audit`` names the loggers whose records are an audit trail: those are written from info on whatever the level
    is, and as JSON whatever the format is, so that a machine can tell and read them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_StructuredFormatter(as_json=format == "json", always_json=frozenset(audit)))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in audit:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for library in _BODY_PRINTING_LIBRARIES:
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    # One at a time: called again, it must not be asked twice.
    logging.getLogger(_SERVER).filters[:] = [_Errors(time.monotonic)]


class _Errors(logging.Filter):
    """Lets through each kind of error once in an interval: anybody who reaches the port can send malformed requests.

    The kinds are the types of exceptions, which are few; an error of a handler has another than a malformed request.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._spells: dict[str, _Spell] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log the record; notes on it how many before it were not."""
        if record.exc_info is None or record.exc_info[0] is None:
            return True
        now, kind = self._clock(), record.exc_info[0].__qualname__
        spell = self._spells.get(kind)
        if spell is not None and now - spell.logged < _ERRORS_SECONDS:
            spell.suppressed += 1
            return False
        if spell is not None and spell.suppressed:
            record.suppressed = spell.suppressed
        self._spells[kind] = _Spell(logged=now)
        return True


@dataclass(slots=True)
class _Spell:
    """When a message was last logged, and how often it was left out since."""

    logged: float
    suppressed: int = 0


class Seldom:
    """Logs each message at most once in ``interval`` seconds, as ``clock`` (monotonic seconds) tells them.

    For what a client without credentials or an outage can bring about at any rate. What is left out is counted,
    and the next record of that message has the number in its field ``suppressed``. Messages are told apart by
    their text, so that must be constant: whatever varies belongs into ``extra``, or memory would grow with it.
    For use from one thread.
    """

    def __init__(self, logger: logging.Logger, interval: float, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._spells: dict[tuple[int, str], _Spell] = {}

    def warning(self, message: str, *, extra: Mapping[str, object] | None = None) -> None:
        """Log a warning, or count it."""
        self.log(logging.WARNING, message, extra=extra)

    def log(self, level: int, message: str, *, extra: Mapping[str, object] | None = None) -> None:
        """Log at a level of the ``logging`` module, or count it; the same text at another level is another message."""
        now = self._clock()
        spell = self._spells.get((level, message))
        if spell is not None and now - spell.logged < self._interval:
            spell.suppressed += 1
            return
        left_out = {"suppressed": spell.suppressed} if spell is not None and spell.suppressed else {}
        self._spells[level, message] = _Spell(logged=now)
        self._logger.log(level, message, extra={**(extra or {}), **left_out})


class _StructuredFormatter(logging.Formatter):
    def __init__(self, *, as_json: bool, always_json: frozenset[str]) -> None:
        super().__init__()
        self._as_json = as_json
        self._always_json = always_json

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if self._as_json or record.name in self._always_json:
            return json.dumps(fields, default=str)
        return " ".join(f"{key}={_logfmt_value(value)}" for key, value in fields.items())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, object] = {
        "ts": moment.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    for key, value in vars(record).items():
        if key not in _OWN_ATTRIBUTES:
            fields.setdefault(key, value)
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["error"] = f"{type(error).__name__}: {error}"
        frames = traceback.extract_tb(error.__traceback__)
        if frames:
            fields["at"] = f"{frames[-1].filename}:{frames[-1].lineno}"
    return fields


def _logfmt_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    # JSON's quoting is logfmt's, and it escapes line ends: a value cannot forge a second line.
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
