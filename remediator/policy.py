"""Which effect each fault has here: the fault table under the operator's caps. Pure.

It knows nothing of records or budgets; what an effect is weakened by at one moment is `remediator.level`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alerts.faults import FAULTS, Effect
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from remediator.targets import AnyTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The key of every taint, and the strongest effect any of them may have (None: a preview that moves nothing).

    `node_no_execute` says that a taint of a Node may evict: it takes every pod off that does not tolerate it, Neuron
    Observer and the DRA driver among them, and not only those that use the device.
    """

    taint_key: str
    max_effect: Effect = Effect.NO_EXECUTE
    node_no_execute: bool = False

    def effect_of(self, fault: str, target: AnyTarget) -> Effect:
        """The effect that a fault of the table is to have on that target."""
        capped = isinstance(target, NodeTarget) and not self.node_no_execute
        caps = (self.max_effect, Effect.NO_SCHEDULE if capped else Effect.NO_EXECUTE)
        return min(FAULTS[fault].effect, *caps, key=lambda effect: effect.rank)
