"""Every version of some objects, in the order in which the API server made them.

A look now and then shows what is; this shows that something never was. Versions of all kinds are numbered as one.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from tests.stack.apisession import api_session
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.stack.controlplane import ControlPlane
    from tests.stack.shapes import Object

_LINE_LIMIT = 2**21
_SECONDS = 20.0


class Version(NamedTuple):
    """One object as it was from one version on: ADDED (or there at first), MODIFIED or DELETED."""

    number: int
    change: str
    object: Object

    @property
    def name(self) -> str:
        """Kind and name."""
        return f"{self.object['kind']}/{self.object['metadata']['name']}"


class Versions:
    """What was seen so far, in the order of arrival; `in_order` gives it in the order of the making."""

    def __init__(self) -> None:
        self.seen: list[Version] = []

    def in_order(self) -> list[Version]:
        """Oldest first, whatever came first over the wire."""
        return sorted(self.seen, key=lambda one: one.number)

    def take(self, change: str, object_: Object) -> None:
        """Note one version."""
        self.seen.append(Version(int(object_["metadata"]["resourceVersion"]), change, object_))

    async def until(self, object_: Object) -> None:
        """Wait until that very version of an object, or a later one, has been seen."""
        wanted = Version(int(object_["metadata"]["resourceVersion"]), "", object_)

        async def met() -> bool:
            return any(one.name == wanted.name and one.number >= wanted.number for one in self.seen)

        await wait_for(met, timeout=_SECONDS, what=f"version {wanted.number} of {wanted.name} to be seen")


@asynccontextmanager
async def watching(control_plane: ControlPlane, **paths: str) -> AsyncIterator[Versions]:
    """Note every version of what is at these paths, by kind, from what is there at the beginning on.

    A watch that ends or fails meanwhile is an error: what it has not told is not known.
    """
    versions = Versions()
    headers = {"Authorization": f"Bearer {control_plane.token('admin')}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS)
    async with (
        api_session(control_plane, headers=headers, timeout=timeout, read_bufsize=_LINE_LIMIT) as session,
        asyncio.TaskGroup() as group,
    ):
        tasks = []
        for kind, path in paths.items():
            async with session.get(path) as answer:
                answer.raise_for_status()
                listed = await answer.json()
            for item in listed["items"]:
                versions.take("ADDED", {**item, "kind": kind})
            tasks.append(group.create_task(_watch(session, path, listed["metadata"]["resourceVersion"], versions)))
        yield versions
        for task in tasks:
            task.cancel()


async def _watch(session: aiohttp.ClientSession, path: str, since: str, versions: Versions) -> None:
    joined = "&" if "?" in path else "?"
    async with session.get(f"{path}{joined}watch=1&resourceVersion={since}") as answer:
        answer.raise_for_status()
        async for line in answer.content:
            event = json.loads(line)
            versions.take(event["type"], event["object"])
    raise RuntimeError(f"watching {path}: it has ended; expected it to go on")
