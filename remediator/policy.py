"""Which effect each fault has here: the fault table under the operator's cap. Pure.

It knows nothing of nodes, records or budgets; what an effect is weakened by at one moment is `remediator.level`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from alerts.faults import FAULTS, Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The key of every taint, and the strongest effect any of them may have (None: a preview that moves nothing)."""

    taint_key: str
    max_effect: Effect = Effect.NO_EXECUTE

    def effect_of(self, fault: str) -> Effect:
        """The effect that a fault of the table is to have."""
        return min(FAULTS[fault].effect, self.max_effect, key=lambda effect: effect.rank)
