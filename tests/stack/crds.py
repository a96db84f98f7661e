"""The NeuronUltraServer objects of a cluster: the resource definition, and objects as an operator would write them.

Stands in for the Neuron UltraServer Operator, which is not run here: nothing keeps these objects up to date. Pure:
dicts in, dicts out. Only the fields that are documented publicly are in the schema; any others are kept.
"""

from collections.abc import Sequence
from typing import Final, Literal

from tests.stack.shapes import Object

GROUP: Final = "neuron.aws.com"
PLURAL: Final = "neuronultraservers"
NAME: Final = f"{PLURAL}.{GROUP}"
KIND: Final = "NeuronUltraServer"

Version = Literal["v1", "v1beta1"]
"""The operator's chart has v1beta1, its documentation v1."""
VERSIONS: Final[tuple[Version, ...]] = ("v1", "v1beta1")

_TEXT: Object = {"type": "string"}
_OPEN: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_LINK: Object = {"type": "string", "enum": ["up", "down"]}
_MEMBER: Object = {
    **_OPEN,
    "properties": {
        "nodeId": {"x-kubernetes-preserve-unknown-fields": True},  # which type it has is not documented
        "nodeName": _TEXT,
        "linkStatusHorizontal": _LINK,
        "linkStatusVertical": _LINK,
    },
}
_SCHEMA: Object = {
    **_OPEN,
    "properties": {
        "spec": {
            **_OPEN,
            "properties": {"instanceType": _TEXT, "topology": {"type": "array", "items": _MEMBER}},
        },
        "status": {
            **_OPEN,
            "properties": {
                "state": {"type": "string", "enum": ["Ready", "Degraded"]},
                "allocations": {"type": "array", "items": _OPEN},
            },
        },
    },
}


def ultraserver_definition(version: Version) -> Object:
    """Return the definition that serves NeuronUltraServers in one version alone.

    Both versions are in it, so that objects outlast a change of the one that is served.
    """
    versions: list[Object] = [
        {
            "name": name,
            "served": name == version,
            "storage": name == "v1",
            "schema": {"openAPIV3Schema": _SCHEMA},
            "subresources": {"status": {}},
        }
        for name in VERSIONS
    ]
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower(), "shortNames": ["nus"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions},
    }


def ultraserver(name: str, members: Sequence[str], instance_type: str) -> Object:
    """Return an UltraServer of these nodes with all links up; ``Client`` sends it in the version that is served."""
    topology = [
        {"nodeId": str(number), "nodeName": node, "linkStatusHorizontal": "up", "linkStatusVertical": "up"}
        for number, node in enumerate(members)
    ]
    spec = {"instanceType": instance_type, "topology": topology}
    return {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": {"name": name}, "spec": spec}
