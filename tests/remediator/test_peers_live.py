"""Flags on peers by what the real API server shows of nodes, slices, records and UltraServers, as the process does it.

Each change is to be followed within the time that the guide gives.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator import peers
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.inventory import NEURON_NODE
from remediator.peer_keeper import PeerKeeper
from remediator.records import Key
from remediator.rule_records import object_name, to_object
from remediator.targets import Target
from tests.remediator.fakes import Leads, eventually
from tests.remediator.live import USER
from tests.remediator.samples import DRIVER, record
from tests.stack import crds, shapes
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from remediator.peer_object import PeerRule
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

SECONDS = 15.0
"""How long a flag may take to appear or to clear: the guide says "up to about 15 seconds"."""

KEY = Key("u1", 3, "hbm")


@dataclass
class Cluster:
    """The administrator's view."""

    admin: Admin

    async def do(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Change something, while the loop goes on."""
        return await asyncio.to_thread(call, *arguments, **named)

    async def flagged(self, *pairs: tuple[str, str]) -> None:
        """Wait until exactly these peers are flagged, for these sources, with nothing but None."""

        def met() -> bool:
            found = [one for one in self.admin.rules() if one["metadata"]["name"].startswith("neuron-peer.")]
            shown = {
                (one["spec"]["taint"]["value"], one["spec"]["deviceSelector"]["pool"], one["spec"]["taint"]["effect"])
                for one in found
            }
            return shown == {(source, peer, "None") for source, peer in pairs}

        await wait_for(lambda: asyncio.to_thread(met), timeout=SECONDS, what=f"flags {pairs}")

    def faulty(self, node: str, effect: Effect = Effect.NO_EXECUTE) -> None:
        """Have the record of a faulty device there, as the remediator writes it."""
        kept = record(
            node_uid=self.admin.get("Node", node)["metadata"]["uid"], target=Target(DRIVER, node, NEURON_NODE)
        )
        kept = replace(kept, key=replace(KEY, node=node), taint=replace(kept.taint, effect=effect))
        self.admin.apply(to_object(kept, "resource.k8s.io/v1"))

    def republish(self, node: str, *devices: dict[str, Any]) -> None:
        """Publish another slice for a node; without devices, take the slice away."""
        self.admin.delete("ResourceSlice", (self.admin.slice_of(node) or {})["metadata"]["name"])
        if devices:
            self.admin.create(shapes.resource_slice(self.admin.get("Node", node), devices))


@asynccontextmanager
async def keeping(control_plane: ControlPlane) -> AsyncIterator[Caches]:
    """Run what keeps the flags, as the process does, with all its own intervals."""
    async with connect(control_plane.kubeconfig(USER)) as api, asyncio.TaskGroup() as group:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic, on_change=lambda: keeper.poke())  # noqa: PLW0108
        caches.records.on_change = lambda *_: keeper.poke()

        def wanted() -> dict[str, PeerRule]:
            return peers.wanted(
                records=caches.records.all(),
                members=caches.ultraservers.members(),
                inventory=caches.inventory,
                nodes=caches.known_node,
                held=caches.peer_rules.all(),
            )

        keeper = PeerKeeper(
            api,
            caches.peer_rules,
            wanted=wanted,
            version=lambda: caches.records.version,
            not_ready=caches.not_ready,
            leadership=Leads(),
            count=lambda _action, _result: None,
            elapsed=time.monotonic,
        )
        tasks = [group.create_task(caches.run()), group.create_task(keeper.run())]
        yield caches
        for task in tasks:
            task.cancel()


async def test_flags_follow_slices_ultraservers_nodes_and_records(control_plane: ControlPlane, admin: Admin) -> None:
    """Four nodes: three say one capacity block, and a NeuronUltraServer that comes later says otherwise."""
    install(control_plane)
    cluster = Cluster(admin)
    for name, block in (("u1", "x"), ("u2", "x"), ("u3", "x"), ("u4", "y")):
        admin.node(name, ultraserver=block)
    async with keeping(control_plane) as caches:
        await cluster.do(cluster.faulty, "u1")
        await cluster.flagged(("u1", "u2"), ("u1", "u3"))

        await cluster.do(admin.serve_ultraservers, "v1beta1")
        await cluster.do(admin.ultraserver, "us", ["u1", "u4"])
        await cluster.flagged(("u1", "u4"))
        await cluster.do(admin.ultraserver, "us", ["u1", "u3", "u4"])
        await cluster.flagged(("u1", "u3"), ("u1", "u4"))
        await cluster.do(admin.stop_serving_ultraservers)
        await cluster.flagged(("u1", "u2"), ("u1", "u3"))

        await cluster.do(cluster.republish, "u2")
        await eventually(lambda: "u2" not in caches.inventory.nodes(), what="the slice to be away")
        # Followed in turn: had the flag on u2 gone, it would be gone by then.
        await cluster.do(cluster.faulty, "u3")
        await cluster.flagged(("u1", "u2"), ("u1", "u3"), ("u3", "u1"))
        await cluster.do(
            admin.create,
            shapes.resource_slice(admin.get("Node", "u2"), shapes.standalone_devices(2, "trn2.48xlarge")),
        )
        await cluster.flagged(("u1", "u3"), ("u3", "u1"))
        await cluster.do(cluster.republish, "u2", shapes.ultraserver_device("x", "trn2u.48xlarge"))
        await cluster.flagged(("u1", "u2"), ("u1", "u3"), ("u3", "u1"), ("u3", "u2"))

        await cluster.do(cluster.faulty, "u3", Effect.NONE)
        await cluster.flagged(("u1", "u2"), ("u1", "u3"))
        await cluster.do(admin.delete_node, "u3")
        await cluster.flagged(("u1", "u2"))
        await cluster.do(admin.delete, "DeviceTaintRule", object_name(KEY))
        await cluster.flagged()


async def test_flags_go_with_the_faulty_node(control_plane: ControlPlane, admin: Admin) -> None:
    install(control_plane)
    cluster = Cluster(admin)
    for name in ("u1", "u2"):
        admin.node(name, ultraserver="x")
    admin.serve_ultraservers("v1")
    admin.ultraserver("us", ["u1", "u2"], namespace="kube-system")
    assert admin.find(crds.KIND, "us", namespace="kube-system")
    async with keeping(control_plane):
        await cluster.do(cluster.faulty, "u1")
        await cluster.flagged(("u1", "u2"))
        await cluster.do(admin.delete_node, "u1")
        await cluster.flagged()
