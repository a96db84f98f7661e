"""What the remediator knows of the cluster: nodes, slices, claims and rules, each kept current by list and watch.

Reads are answered from memory; a Node that memory does not know is read live before it is called unknown
(`remediator.node_cache`). Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from remediator.backends.device_taint_rule import RecordCache, collection
from remediator.claims import ClaimObject, ClaimReader, Claims
from remediator.cluster import RESOURCE_API, Api, rule_version
from remediator.foreign_rules import ForeignRules, Sorting
from remediator.inventory import DeviceTaint, Inventory, Node, Place, Slice, Target
from remediator.listwatch import ListWatch, as_it_came, patiently
from remediator.node_cache import NODES, NodeCache
from remediator.rules import Rule
from remediator.slices import Compactor, SliceObject

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

SLICES = f"{RESOURCE_API}/v1/resourceslices"
CLAIMS = f"{RESOURCE_API}/v1/resourceclaims"


_JUST_NOW_SECONDS = 1.0
_NODES_PAUSE = 0.25
"""In seconds. Kubelets tell of every node all the time, of which hardly anything is of interest here."""


class SliceCache:
    """Slices, filed in an inventory. `on_change` is called when devices or their taints are others than before."""

    def __init__(self, driver: str, *, on_change: Callable[[], None]) -> None:
        self._driver = driver
        self._on_change = on_change
        self.inventory = Inventory(driver)

    def replace(self, objects: list[Slice], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        before, self.inventory = self.inventory, Inventory(self._driver)
        for slice_ in objects:
            self.inventory.put(slice_)
        if not self.inventory.same(before):
            self._on_change()

    def put(self, object_: Slice) -> None:
        """Take one slice that was added or changed."""
        if self.inventory.put(object_):
            self._on_change()

    def remove(self, object_: Slice) -> None:
        """Drop one slice."""
        if self.inventory.remove(object_):
            self._on_change()


class Caches:
    """The surroundings of every decision, and the records the backend works on.

    `elapsed` is a monotonic clock in seconds. `on_change` is called after something that decisions depend on has
    changed: a Node's identity, opt-out or instance type, a slice's devices or taints, a claim on a device that no slice
    lists. It is called once a change, so in bursts, and must not block.
    """

    def __init__(
        self,
        api: Api,
        *,
        driver: str,
        elapsed: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._on_change = on_change
        self._nodes = NodeCache(api, elapsed=elapsed, on_change=self._changed)
        self._slices = SliceCache(driver, on_change=self._changed)
        self.records = RecordCache()
        self.claims = Claims(on_change=self._claimed)
        self.foreign_rules = ForeignRules(driver)
        self._without_slices: int | None = None
        driver_only = {"fieldSelector": f"spec.driver={driver}"}
        # All rules, as those of others taint too.
        rules = Sorting(self.records, self.foreign_rules)
        self._rules_watch = ListWatch(api, "", Rule, as_it_came, rules, {}, elapsed)
        self._watches: dict[str, ListWatch[Any, Any]] = {
            "nodes": ListWatch(api, NODES, Node, as_it_came, self._nodes, {}, elapsed, _NODES_PAUSE),
            "resourceslices": ListWatch(api, SLICES, SliceObject, Compactor(), self._slices, driver_only, elapsed),
            "resourceclaims": ListWatch(api, CLAIMS, ClaimObject, ClaimReader(driver), self.claims, {}, elapsed),
            "devicetaintrules": self._rules_watch,
        }

    async def run(self) -> None:
        """Find out how rules are served, then keep everything current, until cancelled."""
        discovering = patiently("discovering DeviceTaintRule", longest=5, path=RESOURCE_API)
        self.records.version = await discovering(rule_version, self._api)
        self._rules_watch.path = collection(self.records.version)
        async with asyncio.TaskGroup() as group:
            for watch in self._watches.values():
                group.create_task(watch.run())

    def renew_records(self) -> None:
        """List our rules anew, unless they were listed just now: for who begins to lead, and counts what was raised."""
        self._rules_watch.renew(older_than=_JUST_NOW_SECONDS)

    def not_ready(self) -> str | None:
        """Say what is not known, or not known any more; None when decisions can be made."""
        if not self.records.version:
            return "waiting for the API server to say how it serves DeviceTaintRules"
        missing = [name for name, watch in self._watches.items() if not watch.current]
        return f"waiting for a list of {', '.join(missing)}" if missing else None

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """The Node, from memory or by a live read; None only when the API server says it is not there."""
        return await (self._nodes.read(name) if live else self._nodes.find(name))

    def known_node(self, name: str) -> Node | None:
        """The Node as memory has it; None may mean that its event is still under way."""
        return self._nodes.get(name)

    def nodes(self) -> Iterable[str]:
        """Nodes that are there and have Neuron devices, or that an alert has spoken of; others are no concern."""
        listed = self.inventory.nodes()
        return tuple(
            name
            for node in self._nodes.all()
            if (name := node.metadata.name) in listed or node.neuron or self._nodes.spoken_of(name)
        )

    @property
    def inventory(self) -> Inventory:
        """The devices in slices. A new list makes a new one: ask each time."""
        return self._slices.inventory

    def locate(self, node: str, device: int) -> Target:
        """Where device `device` of that node is to be tainted."""
        return self.inventory.locate(node, device, claimed=self.claims.devices_of(node))

    def targets(self) -> int:
        """What the budget is a share of: devices in Neuron slices, and one for each Neuron node without slices."""
        if self._without_slices is None:
            listed = self.inventory.nodes()
            bare = (node for node in self._nodes.all() if node.neuron and node.metadata.name not in listed)
            self._without_slices = sum(1 for _ in bare)
        return self.inventory.targets() + self._without_slices

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's own taints, by place; places without any are not in it. Live: read it at once."""
        return self.inventory.taints()

    def unavailable(self) -> AbstractSet[Place]:
        """Places where a taint of the driver itself keeps work off. Live: read it at once."""
        return self.inventory.unavailable()

    def _claimed(self, pool: str, devices: AbstractSet[str]) -> None:
        """Where slices list the devices, what claims say of them changes no decision."""
        if not devices <= {device.name for _, device in self.inventory.devices_of(pool)}:
            self._on_change()

    def _changed(self) -> None:
        self._without_slices = None
        self._on_change()
