"""How the API server serves DeviceTaintRules: in which version, if at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from remediator.cluster import RESOURCE_API
from remediator.errors import NotServedError, Refusal, UnavailableError

if TYPE_CHECKING:
    from remediator.cluster import Api

T = TypeVar("T")

RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")
"""API versions that may serve DeviceTaintRule, best first; all three write it alike (v1alpha3 from 1.35)."""

_RULES, _STATUS = "devicetaintrules", "devicetaintrules/status"


class _Resource(msgspec.Struct, frozen=True):
    name: str


class ResourceList(msgspec.Struct, frozen=True):
    """What one version of an API group serves."""

    resources: list[_Resource] = []

    def names(self) -> set[str]:
        """Of the resources, subresources included."""
        return {resource.name for resource in self.resources}


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    versions: list[_GroupVersion] = []


async def rule_version(api: Api) -> str:
    """Find the API version that serves DeviceTaintRule here; the best one if several do.

    Raises `NotServedError` when none does: when the API server has said what it serves, and they are not among it. A
    404 is no such word, as anybody in between may have said it.
    """
    group = await _discovery(api, RESOURCE_API, _Group)
    served = {version.version for version in group.versions}
    for version in RULE_VERSIONS:
        if version in served:
            listed = await _discovery(api, f"{RESOURCE_API}/{version}", ResourceList)
            # Before 1.35 rules had no status, and knew no effect None.
            if {_RULES, _STATUS if version == "v1alpha3" else _RULES} <= listed.names():
                return version
    raise NotServedError(
        "discovering DeviceTaintRule: the API server serves no version of it; expected Kubernetes 1.37, or 1.36.3 "
        "or newer 1.36 with the DRADeviceTaintRules gate on all three components and resource.k8s.io/v1beta2 enabled"
    )


async def _discovery(api: Api, path: str, decode_as: type[T]) -> T:
    try:
        found = await api.get(path, decode_as)
    except NotServedError as error:
        raise UnavailableError(Refusal.NOT_SERVED, str(error)) from error
    if found is None:
        raise UnavailableError(Refusal.NOT_SERVED, f"reading {path}: it is not there")
    return found
