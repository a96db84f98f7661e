"""Nodes and slices of a large fleet, as big as real ones are, made many at a time.

A Node of a real cluster is mostly the list of up to 50 images that its kubelet reports, each with a digest and a tag:
every heartbeat of it is that big on the wire. It has no managedFields beyond those that the API server makes.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from tests.bench.client import at_once
from tests.bench.faults import DEVICES
from tests.stack import shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.client import Api

INSTANCE_TYPE = "trn2.48xlarge"
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CONNECTIONS = 64

_IMAGES = 50  # a kubelet reports no more (nodeStatusMaxImages)
_REGISTRY = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks"
_CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}
_LABELS = {
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
    "beta.kubernetes.io/os": "linux",
    "eks.amazonaws.com/capacityType": "CAPACITY_BLOCK",
    "eks.amazonaws.com/nodegroup": "trainium",
    "failure-domain.beta.kubernetes.io/region": "us-west-2",
    "failure-domain.beta.kubernetes.io/zone": "us-west-2d",
    "k8s.io/cloud-provider-aws": "0123456789abcdef0123456789abcdef",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "topology.k8s.aws/zone-id": "usw2-az4",
    "topology.kubernetes.io/region": "us-west-2",
    "topology.kubernetes.io/zone": "us-west-2d",
}
# What the controller manager of a cluster of this size writes on each Node; there from the start, it is not written.
_ANNOTATIONS = {
    "node.alpha.kubernetes.io/ttl": "300",
    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
}


def node(name: str, at: str) -> dict[str, Any]:
    """Return a Node as a kubelet registers it, status included; `at` is an RFC 3339 time."""
    made = shapes.node(name, INSTANCE_TYPE, _LABELS)
    made["metadata"]["annotations"] = dict(_ANNOTATIONS)
    made["status"] = {
        **shapes.ready_status()["status"],
        **heartbeat(at)["status"],
        "images": [_image(number) for number in range(_IMAGES)],
        "nodeInfo": _info(name),
    }
    return made


def heartbeat(at: str) -> dict[str, Any]:
    """Return the strategic merge patch with which a kubelet says every few minutes that all is as it was."""
    conditions = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": at}
        for kind, (status, reason, message) in _CONDITIONS.items()
    ]
    return {"status": {"conditions": conditions}}


async def make(api: Api, names: Sequence[str], at: str) -> dict[str, str]:
    """Make the nodes, each with a slice of its devices; returns the nodes' UIDs by name."""
    uids: dict[str, str] = {}
    devices = shapes.standalone_devices(DEVICES, INSTANCE_TYPE)

    async def one(name: str) -> None:
        made = json.loads(await api.create(NODES, json.dumps(node(name, at)).encode()))
        uids[name] = made["metadata"]["uid"]
        await api.create(SLICES, json.dumps(shapes.resource_slice(made, devices)).encode())

    await at_once(names, one, CONNECTIONS)
    return uids


def _image(number: int) -> dict[str, Any]:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    repository = f"{_REGISTRY}/component-{number:02}"
    return {"names": [f"{repository}@sha256:{digest}", f"{repository}:v1.{number}.0-eksbuild.1"], "sizeBytes": 10**8}


def _info(name: str) -> dict[str, str]:
    machine = hashlib.sha256(name.encode()).hexdigest()
    return {
        "architecture": "amd64",
        "bootID": f"{machine[:8]}-{machine[8:12]}-{machine[12:16]}-{machine[16:20]}-{machine[20:32]}",
        "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.12.40-64.114.amzn2023.x86_64",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.37.0-eks-1234567",
        "machineID": machine[:32],
        "operatingSystem": "linux",
        "osImage": "Amazon Linux 2023.9.20250929",
        "systemUUID": f"ec2{machine[3:8]}-{machine[8:12]}-{machine[12:16]}-{machine[16:20]}-{machine[20:32]}",
    }
