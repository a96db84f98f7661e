"""Policy: the fault table under the operator's caps, and never above any."""

from __future__ import annotations

import pytest

from alerts.faults import FAULTS, Effect
from remediator.policy import Policy
from remediator.targets import NodeTarget, Target
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY

DEVICE = Target(DRIVER, NODE, "neuron-device-3")
WHOLE = NodeTarget(NODE, DEVICE)


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_cap_the_table_has_the_word(fault: str) -> None:
    assert Policy(taint_key=TAINT_KEY).effect_of(fault, DEVICE) is FAULTS[fault].effect


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("cap", "none", "no_schedule", "no_execute"),
    [
        (Effect.NONE, Effect.NONE, Effect.NONE, Effect.NONE),
        (Effect.NO_SCHEDULE, Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_SCHEDULE),
        (Effect.NO_EXECUTE, Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_EXECUTE),
    ],
)
def test_the_cap_weakens_and_never_strengthens(
    fault: str, cap: Effect, none: Effect, no_schedule: Effect, no_execute: Effect
) -> None:
    by_table = {Effect.NONE: none, Effect.NO_SCHEDULE: no_schedule, Effect.NO_EXECUTE: no_execute}

    assert Policy(taint_key=TAINT_KEY, max_effect=cap).effect_of(fault, DEVICE) is by_table[FAULTS[fault].effect]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("cap", "allowed", "no_schedule", "no_execute"),
    [
        (Effect.NO_EXECUTE, False, Effect.NO_SCHEDULE, Effect.NO_SCHEDULE),
        (Effect.NO_EXECUTE, True, Effect.NO_SCHEDULE, Effect.NO_EXECUTE),
        (Effect.NO_SCHEDULE, True, Effect.NO_SCHEDULE, Effect.NO_SCHEDULE),
        (Effect.NONE, True, Effect.NONE, Effect.NONE),
    ],
)
def test_a_node_is_not_emptied_unless_that_is_allowed(
    fault: str, cap: Effect, no_schedule: Effect, no_execute: Effect, *, allowed: bool
) -> None:
    """The DRA driver and Observer would go too."""
    by_table = {Effect.NONE: Effect.NONE, Effect.NO_SCHEDULE: no_schedule, Effect.NO_EXECUTE: no_execute}
    policy = Policy(taint_key=TAINT_KEY, max_effect=cap, node_no_execute=allowed)

    assert policy.effect_of(fault, WHOLE) is by_table[FAULTS[fault].effect]


def test_a_fault_that_the_table_does_not_have_has_no_effect_to_guess() -> None:
    with pytest.raises(KeyError):
        Policy(taint_key=TAINT_KEY).effect_of("tensor_core", DEVICE)
