"""The webhook's bearer token: read from a file that may change while the service runs.

The token is compared in constant time and never logged. Reading happens off the event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import stat
from typing import TYPE_CHECKING

from watchfiles import Change, awatch

from exporter.service.process import StartError

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)

_SECRET_LINK = "..data"  # noqa: S105 - the name of a link, no secret
"""The link that the kubelet swaps when a mounted Secret changes."""

_READ_AGAIN_MS = 60_000
_LOOK_MS = 500  # the library's own 50 wake the process twenty times a second, for a file that changes once an hour
"""How often the file is read without a sign of change, for what the watch cannot see, such as a link's far target."""


_MAX_BYTES = 4096
"""More than any token has, and less than the server allows the header it comes in."""

_PRINTABLE = frozenset(range(0x21, 0x7F))


class Token:
    """The token now in force. A file that became unreadable or holds none leaves the last good token in force."""

    def __init__(self, token: bytes) -> None:
        self._token = token

    @classmethod
    async def load(cls, path: Path) -> Token:
        """Read the file for the first time; raises `StartError` when there is no token in it."""
        try:
            return cls(await asyncio.to_thread(_read, path))
        except (OSError, ValueError) as error:
            # An OSError's own text names the file once more.
            problem = (isinstance(error, OSError) and error.strerror) or error
            raise StartError(f"reading the webhook token from {str(path)!r}: {problem}") from error

    def admits(self, authorization: str) -> bool:
        """Say whether an Authorization header carries the token."""
        scheme, _, given = authorization.partition(" ")
        # Bytes outside UTF-8 come as lone surrogates; they are a wrong token, not an error.
        token = given.strip().encode(errors="surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(token, self._token)

    async def follow(self, path: Path) -> None:
        """Take over a changed file, until cancelled. The folder is watched: a Secret is swapped by its symlink."""
        names = {path.name, _SECRET_LINK}

        def concerns_us(_change: Change, changed: str) -> bool:
            return os.path.basename(changed) in names  # noqa: PTH119 - called for every file of the folder

        # It may have changed since it was first read.
        await self._read_again(path)
        async for _ in awatch(
            path.parent,
            recursive=False,
            watch_filter=concerns_us,
            step=_LOOK_MS,
            rust_timeout=_READ_AGAIN_MS,
            yield_on_timeout=True,
        ):
            await self._read_again(path)

    async def _read_again(self, path: Path) -> None:
        try:
            token = await asyncio.to_thread(_read, path)
        except (OSError, ValueError) as error:
            _LOG.warning("reading the webhook token: keeping the last good one", extra={"error": str(error)})
            return
        if token != self._token:
            self._token = token
            _LOG.info("webhook token changed")


def _read(path: Path) -> bytes:
    token = _content(path).strip()
    if not token:
        raise ValueError("the file is empty; expected a token")
    # What follows could never match, and every notification would be refused without a hint why.
    if len(token.split()) > 1:
        raise ValueError("the file holds several words; expected one token")
    if not _PRINTABLE.issuperset(token):
        raise ValueError("the file holds other bytes than printable ASCII; expected a token")
    return token


def _content(path: Path) -> bytes:
    # Not blocking: a pipe nobody writes into would hold the thread for ever, and the end of the process with it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file; expected a file with a token")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(_MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"the file is too large; expected at most {_MAX_BYTES} bytes")
    return content
