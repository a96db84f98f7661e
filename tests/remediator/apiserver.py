"""A scripted API server over real HTTP: what a collection answers to lists and watches, request by request.

For trouble that a real API server does not make on demand. Each script's last step repeats.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""One answer of a script."""


@dataclass
class ScriptedCollection:
    """Answers lists and watches of any path by their scripts, and keeps the queries it was asked."""

    lists: list[Step] = field(default_factory=list)
    watches: list[Step] = field(default_factory=list)
    listed: list[dict[str, str]] = field(default_factory=list)
    watched: list[dict[str, str]] = field(default_factory=list)
    watched_at: list[float] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        query = dict(request.query)
        if query.get("watch"):
            self.watched.append(query)
            self.watched_at.append(time.monotonic())
            script, number = self.watches, len(self.watched)
        else:
            self.listed.append(query)
            script, number = self.lists, len(self.listed)
        return await script[min(number, len(script)) - 1](request)

    def app(self) -> web.Application:
        """Make the server."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app


def page(*objects: dict[str, Any], version: int = 1, following: str = "") -> Step:
    """One page of a list; `following` is the token of the next one."""
    metadata = {"resourceVersion": str(version)} | ({"continue": following} if following else {})
    return text(json.dumps({"kind": "List", "metadata": metadata, "items": objects}))


def text(body: str, status: int = 200) -> Step:
    """Any answer."""

    async def step(_request: web.Request) -> web.Response:
        return web.Response(text=body, status=status, content_type="application/json")

    return step


def status(code: int, message: str = "no") -> Step:
    """A refusal as the API server writes it."""
    return text(json.dumps({"kind": "Status", "code": code, "message": message}), code)


def events(*lines: str | tuple[str, dict[str, Any]], then: str = "end") -> Step:
    """A watch that sends these events, and then ends, is cut off, or stays open ("end", "cut", "stay")."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            whole = line if isinstance(line, str) else json.dumps({"type": line[0], "object": line[1]}) + "\n"
            await response.write(whole.encode())
        if then == "cut" and request.transport is not None:
            request.transport.abort()
        elif then == "stay":
            await asyncio.Event().wait()
        return response

    return step


def bookmark(version: int) -> tuple[str, dict[str, Any]]:
    """An event that says only how far the watch is."""
    return ("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})
