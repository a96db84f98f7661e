"""What the remediator knows of the cluster: nodes, slices and its own rules, each kept current by list and watch.

Reads are answered from memory; a Node that memory does not know is read live before it is called unknown, because
a new one may be milliseconds ahead of its watch event. Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from remediator.backends.device_taint_rule import SELECTOR, RecordCache, collection
from remediator.cluster import RESOURCE_API, Api, object_path, rule_version
from remediator.inventory import Inventory, Node, Slice, Target
from remediator.listwatch import ListWatch, patiently
from remediator.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NODES = "/api/v1/nodes"
SLICES = f"{RESOURCE_API}/v1/resourceslices"


class NodeCache:
    """Nodes by name."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def replace(self, objects: list[Node], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        self._nodes = {node.metadata.name: node for node in objects}

    def put(self, object_: Node) -> None:
        """Take one node that was added or changed."""
        self._nodes[object_.metadata.name] = object_

    def remove(self, object_: Node) -> None:
        """Drop one node."""
        self._nodes.pop(object_.metadata.name, None)

    def get(self, name: str) -> Node | None:
        """The node of that name, or None."""
        return self._nodes.get(name)


class SliceCache:
    """Slices, filed in an inventory."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self.inventory = Inventory(driver)

    def replace(self, objects: list[Slice], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        self.inventory = Inventory(self._driver)
        for slice_ in objects:
            self.inventory.put(slice_)

    def put(self, object_: Slice) -> None:
        """Take one slice that was added or changed."""
        self.inventory.put(object_)

    def remove(self, object_: Slice) -> None:
        """Drop one slice."""
        self.inventory.remove(object_)


class Caches:
    """The surroundings of every decision, and the records the backend works on.

    `elapsed` is a monotonic clock in seconds.
    """

    def __init__(self, api: Api, *, driver: str, elapsed: Callable[[], float]) -> None:
        self._api = api
        self._nodes = NodeCache()
        self._slices = SliceCache(driver)
        self.records = RecordCache()
        self._asked: set[str] = set()
        driver_only = {"fieldSelector": f"spec.driver={driver}"}
        self._nodes_watch = ListWatch(api, NODES, Node, self._nodes, {}, elapsed)
        self._slices_watch = ListWatch(api, SLICES, Slice, self._slices, driver_only, elapsed)
        self._rules_watch = ListWatch(api, "", Rule, self.records, {"labelSelector": SELECTOR}, elapsed)

    async def run(self) -> None:
        """Find out how rules are served, then keep everything current, until cancelled."""
        discovering = patiently("discovering DeviceTaintRule", longest=5, path=RESOURCE_API)
        self.records.version = await discovering(rule_version, self._api)
        self._rules_watch.path = collection(self.records.version)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes_watch.run())
            group.create_task(self._slices_watch.run())
            group.create_task(self._rules_watch.run())

    def not_ready(self) -> str | None:
        """Say what is not known, or not known any more; None when decisions can be made."""
        if not self.records.version:
            return "waiting for the API server to say how it serves DeviceTaintRules"
        watches: dict[str, ListWatch[Any]] = {
            "nodes": self._nodes_watch,
            "resourceslices": self._slices_watch,
            "devicetaintrules": self._rules_watch,
        }
        missing = [name for name, watch in watches.items() if not watch.current]
        return f"waiting for a list of {', '.join(missing)}" if missing else None

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """The Node, from memory or by a live read; None only when the API server says it is not there."""
        found = None if live else self._nodes.get(name)
        found = found or await self._api.get(object_path(NODES, name), Node)
        if found is not None:
            self._asked.add(name)
        return found

    def nodes(self) -> Iterable[str]:
        """Nodes that are there and have a slice, or that an alert has spoken of; the others are many and no concern."""
        wanted = self._asked.union(self._slices.inventory.nodes())
        return tuple(name for name in wanted if self._nodes.get(name) is not None)

    def locate(self, node: str, device: int) -> Target:
        """Where device `device` of that node is to be tainted."""
        return self._slices.inventory.locate(node, device)
