"""What the series of the fleet must be, worked out from the API server's own objects in the plainest way.

A second opinion for tests: it shares no code with the product, keeps nothing, and is as slow as it likes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.remediator.samples import DRIVER, Json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Lines = dict[tuple[str, ...], int]
"""Label values (in the order of the labels' names) → value."""

MANAGED_BY = "app.kubernetes.io/managed-by"


@dataclass
class RawCluster:
    """Objects as the API server writes them."""

    slices: list[Json] = field(default_factory=list)
    claims: list[Json] = field(default_factory=list)
    rules: list[Json] = field(default_factory=list)

    def devices(self) -> Lines:
        """`neuron_devices` by kind, instance type, driver version, DRA driver version."""
        return Counter(
            (
                "neuron-node" if device["name"] == "neuron-node" else "neuron-device",
                _attribute(device, "instanceType"),
                _attribute(device, "neuronDriverVersion"),
                _attribute(device, "draDriverVersion"),
            )
            for _, _, device in self._listed()
        )

    def taints(self) -> Lines:
        """`neuron_device_taint` by node, device, key, value, effect, source."""
        return {
            (node, device, taint["key"], taint.get("value", ""), taint["effect"], source): 1
            for (node, device), _, taint, source in self._tainted()
        }

    def consumers(self) -> Lines:
        """`neuron_device_consumer` by node, device, claim_namespace, claim, consumer_pod."""
        return {
            (node, device, claim["metadata"]["namespace"], claim["metadata"]["name"], pod): 1
            for (node, device), place, _, _ in self._tainted()
            for claim in self.claims
            if place in _held(claim)
            for pod in _pods(claim) or [""]
        }

    def _listed(self) -> Iterator[tuple[str, str, Json]]:
        """Node, pool and entry of each device in the newest generation of its pool."""
        specs = [one["spec"] for one in self.slices if one["spec"]["driver"] == DRIVER and one["spec"].get("nodeName")]
        for spec in specs:
            pool = spec["pool"]["name"]
            newest = max(other["pool"]["generation"] for other in specs if other["pool"]["name"] == pool)
            if spec["pool"]["generation"] == newest:
                yield from ((spec["nodeName"], pool, device) for device in spec["devices"])

    def _tainted(self) -> Iterator[tuple[tuple[str, str], tuple[str, str], Json, str]]:
        """Labels, place, taint and source of each taint on each device."""
        listed = {(pool, device["name"]): (node, _shown(device)) for node, pool, device in self._listed()}
        for node, pool, device in self._listed():
            for taint in device.get("taints", ()):
                yield (node, _shown(device)), (pool, device["name"]), taint, "driver"
        for rule in self.rules:
            taint, selector = rule["spec"]["taint"], rule["spec"].get("deviceSelector", {})
            place = (selector.get("pool", ""), selector.get("device", ""))
            if rule["metadata"].get("labels", {}).get(MANAGED_BY) == "neuron-remediator":
                said = (
                    rule["metadata"]["annotations"]["neuron-remediator/node"],
                    place[1] if place[1] == "neuron-node" else rule["metadata"]["labels"]["neuron-remediator/device"],
                )
                yield (
                    listed.get(place, said),
                    place,
                    taint,
                    "peer" if rule["metadata"]["name"].startswith("neuron-peer.") else "record",
                )
            elif selector.get("driver") in (None, DRIVER):
                for one in self._selected(place, listed):
                    yield listed.get(one, one), one, taint, "rule"

    def _selected(self, place: tuple[str, str], listed: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        pool, device = place
        if device or not pool:
            return [place]
        known = {*listed}.union(*map(_held, self.claims))
        return [one for one in known if one[0] == pool] or [place]


def _attribute(device: Json, name: str) -> str:
    value = device.get("attributes", {}).get(name, {})
    return str(value.get("string") or value.get("version") or "")


def _shown(device: Json) -> str:
    number = device.get("attributes", {}).get("deviceId", {}).get("int")
    return str(device["name"] if number is None or device["name"] == "neuron-node" else number)


def _held(claim: Json) -> set[tuple[str, str]]:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return {(one["pool"], one["device"]) for one in results if one["driver"] == DRIVER}


def _pods(claim: Json) -> list[str]:
    reserved = claim.get("status", {}).get("reservedFor", [])
    return [one["name"] for one in reserved if one["resource"] == "pods" and not one.get("apiGroup")]
