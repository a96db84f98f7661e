"""What the remediator knows of the cluster: nodes, slices, claims and rules, each kept current by list and watch.

Reads are answered from memory; a Node that memory does not know is read live before it is called unknown
(`remediator.node_cache`). Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from remediator.backends.device_taint_rule import RecordCache
from remediator.backends.node_taint import NodeRecords
from remediator.claims import ClaimObject, ClaimReader, Claims
from remediator.cluster import RESOURCE_API, Api
from remediator.foreign_rules import ForeignRules, Sorting
from remediator.inventory import DeviceTaint, Inventory, Node, Slice
from remediator.listwatch import ListWatch, as_it_came
from remediator.node_cache import NODES, NodeCache
from remediator.peer_rules import PeerRules
from remediator.placement import Choice, by_node, settle
from remediator.rules_served import RulesServed
from remediator.slices import Compactor, SliceObject
from remediator.targets import Place
from remediator.ultraservers import UltraServers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from remediator.targets import AnyTarget

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

    `choice` says whether rules or Nodes are used. `elapsed` is a monotonic clock in seconds. `on_change` is called
    after something that decisions depend on has changed: a Node's identity, taints, or labels that count, a slice's
    devices or their taints, a claim on a device that no slice lists, UltraServers, how rules are served. It is called
    once a change, so in bursts, and must not block.
    """

    def __init__(
        self,
        api: Api,
        *,
        driver: str,
        elapsed: Callable[[], float],
        choice: Choice = Choice.AUTO,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._choice = choice
        self._on_change = on_change
        self.node_cache = NodeCache(api, elapsed=elapsed, on_change=on_change)
        self.node_cache.on_node = self._take_node
        self.node_records = NodeRecords(driver)
        self._neuron: set[str] = set()
        self._slices = SliceCache(driver, on_change=self._changed)
        self.claims = Claims(on_change=self._claimed)
        self.ultraservers = UltraServers(api, elapsed=elapsed, on_change=on_change)
        self.records = RecordCache()
        self.peer_rules = PeerRules(on_change=on_change)
        self.foreign_rules = ForeignRules(driver)
        # All rules, as those of others taint too.
        sorting = Sorting(self.records, self.foreign_rules, self.peer_rules)
        self._rules = RulesServed(api, sorting, elapsed=elapsed, on_served=self._served_as)
        self._without_slices: int | None = None
        self._nodes_unavailable: frozenset[Place] | None = None
        driver_only = {"fieldSelector": f"spec.driver={driver}"}
        self._watches: dict[str, ListWatch[Any, Any]] = {
            "nodes": ListWatch(api, NODES, Node, as_it_came, self.node_cache, {}, elapsed, _NODES_PAUSE),
            "resourceslices": ListWatch(api, SLICES, SliceObject, Compactor(), self._slices, driver_only, elapsed),
            "resourceclaims": ListWatch(api, CLAIMS, ClaimObject, ClaimReader(driver), self.claims, {}, elapsed),
        }

    async def run(self) -> None:
        """Keep everything current, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches.values():
                group.create_task(watch.run())
            group.create_task(self._rules.run())
            group.create_task(self.ultraservers.run())

    def _served_as(self, version: str) -> None:
        """Take in how rules are served from now on; an empty version says that they are not."""
        self.records.served_as(version)
        if not version:
            # Nor is anybody else's in force.
            self.peer_rules.replace([], "0")
            self.foreign_rules.replace([], "0")
        self._changed()

    def renew_records(self) -> None:
        """List all that bears records anew, unless that was done just now.

        For who begins to lead: it counts what was raised by the one before.
        """
        self._rules.renew(older_than=_JUST_NOW_SECONDS)
        self._watches["nodes"].renew(older_than=_JUST_NOW_SECONDS)

    def not_ready(self) -> str | None:
        """Say what is not known, or not known any more; None when decisions can be made."""
        if (reason := self._rules.not_ready()) is not None:
            return reason
        if not self.records.version and self._choice is Choice.RULES:
            return "the API server serves no version of DeviceTaintRule; expected one, or --backend=auto"
        missing = [name for name, watch in self._watches.items() if not watch.current]
        return f"waiting for a list of {', '.join(missing)}" if missing else None

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """The Node, from memory or by a live read; None only when the API server says it is not there."""
        return await (self.node_cache.read(name) if live else self.node_cache.find(name))

    def known_node(self, name: str) -> Node | None:
        """The Node as memory has it; None may mean that its event is still under way."""
        return self.node_cache.get(name)

    def nodes(self) -> Iterable[str]:
        """Nodes that are there and have Neuron devices, or that an alert has spoken of; others are no concern."""
        listed = self.inventory.nodes()
        return tuple(
            name
            for node in self.node_cache.all()
            if (name := node.metadata.name) in listed or node.neuron or self.node_cache.spoken_of(name)
        )

    @property
    def inventory(self) -> Inventory:
        """The devices in slices. A new list makes a new one: ask each time."""
        return self._slices.inventory

    def locate(self, node: str, device: int) -> AnyTarget:
        """What device `device` of that node is to be tainted by."""
        claimed = self.claims.devices_of(node)
        target = self.inventory.locate(node, device, claimed=claimed)
        known = bool(claimed) or node in self.inventory.nodes()
        return settle(target, node, choice=self._choice, served=bool(self.records.version), known=known)

    def node_taints(self, node: str) -> Collection[DeviceTaint]:
        """The taints on the Node itself that are not ours."""
        return self.node_records.foreign_taints(node)

    def targets(self) -> int:
        """What the budget is a share of: devices in Neuron slices, and one for each Neuron node without slices.

        Where nothing but Nodes can be tainted, a node is one, whatever it lists.
        """
        listed = self.inventory.nodes()
        if self._without_slices is None:
            self._without_slices = len(self._neuron - listed)
        return (len(listed) if self._by_node() else self.inventory.targets()) + self._without_slices

    def _by_node(self) -> bool:
        return by_node(self._choice, served=bool(self.records.version))

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's own taints, by place; places without any are not in it. Live: read it at once."""
        return self.inventory.taints()

    def unavailable(self) -> AbstractSet[Place]:
        """Places where a taint of the driver itself keeps work off. Live: read it at once.

        Where nothing but Nodes can be tainted, those are the Nodes with such a device.
        """
        if not self._by_node():
            return self.inventory.unavailable()
        if self._nodes_unavailable is None:
            found = (self.inventory.index_of(place) for place in self.inventory.unavailable())
            self._nodes_unavailable = frozenset(Place(label[0], "") for label in found if label is not None)
        return self._nodes_unavailable

    def _claimed(self, pool: str, devices: AbstractSet[str]) -> None:
        """Where slices list the devices, what claims say of them changes no decision."""
        if not devices <= {device.name for _, device in self.inventory.devices_of(pool)}:
            self._on_change()

    def _take_node(self, name: str, node: Node | None) -> None:
        neuron = node is not None and node.neuron
        if neuron is not (name in self._neuron):
            self._neuron ^= {name}
            self._without_slices = None
        self.node_records.take(name, node)

    def _changed(self) -> None:
        self._without_slices = self._nodes_unavailable = None
        self._on_change()
