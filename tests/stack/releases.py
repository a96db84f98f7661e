"""Which Kubernetes a control plane runs, and in which version it serves DeviceTaintRules.

Pure: names of programs and their flags. Starts nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Rules = Literal["v1", "v1beta2", "none"]
"""The version of ``resource.k8s.io`` in which DeviceTaintRules are served, or that they are not."""

DEFAULT_RULES: Final[Mapping[str, Rules]] = MappingProxyType({"1.37": "v1", "1.36": "none"})
"""What each version serves if nothing is asked of it."""

VERSIONED: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""The parts that differ between the two; etcd is always that of the newer one."""

_SUFFIXES = MappingProxyType({"1.37": "", "1.36": "-1.36"})
_GATE = "--feature-gates=DRADeviceTaintRules="
_CONFIG = "--runtime-config=resource.k8s.io/"
# (Kubernetes, rules) -> flags of the API server, flags of scheduler and controllers. 1.37 has the gate on and serves
# v1; 1.36 has it off. The gate does not decide what is served. With it, scheduler and controllers of 1.37 wait for
# rules in v1 before they do anything, so they go without it where rules are v1beta2 alone.
_FLAGS = MappingProxyType(
    {
        ("1.37", "v1"): ((), ()),
        ("1.37", "v1beta2"): (
            (f"{_CONFIG}v1beta2=true,resource.k8s.io/v1/devicetaintrules=false",),
            (f"{_GATE}false",),
        ),
        ("1.37", "none"): ((f"{_GATE}false", f"{_CONFIG}v1/devicetaintrules=false"), (f"{_GATE}false",)),
        ("1.36", "v1beta2"): ((f"{_GATE}true", f"{_CONFIG}v1beta2=true"), (f"{_GATE}true",)),
        ("1.36", "none"): ((), ()),
    }
)


@dataclass(frozen=True, slots=True)
class Release:
    """One of the control planes there are; ``ValueError`` for one that there is not, as 1.36 with rules in v1.

    On 1.37 with v1beta2, which nobody would run, rules can be read and written and have no effect.
    """

    kubernetes: str = "1.37"
    rules: Rules = "v1"

    def __post_init__(self) -> None:
        if (self.kubernetes, self.rules) not in _FLAGS:
            known = ", ".join(f"{version} with {rules}" for version, rules in _FLAGS)
            raise ValueError(
                f'choosing Kubernetes "{self.kubernetes}" with rules "{self.rules}": there is none; expected {known}'
            )

    def program(self, component: str) -> str:
        """Return the name under which ``tools`` knows a part of this version."""
        return component + (_SUFFIXES[self.kubernetes] if component in VERSIONED else "")

    @property
    def programs(self) -> tuple[str, ...]:
        """Every program that a control plane of this version needs."""
        return (*map(self.program, VERSIONED), "etcd")

    def flags(self, component: str) -> tuple[str, ...]:
        """Return what a part is told so that rules are served, or not, as they should."""
        apiserver, others = _FLAGS[self.kubernetes, self.rules]
        return apiserver if component == "kube-apiserver" else others
