"""What a taint can land on: one device of our driver, or a Node as a whole. Pure.

Where a record is kept follows from its target: a device is tainted by a rule, a Node by a taint of its own. Which of
the two it is, and which device, is found out elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """One thing that can be tainted: a device of a pool of our driver, or, without a device, the Node `pool`."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Target:
    """One device of one pool of one driver.

    All three are non-empty, always: the API server accepts a selector without them, and such a rule
    taints every device in the cluster. `placed` is false where neither a slice nor a claim confirmed the device.
    """

    driver: str
    pool: str
    device: str
    placed: bool = True

    def __post_init__(self) -> None:
        for name in ("driver", "pool", "device"):
            if not getattr(self, name):
                raise ValueError(f"building a taint target: `{name}` is empty; expected driver, pool and device")

    @property
    def place(self) -> Place:
        """The same without the driver: there is only ours."""
        return Place(self.pool, self.device)


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """A Node as a whole, where no rule can single the device out.

    `device` is what a rule would select if it could. `placed` is true where nothing but the Node can be tainted, false
    where the device may come into a slice yet; neither makes it another target.
    """

    node: str
    device: Target = field(compare=False)
    placed: bool = field(default=False, compare=False)

    @property
    def place(self) -> Place:
        """The Node, apart from all its devices."""
        return Place(self.node, "")


AnyTarget = Target | NodeTarget


def lies_in(target: AnyTarget, other: AnyTarget) -> bool:
    """Whether whoever is kept off `other` is kept off `target` too: it is the same, or a device of that Node."""
    if isinstance(other, NodeTarget) and isinstance(target, Target):
        return target.pool == other.node or lies_in(target, other.device)
    if isinstance(target, Target) and isinstance(other, Target):
        return (target.driver, target.place) == (other.driver, other.place)
    return target.place == other.place
