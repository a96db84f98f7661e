"""What the parts of a cluster and its users do to it, for tests without any of them: here, users and their pods."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stack import crds, shapes
from tests.stack.client import WAIT_SECONDS
from tests.stack.http import HTTPError
from tests.stack.nodes import Nodes
from tests.stack.process import wait_until
from tests.stack.shapes import Object
from tests.stack.ultraservers import UltraServers

# What tests make, users before what they use.
_MADE_BY_TESTS = ("Pod", "ResourceClaimTemplate", "ResourceClaim", "DeviceTaintRule", "ResourceSlice", "Node")


class Admin(Nodes, UltraServers):
    """The administrator's client, and helpers that make things and wait for what becomes of them."""

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
        if self.find("CustomResourceDefinition", crds.NAME):
            self.stop_serving_ultraservers()
        for kind in _MADE_BY_TESTS:
            self._wait_empty(kind)

    def _wait_empty(self, kind: str) -> None:
        wait_until(lambda: not self.items(kind), timeout=WAIT_SECONDS, what=f"all of {kind} to be gone")


def _device_id(device: str) -> int:
    prefix, _, number = device.rpartition("-")
    if prefix != "neuron-device" or not number.isdecimal():
        raise ValueError(f'asking for device "{device}": expected "neuron-device-<N>" or "neuron-node"')
    return int(number)
