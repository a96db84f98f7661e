"""What a kubelet, a DRA driver and a user of devices do to a cluster, for tests without any of them."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stack import shapes
from tests.stack.client import Client
from tests.stack.http import HTTPError
from tests.stack.process import wait_until
from tests.stack.shapes import Object

WAIT_SECONDS = 20.0
"""How long the helpers wait for what the control plane does by itself; it takes well under a second when idle."""

# What tests make, users before what they use.
_MADE_BY_TESTS = ("Pod", "ResourceClaimTemplate", "ResourceClaim", "DeviceTaintRule", "ResourceSlice", "Node")


class Admin(Client):
    """The administrator's client, and helpers that make nodes and pods and wait for what becomes of them."""

    # Nodes, as kubelet and the DRA driver make them

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
        if ultraserver:
            self.create(shapes.resource_slice(made, [shapes.ultraserver_device(ultraserver, instance)]))
        elif devices:
            self.create(shapes.resource_slice(made, shapes.standalone_devices(devices, instance)))
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

    # Pods, as users of devices make them

    def pod(
        self,
        name: str,
        devices: int = 1,
        *,
        device: str | None = None,
        node: str | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
        grace: int = 0,
        template: bool = False,
    ) -> Object:
        """Create a pod with a claim of the same name for ``devices`` devices; returns the Pod, not yet scheduled.

        ``device`` ("neuron-device-3") asks for exactly that one, ``node`` for a node. ``tolerations`` are the
        claim's. With ``grace`` 0 an eviction needs no kubelet to complete it; with ``template`` the claim is made
        from a template and goes with the pod.
        """
        wanted = None if device in (None, shapes.ULTRASERVER_DEVICE) else _device_id(str(device))
        spec = shapes.claim_spec(devices, wanted, tolerations)
        self.create(shapes.claim_template(name, spec) if template else shapes.claim(name, spec))
        source = {"resourceClaimTemplateName" if template else "resourceClaimName": name}
        return self.create(shapes.pod(name, source, node=node, grace=grace))

    def scheduled(self, name: str, *, timeout: float = WAIT_SECONDS) -> str:
        """Wait until the scheduler has bound the pod; returns the device it got."""
        wait_until(
            lambda: self.get("Pod", name)["spec"].get("nodeName"), timeout=timeout, what=f'pod "{name}" to be bound'
        )
        device = self.allocated_device(name)
        assert device is not None, f'pod "{name}" is bound without a device'
        return device

    def allocated_devices(self, pod: str) -> list[str]:
        """Return the devices that the pod's claim holds now, by name; empty while it holds none."""
        statuses = (self.find("Pod", pod) or {}).get("status", {}).get("resourceClaimStatuses", ())
        names = [status["resourceClaimName"] for status in statuses if "resourceClaimName" in status] or [pod]
        claim = self.find("ResourceClaim", names[0]) or {}
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        return sorted(result["device"] for result in results)

    def allocated_device(self, pod: str) -> str | None:
        """Return the one device that the pod's claim holds now."""
        devices = self.allocated_devices(pod)
        assert len(devices) <= 1, f'pod "{pod}" holds several devices: {devices}'
        return devices[0] if devices else None

    def unschedulable(self, name: str, *, timeout: float = WAIT_SECONDS) -> str:
        """Wait until the scheduler has tried and found no place; returns its reasons."""

        def reasons() -> str | None:
            for condition in self.get("Pod", name).get("status", {}).get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                    return str(condition["message"])
            return None

        return wait_until(reasons, timeout=timeout, what=f'pod "{name}" to be unschedulable')

    def evicted(self, name: str, *, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the pod is being deleted or gone."""

        def deleted() -> bool:
            found = self.find("Pod", name)
            return found is None or "deletionTimestamp" in found["metadata"]

        wait_until(deleted, timeout=timeout, what=f'pod "{name}" to be evicted')

    def finish_deletion(self, name: str) -> None:
        """End the grace period of a pod that is being deleted, as kubelet would, and wait until it is gone."""
        found = self.find("Pod", name)
        if found is None:
            return
        if "deletionTimestamp" not in found["metadata"]:
            raise AssertionError(f'finishing the deletion of pod "{name}": nobody has asked to delete it')
        with contextlib.suppress(HTTPError):  # 409: it went by itself and another one took its name
            self.delete("Pod", name, grace=0, uid=found["metadata"]["uid"])
        self.gone("Pod", name)

    def gone(self, kind: str, name: str, *, timeout: float = WAIT_SECONDS) -> None:
        """Wait until an object is not there."""
        wait_until(lambda: self.find(kind, name) is None, timeout=timeout, what=f'{kind} "{name}" to be gone')

    # Rules

    def rules(self) -> list[Object]:
        """Return all DeviceTaintRules, by name."""
        return self.items("DeviceTaintRule")

    def clean(self) -> None:
        """Delete everything that tests make, and wait until it is gone."""
        for kind in _MADE_BY_TESTS:
            # Pods by one request each, as a collection's grace period is the pods' own.
            for item in self.items(kind):
                self.delete(kind, item["metadata"]["name"], grace=0)
        for kind in _MADE_BY_TESTS:
            self._wait_empty(kind)

    def _wait_empty(self, kind: str) -> None:
        wait_until(lambda: not self.items(kind), timeout=WAIT_SECONDS, what=f"all of {kind} to be gone")


def _device_id(device: str) -> int:
    prefix, _, number = device.rpartition("-")
    if prefix != "neuron-device" or not number.isdecimal():
        raise ValueError(f'asking for device "{device}": expected "neuron-device-<N>" or "neuron-node"')
    return int(number)
