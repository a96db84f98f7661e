"""Bytes of the Neuron driver's files → values (pure).

Nothing is guessed: text that is not what the driver is known to write is None, never zero and never clean.
It must not know where the bytes came from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from alerts.faults import BY_TOKEN

MAX_UNKNOWN_COMPONENTS: Final = 16
MAX_COMPONENT_LENGTH: Final = 64

_CLEAN: Final = frozenset({"none", "healthy", "ok"})
# Words that stand for "no value". Taken as component names they would turn a failed read into a clean one.
_NO_VALUE: Final = frozenset(
    {"n/a", "na", "nan", "null", "nil", "unknown", "unavailable", "undefined", "error", "invalid", "busy"}
)
_COMPONENT: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_COMPONENT_LENGTH - 1}}}")
_DECIMAL: Final = re.compile(r"[0-9]{1,20}")
_HEARTBEAT: Final = re.compile(r"[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")
_SERIAL: Final = re.compile(r"[0-9a-fA-F]{1,32}")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
# What a register reads as when the read failed: all ones, and the driver's own marker.
_FAILED_READS: Final = frozenset({0xFFFFFFFF, 0xDEADBEEF, 0xFFFF})
_COUNTER_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What ``unhealthy_components`` says: faults of the table, and names that are none.

    ``faults`` is None when the text cannot be trusted as a whole; the names in it are still worth showing.
    """

    faults: frozenset[str] | None
    unknown: tuple[str, ...] = ()


def components(content: bytes) -> Components:
    """Faults by the words of the file, which are separated by commas or white space, in any case.

    A word that is a plausible component name but not in the table is unknown and leaves the rest valid.
    Anything else in the file means that its format is not understood, and then neither is its silence. A file
    that holds nothing is no reading either: it is what an error leaves behind. That rests on an assumption, as no
    public text says what a healthy device prints: at least a line end.
    """
    text = _text(content)
    if text is None:
        return Components(faults=None)
    written = {word for word in re.split(r"[,\s]+", text.lower()) if word}
    if not written and "\n" not in text:
        return Components(faults=None)
    words = sorted(written - _CLEAN)
    named = (word for word in words if word[0].isalpha() and word not in BY_TOKEN and word not in _NO_VALUE)
    trusted = all(_COMPONENT.fullmatch(word) and word not in _NO_VALUE for word in words)
    return Components(
        faults=frozenset(BY_TOKEN[word].name for word in words if word in BY_TOKEN) if trusted else None,
        unknown=tuple(dict.fromkeys(word[:MAX_COMPONENT_LENGTH] for word in named))[:MAX_UNKNOWN_COMPONENTS],
    )


def heartbeat(content: bytes) -> int | None:
    """Value of ``healthcheck_heartbeat``; only that it changes means something."""
    text = (_text(content) or "").strip()
    return int(text, 16 if text[:2].lower() == "0x" else 10) if _HEARTBEAT.fullmatch(text) else None


def counter(content: bytes) -> int | None:
    """Value of an error counter: 32 bits, without the values that a failed register read leaves behind."""
    text = (_text(content) or "").strip()
    if not _DECIMAL.fullmatch(text):
        return None
    value = int(text)
    return value if value.bit_length() <= _COUNTER_BITS and value not in _FAILED_READS else None


def serial_number(content: bytes) -> str:
    """Hexadecimal serial number; empty when the device does not tell, which is also what all zeros mean."""
    text = (_text(content) or "").strip().lower()
    return text if _SERIAL.fullmatch(text) and int(text, 16) not in {0, 0xDEADBEEF} else ""


def word(content: bytes) -> str:
    """Read a name such as ``Trainium2`` or a version; empty when it is none."""
    text = (_text(content) or "").strip()
    return text if _WORD.fullmatch(text) else ""


def content_of(files: Mapping[str, object], name: str) -> bytes:
    """Content of a file that nothing depends on: empty when it is missing or could not be read."""
    content = files.get(name)
    return content if isinstance(content, bytes) else b""


def _text(content: bytes) -> str | None:
    """Printable ASCII with white space, which is all that the driver writes."""
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in "\t\n\r" for character in text) else None
