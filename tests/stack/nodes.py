"""What kubelet, the Neuron DRA driver and other controllers do to Nodes and ResourceSlices, for tests without them."""

import http.client
from collections.abc import Callable, Mapping
from typing import Any

from tests.stack import shapes
from tests.stack.client import WAIT_SECONDS, Client
from tests.stack.http import HTTPError
from tests.stack.process import wait_until
from tests.stack.shapes import Object

DRIVER_TAINT_KEY = "neuron.aws.com/device-unhealthy"
"""The key of the taints that the driver itself puts into its slices."""

Taint = dict[str, Any]
"""A taint as the API has it: key, value, effect, timeAdded."""


class Nodes(Client):
    """A client that does by hand what would be done to nodes."""

    def node(
        self,
        name: str,
        devices: int = 16,
        ultraserver: str | None = None,
        *,
        instance_type: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Object:
        """Make a node that is Ready and offers ``devices`` Neuron devices; returns the Node.

        With ``ultraserver`` (a capacity block id) it offers the one device ``neuron-node`` instead; with
        ``devices=0`` it is a node without Neuron slices.
        """
        instance = instance_type or ("trn2u.48xlarge" if ultraserver else "trn2.48xlarge")
        made = self.create(shapes.node(name, instance, labels or {}))
        self.patch("Node", name, shapes.ready_status(), subresource="status")
        # Admission has put a not-ready taint on it, which the lifecycle controller would take away.
        made = self.patch("Node", name, {"spec": {"taints": None}})
        self.device_class()
        if ultraserver or devices:
            self.publish_slice(name, devices, ultraserver, instance_type=instance)
        return made

    def device_class(self) -> None:
        """Create the DeviceClass ``neuron.aws.com`` unless it is there."""
        if self.find("DeviceClass", shapes.DRIVER) is None:
            self.create(shapes.device_class())

    def slice_of(self, node: str) -> Object | None:
        """Return the Neuron slice of a node."""
        for item in self.items("ResourceSlice"):
            if item["spec"]["driver"] == shapes.DRIVER and item["spec"].get("nodeName") == node:
                return item
        return None

    def delete_node(self, name: str) -> None:
        """Delete a Node as its recycling would, and wait for the garbage collector to take its slice."""
        self.delete("Node", name)
        wait_until(lambda: self.slice_of(name) is None, timeout=WAIT_SECONDS, what=f"the slice of {name} to go")

    # Slices, as the driver publishes them and kubelet deletes them

    def publish_slice(
        self, node: str, devices: int = 16, ultraserver: str | None = None, *, instance_type: str | None = None
    ) -> Object:
        """Create the slice of a Node that has none; returns it. Without taints, as the driver has yet to look.

        ``instance_type`` is what the Node's label says unless given; the rest is as for ``node``.
        """
        owner = self.get("Node", node)
        instance = instance_type or owner["metadata"]["labels"]["node.kubernetes.io/instance-type"]
        offered = (
            [shapes.ultraserver_device(ultraserver, instance)]
            if ultraserver
            else shapes.standalone_devices(devices, instance)
        )
        return self.create(shapes.resource_slice(owner, offered))

    def wipe_slice(self, node: str) -> Object:
        """Delete the slice of a node, as kubelet does when it starts; returns what is no more."""
        found = self._slice(node)
        self.delete("ResourceSlice", found["metadata"]["name"], uid=found["metadata"]["uid"])
        return found

    def driver_taint(
        self, node: str, device: str, value: str, effect: str | None, *, key: str = DRIVER_TAINT_KEY
    ) -> None:
        """Let the driver taint a device in its slice, or with ``effect=None`` take the taint away.

        A device may carry several taints of one key; the one with this key and value is meant, others stay.
        """

        def change(slice_: Object) -> Object:
            devices: list[Object] = slice_["spec"]["devices"]
            (tainted,) = (one for one in devices if one["name"] == device)
            kept = [one for one in tainted.get("taints", ()) if (one["key"], one.get("value", "")) != (key, value)]
            added = [] if effect is None else [{"key": key, "value": value, "effect": effect}]
            tainted["taints"] = [*kept, *added]
            return {"spec": {"devices": devices}}

        self._change("ResourceSlice", self._slice(node)["metadata"]["name"], change)

    def _slice(self, node: str) -> Object:
        found = self.slice_of(node)
        if found is None:
            raise AssertionError(f'looking for the Neuron slice of node "{node}": it has none')
        return found

    # Taints of Nodes, as other controllers and people write them

    def node_taints(self, name: str) -> list[Taint]:
        """Return the taints of a Node, in their order."""
        taints: list[Taint] = self.get("Node", name)["spec"].get("taints", [])
        return taints

    def change_node_taints(self, name: str, change: Callable[[list[Taint]], list[Taint]]) -> None:
        """Replace the taints of a Node by what ``change`` makes of them; it is asked again if somebody came between.

        This is what a careful controller does: the patch is guarded by the version that was read.
        """

        def patch(node: Object) -> Object:
            return {"spec": {"taints": change(node["spec"].get("taints", [])) or None}}

        self._change("Node", name, patch)

    def taint_node(self, name: str, key: str, effect: str, value: str = "") -> None:
        """Add a taint to a Node, or give the one of this key and effect another value."""

        def change(taints: list[Taint]) -> list[Taint]:
            kept = [taint for taint in taints if (taint["key"], taint["effect"]) != (key, effect)]
            return [*kept, {"key": key, "effect": effect, **({"value": value} if value else {})}]

        self.change_node_taints(name, change)

    def untaint_node(self, name: str, key: str) -> None:
        """Take every taint of a key off a Node."""
        self.change_node_taints(name, lambda taints: [taint for taint in taints if taint["key"] != key])

    def _change(self, kind: str, name: str, change: Callable[[Object], Object]) -> None:
        """Merge into an object what ``change`` makes of it, only if nobody has written in between; else again."""

        def written() -> bool:
            found = self.get(kind, name)
            guard = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}}
            try:
                self.patch(kind, name, {**change(found), **guard})
            except HTTPError as error:
                if error.status != http.client.CONFLICT:
                    raise
                return False
            return True

        wait_until(written, timeout=WAIT_SECONDS, what=f'a change of {kind} "{name}" to be taken')
