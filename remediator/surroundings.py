"""What must be known of the cluster to decide on a record, and the view that a decision gets of it.

It reads from memory what others keep current; it decides nothing and writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from alerts.faults import Effect
from remediator.level import View
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from remediator.budget import Budget, Limit
    from remediator.inventory import DeviceTaint, Node
    from remediator.policy import Policy
    from remediator.records import Key
    from remediator.targets import AnyTarget, Place


class Surroundings(Protocol):
    """Nodes and devices, as the cluster shows them."""

    def not_ready(self) -> str | None:
        """Why decisions cannot be made yet, or None when they can."""

    async def node(self, name: str, *, live: bool = False) -> Node | None:
        """The Node, from memory or by a live read; None only when the cluster says it is not there."""

    def known_node(self, name: str) -> Node | None:
        """The Node, if memory has it."""

    def nodes(self) -> Iterable[str]:
        """Names of the Nodes that are there, as far as devices of theirs are of interest."""

    def locate(self, node: str, device: int) -> AnyTarget:
        """What device `device` of that node is to be tainted by."""

    def node_taints(self, node: str) -> Collection[DeviceTaint]:
        """The taints on the Node itself that are not ours."""

    def taints(self) -> Mapping[Place, Collection[DeviceTaint]]:
        """The driver's own taints, by the place they are on."""

    def targets(self) -> int:
        """How many targets there are (see `remediator.budget.Fleet`)."""

    def unavailable(self) -> Collection[Place]:
        """The places that the driver's own taints keep work off."""


class Views:
    """Makes the view of one record's surroundings. `clock` is the wall clock (UTC)."""

    def __init__(
        self, surroundings: Surroundings, *, policy: Policy, budget: Budget, clock: Callable[[], datetime]
    ) -> None:
        self._surroundings = surroundings
        self._policy = policy
        self._budget = budget
        self._clock = clock

    def of(self, key: Key, node: Node | None) -> View:
        """What surrounds the record of that key, whose Node is `node`."""
        now = self._clock()

        def refusal(which: Key, target: AnyTarget, effect: Effect) -> Limit | None:
            return self._budget.refusal(which, target.place, effect, now)

        return View(
            target=self._surroundings.locate(key.node, key.device),
            opted_out=node is not None and node.opted_out,
            policy=self._policy,
            driver_effect=self._driver_effect,
            refusal=refusal,
            now=now,
        )

    def _driver_effect(self, target: AnyTarget) -> Effect:
        """The strongest of others' taints there that a toleration for our key meets too.

        Where the Node would be tainted, a taint of the driver on the very device isolates that better.
        """
        device = target.device if isinstance(target, NodeTarget) else target
        taints = [*self._surroundings.taints().get(device.place, ())]
        if isinstance(target, NodeTarget):
            taints += self._surroundings.node_taints(target.node)
        effects = [taint.effect for taint in taints if taint.key == self._policy.taint_key]
        return max(effects, default=Effect.NONE, key=lambda effect: effect.rank)
