"""The view a decision gets: which taints of others count where, and which place the budget is asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import Effect
from remediator.budget import Budget, Limit, Limits
from remediator.inventory import DeviceTaint
from remediator.level import level
from remediator.policy import Policy
from remediator.records import Key, State
from remediator.surroundings import Views
from remediator.targets import Place, Target
from tests.remediator.fakes import Clock, FakeCluster
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, device, node, on_node, record, resource_slice

if TYPE_CHECKING:
    from remediator.level import View
    from remediator.targets import AnyTarget

NONE, NO_SCHEDULE, NO_EXECUTE = Effect
DEVICE, WHOLE = Target(DRIVER, NODE, "neuron-device-3"), on_node()
KEY = Key(NODE, 3, "hbm")


def taint(effect: Effect, key: str = TAINT_KEY) -> DeviceTaint:
    return DeviceTaint(key, "x", effect)


def view(cluster: FakeCluster, limits: Limits | None = None) -> View:
    """What surrounds the sample record in that cluster."""
    budget = Budget(limits or Limits(max_unavailable=None, max_new=None), cluster)
    return Views(cluster, policy=Policy(taint_key=TAINT_KEY), budget=budget, clock=Clock()).of(KEY, node())


def cluster(*, third: tuple[DeviceTaint, ...] = (), seventh: tuple[DeviceTaint, ...] = (), **more: Any) -> FakeCluster:
    """Two devices of a node, with the driver's taints on them."""
    made = FakeCluster(**more)
    made.inventory.put(
        resource_slice(device("neuron-device-3", 3, *third), device("neuron-device-7", 7, *seventh)),
    )
    return made


@pytest.mark.parametrize("target", [DEVICE, WHOLE])
@pytest.mark.parametrize("effect", Effect)
def test_the_driver_s_taint_on_the_very_device_counts_wherever_that_is_tainted(
    target: AnyTarget, effect: Effect
) -> None:
    """Where the Node would be tainted for it, the driver isolates it better."""
    assert view(cluster(third=(taint(effect),))).driver_effect(target) is effect


@pytest.mark.parametrize("target", [DEVICE, WHOLE])
def test_its_taint_on_another_device_does_not(target: AnyTarget) -> None:
    assert view(cluster(seventh=(taint(NO_EXECUTE),))).driver_effect(target) is NONE


@pytest.mark.parametrize("target", [DEVICE, WHOLE])
def test_nor_does_one_that_a_toleration_for_our_key_does_not_meet(target: AnyTarget) -> None:
    others = (taint(NO_EXECUTE, "example.com/other"),)

    assert view(cluster(third=others, tainted={NODE: list(others)})).driver_effect(target) is NONE


def test_a_taint_of_somebody_else_on_the_node_counts_for_the_node_alone() -> None:
    """Whoever tolerates it uses the device nevertheless; a rule keeps him off."""
    seen = view(cluster(tainted={NODE: [taint(NO_SCHEDULE)], "other": [taint(NO_EXECUTE)]}))

    assert (seen.driver_effect(WHOLE), seen.driver_effect(DEVICE)) == (NO_SCHEDULE, NONE)


@pytest.mark.parametrize(("on_device", "on_the_node"), [(NO_EXECUTE, NO_SCHEDULE), (NO_SCHEDULE, NO_EXECUTE)])
def test_the_strongest_counts(on_device: Effect, on_the_node: Effect) -> None:
    seen = view(cluster(third=(taint(on_device), taint(NONE)), tainted={NODE: [taint(on_the_node), taint(NONE)]}))

    assert seen.driver_effect(WHOLE) is NO_EXECUTE
    assert seen.driver_effect(DEVICE) is on_device


def test_a_node_whose_device_the_driver_has_tainted_is_left_alone() -> None:
    """All its other devices stay of use."""
    here = cluster(third=(taint(NO_SCHEDULE),), by_node=True)
    levelled = level(record(target=WHOLE), view(here), firing=True)

    assert (levelled.state, levelled.taint.effect, levelled.target) == (State.COVERED, NONE, WHOLE)
    assert level(record(target=WHOLE), view(cluster(by_node=True)), firing=True).state is State.ACTIVE


def test_the_budget_is_asked_about_the_node_as_one_place() -> None:
    """Sixteen faults of one node disrupt one target."""
    seen = view(cluster(by_node=True), Limits(max_unavailable=0, max_new=None))
    assert seen.target == WHOLE
    assert seen.refusal(KEY, WHOLE, NO_SCHEDULE) is Limit.UNAVAILABLE

    budget = Budget(Limits(max_unavailable=1, max_new=None), FakeCluster())
    other = record("link_efa", target=on_node(7))
    budget.changed(None, other)
    assert budget.refusal(KEY, WHOLE.place, NO_SCHEDULE, Clock()()) is None
    assert budget.refusal(KEY, Place("other", ""), NO_SCHEDULE, Clock()()) is Limit.UNAVAILABLE


def test_the_node_s_own_word_is_in_it() -> None:
    views = Views(
        FakeCluster(), policy=Policy(taint_key=TAINT_KEY), budget=Budget(Limits(), FakeCluster()), clock=Clock()
    )

    assert views.of(KEY, node(opted_out=True)).opted_out
    assert not views.of(KEY, None).opted_out
