"""NeuronUltraServer objects: which nodes make up one UltraServer, kept current while the cluster serves such objects.

It finds out whether and how they are served, again and again while they are not, and never decides anything. What an
object holds beside the names of its nodes is none of its business.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from exporter.service.logs import Seldom
from remediator.discovery import ResourceList
from remediator.errors import NotServedError, Refusal, RemediatorError, UnavailableError
from remediator.listwatch import ListWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from remediator.cluster import Api

_LOG = logging.getLogger(__name__)

GROUP = "neuron.aws.com"
RESOURCE = "neuronultraservers"
VERSIONS = ("v1", "v1beta1")
"""API versions that may serve them, best first: the operator's documentation has the one, its chart the other."""

LOOK_SECONDS = 10.0
"""How often to ask whether they are served by now, or may be read by now."""

LARGEST = 256
"""Most nodes of one UltraServer that are believed; the largest there is has 36."""

_DOUBT_SECONDS = 5.0
_SOON_SECONDS = 1.0  # after trouble, and when they have just ceased to be served
_LOG_SECONDS = 600.0


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str
    namespace: str = ""


class _UltraServer(msgspec.Struct, frozen=True):
    # Whatever it is: one object that is not as documented must not cost all the others.
    metadata: _Metadata
    spec: Any = None


class _Members(NamedTuple):
    """One object, as it is kept."""

    namespace: str
    name: str
    nodes: frozenset[str]


class _Version(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    name: str
    versions: list[_Version] = []


class _Groups(msgspec.Struct, frozen=True):
    groups: list[_Group] = []


class _Anything(msgspec.Struct, frozen=True):
    pass


class UltraServers:
    """The members of each UltraServer. `elapsed` is a monotonic clock in seconds.

    `on_change` is called after the members have changed, or may have; it must not block.
    """

    def __init__(
        self,
        api: Api,
        *,
        elapsed: Callable[[], float],
        on_change: Callable[[], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._api = api
        self._elapsed = elapsed
        self._on_change = on_change
        self._look_seconds = look_seconds
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)
        self._sink = _Sink(on_change)
        self._watch: ListWatch[_UltraServer, _Members] | None = None
        self._without = False  # whether there are none that may be read
        self._refused = False
        # Since when those that could be read seem to be gone.
        self._missed: float | None = None
        self._were_there = False

    def members(self) -> Mapping[str, frozenset[str]] | None:
        """For each node that an object names, the nodes of its UltraServer, itself included; None if that is not known.

        Empty where such objects are not served, or may not be read.
        """
        if self._watch is not None:
            return self._sink.members if self._watch.current else None
        return {} if self._without else None

    async def run(self) -> None:
        """Keep the members current until cancelled."""
        while True:
            path = await self._find()
            if path:
                await self._follow(path)
            await asyncio.sleep(_SOON_SECONDS if path is None or path else self._look_seconds)

    async def _find(self) -> str | None:
        """Path of the objects; empty if they are not served or may not be read, None if that cannot be told now."""
        try:
            path = await self._served()
        except RemediatorError as error:
            self._seldom.warning("finding NeuronUltraServers: failed, will retry", extra={"error": str(error)})
            return None
        if path:
            self._were_there, self._without, self._missed = True, False, None
            return path
        if self._were_there and not self._missed_for_long():
            return None
        self._were_there = False
        without, self._without = self._without, True
        if not without:
            self._on_change()
        return path

    def _missed_for_long(self) -> bool:
        """Whether those that could be read have been gone for some time: an API server that just started says much."""
        self._missed = self._elapsed() if self._missed is None else self._missed
        return self._elapsed() - self._missed >= _DOUBT_SECONDS

    async def _served(self) -> str:
        # Of all groups, as that is answered with certainty: a 404 for this one may be a proxy's.
        all_groups = await self._api.get("/apis", _Groups) or _Groups()
        offered = {one.version for group in all_groups.groups if group.name == GROUP for one in group.versions}
        for version in VERSIONS:
            path = f"/apis/{GROUP}/{version}"
            listed = await self._api.get(path, ResourceList) if version in offered else None
            if listed and RESOURCE in listed.names():
                return f"{path}/{RESOURCE}" if await self._readable(f"{path}/{RESOURCE}") else ""
        return ""

    async def _readable(self, path: str) -> bool:
        refused, self._refused = self._refused, False
        try:
            await self._api.get(path, _Anything, limit="1")
        except UnavailableError as error:
            self._refused = error.refusal is Refusal.FORBIDDEN
            # Right after its start an API server refuses everybody: what is refused once is not known.
            if not (self._refused and refused):
                raise
            told = "reading NeuronUltraServers: not allowed, going by capacity blocks; expected the shipped ClusterRole"
            self._seldom.warning(told, extra={"error": str(error)})
            return False
        return True

    async def _follow(self, path: str) -> None:
        """List and watch them until they are served or may be read no longer."""
        self._sink.clear()
        watch = self._watch = ListWatch(
            self._api, path, _UltraServer, _kept, self._sink, {}, self._elapsed, ends_when_not_served=True
        )
        _LOG.info("reading NeuronUltraServers", extra={"path": path})
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_until_not_served(watch))
                while not (await asyncio.wait({watching}, timeout=self._look_seconds))[0]:
                    # It asks for ever, and cannot tell trouble from rights that were taken away.
                    if not watch.current and not await self._find():
                        watching.cancel()
                        break
        finally:
            self._watch = None


async def _until_not_served(watch: ListWatch[Any, Any]) -> None:
    try:
        await watch.run()
    except NotServedError as error:
        _LOG.info("reading NeuronUltraServers: no longer served there", extra={"error": str(error)})


class _Sink:
    """Objects by namespace and name, and the members that they make."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._objects: dict[tuple[str, str], frozenset[str]] = {}
        self.members: Mapping[str, frozenset[str]] = {}

    def clear(self) -> None:
        """Know nothing."""
        self._objects, self.members = {}, {}

    def replace(self, objects: list[_Members], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        self._objects = {(one.namespace, one.name): one.nodes for one in objects}
        self._changed()

    def put(self, object_: _Members) -> None:
        """Take one object that was added or changed; most changes are of its status."""
        key = object_.namespace, object_.name
        if self._objects.get(key) != object_.nodes:
            self._objects[key] = object_.nodes
            self._changed()

    def remove(self, object_: _Members) -> None:
        """Drop one object."""
        if self._objects.pop((object_.namespace, object_.name), None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.members = members_of(self._objects.values())
        self._on_change()


def members_of(ultraservers: Iterable[frozenset[str]]) -> dict[str, frozenset[str]]:
    """For each node, all that are named together with it."""
    found: dict[str, frozenset[str]] = {}
    for nodes in ultraservers:
        for node in nodes:
            found[node] = found[node] | nodes if node in found else nodes
    return found


def _kept(object_: _UltraServer) -> _Members:
    return _Members(object_.metadata.namespace, object_.metadata.name, nodes_of(object_.spec))


def nodes_of(spec: object) -> frozenset[str]:
    """Names of the nodes in `topology`; what is not as documented counts for nothing, nor does more than `LARGEST`."""
    topology = spec.get("topology") if isinstance(spec, dict) else None
    entries = topology if isinstance(topology, list) else []
    names = [entry.get("nodeName") for entry in entries if isinstance(entry, dict)]
    found = frozenset(name for name in names if isinstance(name, str) and name)
    return found if len(found) <= LARGEST else frozenset()
