"""Policy: the fault table under the operator's cap, and never above either."""

from __future__ import annotations

import pytest

from alerts.faults import FAULTS, Effect
from remediator.policy import Policy
from tests.remediator.samples import TAINT_KEY


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_cap_the_table_has_the_word(fault: str) -> None:
    assert Policy(taint_key=TAINT_KEY).effect_of(fault) is FAULTS[fault].effect


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

    assert Policy(taint_key=TAINT_KEY, max_effect=cap).effect_of(fault) is by_table[FAULTS[fault].effect]


def test_a_fault_that_the_table_does_not_have_has_no_effect_to_guess() -> None:
    with pytest.raises(KeyError):
        Policy(taint_key=TAINT_KEY).effect_of("tensor_core")
