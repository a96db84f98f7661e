"""Kubernetes objects as kubelet, the Neuron DRA driver and a user of Neuron devices would write them.

Pure: dicts in, dicts out. Attributes and names are those of the public Neuron DRA documentation; the values are
illustrative.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

DRIVER = "neuron.aws.com"
ULTRASERVER_DEVICE = "neuron-node"
_API = "resource.k8s.io/v1"
_DRIVER_VERSIONS = {"neuronDriverVersion": {"string": "2.31.7.0"}, "draDriverVersion": {"version": "1.3.0"}}
_ROW = 4  # a trn2.48xlarge is a 4x4 grid

Object = dict[str, Any]


def device_name(device: int) -> str:
    """Return the name the DRA driver gives to device ``device`` of a standalone node."""
    return f"neuron-device-{device}"


def node(name: str, instance_type: str, labels: Mapping[str, str]) -> Object:
    """Return a Node as kubelet registers it."""
    own = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": instance_type}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {**own, **labels}}}


def ready_status() -> Object:
    """Return the patch with which kubelet says that a node is ready."""
    room = {"cpu": "192", "memory": "2000Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}


def device_class() -> Object:
    """Return the DeviceClass that the Neuron chart installs."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    metadata = {"name": DRIVER}
    return {"apiVersion": _API, "kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": [selector]}}


def resource_slice(owner: Object, devices: Sequence[Object]) -> Object:
    """Return the one slice of a node, owned by the Node as the DRA driver's helper library does it."""
    name = owner["metadata"]["name"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": _API,
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{name}-{DRIVER}-", "ownerReferences": [reference]},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def standalone_devices(count: int, instance_type: str) -> list[Object]:
    """Return the devices of a node outside an UltraServer: one for each chip."""
    return [_standalone_device(device, instance_type) for device in range(count)]


def ultraserver_device(capacity_block: str, instance_type: str) -> Object:
    """Return the one device of an UltraServer's node, which stands for all its chips."""
    attributes = {
        "deviceId": {"int": 0},
        "instanceType": {"string": instance_type},
        "resourceType": {"string": "neuron_node"},
        "capacityBlockId": {"string": capacity_block},
        **_DRIVER_VERSIONS,
    }
    return {"name": ULTRASERVER_DEVICE, "attributes": attributes}


def _standalone_device(device: int, instance_type: str) -> Object:
    row, column = divmod(device, _ROW)
    group = hashlib.sha256(f"row {row}".encode()).hexdigest()[:16]
    attributes = {
        "deviceId": {"int": device},
        "instanceType": {"string": instance_type},
        "resourceType": {"string": "neuron_device"},
        "topology_x": {"int": row},
        "topology_y": {"int": column},
        "resource.aws.com/devicegroup4_id": {"string": group},
        **_DRIVER_VERSIONS,
    }
    return {"name": device_name(device), "attributes": attributes}


def claim_spec(count: int, device: int | None, tolerations: Sequence[Mapping[str, Any]]) -> Object:
    """Return a claim for ``count`` devices, or for exactly the one with this ``deviceId``."""
    exactly: Object = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    if device is not None:
        expression = f'device.attributes["{DRIVER}"].deviceId == {device}'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    if tolerations:
        exactly["tolerations"] = [dict(toleration) for toleration in tolerations]
    return {"devices": {"requests": [{"name": "neurons", "exactly": exactly}]}}


def claim(name: str, spec: Object) -> Object:
    """Return a ResourceClaim that outlives the pod which uses it."""
    return {"apiVersion": _API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def claim_template(name: str, spec: Object) -> Object:
    """Return a template from which each pod gets a claim of its own, gone with the pod."""
    return {"apiVersion": _API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}


def pod(name: str, claim_source: Mapping[str, str], *, node: str | None, grace: int) -> Object:
    """Return a pod with one claim. ``claim_source`` is ``resourceClaimName`` or ``resourceClaimTemplateName``."""
    container = {
        "name": "train",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"claims": [{"name": "neurons"}]},
    }
    spec: Object = {
        "containers": [container],
        "resourceClaims": [{"name": "neurons", **claim_source}],
        "terminationGracePeriodSeconds": grace,
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def taint_rule(name: str, *, pool: str, device: str, value: str, effect: str, owner: Object | None = None) -> Object:
    """Return a DeviceTaintRule for exactly one device of one pool, owned by a Node if one is given."""
    metadata: Object = {"name": name}
    if owner is not None:
        identity = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", **identity}]
    return {
        "apiVersion": _API,
        "kind": "DeviceTaintRule",
        "metadata": metadata,
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": pool, "device": device},
            "taint": {"key": "neuron.aws.com/device-unhealthy", "value": value, "effect": effect},
        },
    }
