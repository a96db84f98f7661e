"""What the remediator knows of the cluster: nodes, slices and its own rules, each kept current by list and watch.

Reads are answered from memory; a Node that memory does not know is read live before it is called unknown, because
a new one may be milliseconds ahead of its watch event. Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remediator.backends.device_taint_rule import SELECTOR, RecordCache, collection
from remediator.cluster import RESOURCE_API, Api, object_path
from remediator.inventory import Inventory, Node, Slice, Target
from remediator.listwatch import ListWatch
from remediator.records import Rule

if TYPE_CHECKING:
    from collections.abc import Coroutine

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
    """The surroundings of every decision, and the records the backend works on."""

    def __init__(self, api: Api, *, driver: str, rule_version: str) -> None:
        self._api = api
        self._nodes = NodeCache()
        self._slices = SliceCache(driver)
        self.records = RecordCache()
        self._synced = {
            "nodes": asyncio.Event(),
            "resourceslices": asyncio.Event(),
            "devicetaintrules": asyncio.Event(),
        }
        driver_only = {"fieldSelector": f"spec.driver={driver}"}
        ours_only = {"labelSelector": SELECTOR}
        self._watches = (
            ListWatch(api, NODES, Node, self._nodes, {}, self._synced["nodes"]),
            ListWatch(api, SLICES, Slice, self._slices, driver_only, self._synced["resourceslices"]),
            ListWatch(api, collection(rule_version), Rule, self.records, ours_only, self._synced["devicetaintrules"]),
        )

    def watches(self) -> tuple[Coroutine[None, None, None], ...]:
        """What must run, each for ever, for the caches to be current."""
        return tuple(watch.run() for watch in self._watches)

    def not_ready(self) -> str | None:
        """Say which collections have not been listed yet, or None."""
        missing = [name for name, synced in self._synced.items() if not synced.is_set()]
        return f"waiting for the first list of {', '.join(missing)}" if missing else None

    async def node(self, name: str) -> Node | None:
        """The Node, from memory or else by a live read; None only when the API server says it is not there."""
        return self._nodes.get(name) or await self._api.get(object_path(NODES, name), Node)

    def locate(self, node: str, device: int) -> Target:
        """Where device `device` of that node is to be tainted."""
        return self._slices.inventory.locate(node, device)
