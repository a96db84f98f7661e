"""Rules that somebody else has changed, deleted or damaged: what the next firing makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from remediator.records import Key, State
from remediator.rule_records import object_name
from tests.remediator.fakes import eventually
from tests.remediator.live import Live, firing
from tests.remediator.samples import NODE, Json
from tests.stack import shapes

OLD = "2026-01-02T03:04:05Z"


async def test_a_rule_deleted_by_hand_is_made_again_by_the_next_firing(live: Live) -> None:
    alert = firing()
    await live.post(alert)
    before = live.record()
    await asyncio.to_thread(live.admin.delete, "DeviceTaintRule", object_name(Key(NODE, 3, "hbm")))
    await eventually(lambda: live.record() is None, what="the deletion in the cache")

    assert await live.post(alert) == 200
    after = live.record()
    assert before is not None
    assert after is not None
    assert before.stored is not None
    assert after.stored is not None
    assert after.stored.uid != before.stored.uid


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not-yet-seen"])
async def test_an_effect_weakened_by_hand_is_raised_by_the_next_firing(live: Live, *, seen: bool) -> None:
    alert = firing()
    await live.post(alert)
    weak = {"spec": {"taint": {"effect": "None"}}}
    if seen:
        await live.edit(weak)
    else:
        await asyncio.to_thread(live.admin.patch, "DeviceTaintRule", object_name(Key(NODE, 3, "hbm")), weak)
        alert = firing()
    assert await live.post(alert) == 200

    rule = await live.rule()
    assert rule is not None
    assert rule["spec"]["taint"]["effect"] == "NoExecute"


async def test_a_newer_firing_does_not_restart_anybodys_clock(live: Live) -> None:
    """Each toleration counts from the time of the taint (kubernetes PR 137167)."""
    await live.post(firing())
    await live.edit({"spec": {"taint": {"timeAdded": OLD}}})
    before = live.record()
    assert await live.post(firing()) == 200

    after, rule = live.record(), await live.rule()
    assert before is not None
    assert after is not None
    assert after.episode != before.episode
    assert rule is not None
    assert rule["spec"]["taint"]["timeAdded"] == OLD
    assert rule["metadata"]["annotations"]["neuron-remediator/episode"] == after.episode


async def test_a_stronger_effect_counts_from_now(live: Live) -> None:
    """Who tolerates the stronger one for a while has not been able to before."""
    alert = firing()
    await live.post(alert)
    await live.edit({"spec": {"taint": {"effect": "NoSchedule"}}})
    await live.edit({"spec": {"taint": {"timeAdded": OLD}}})
    assert await live.post(alert) == 200

    rule = await live.rule()
    assert rule is not None
    assert rule["spec"]["taint"]["effect"] == "NoExecute"
    assert rule["spec"]["taint"]["timeAdded"] > OLD


async def test_a_foreign_rule_under_our_name_is_never_touched(live: Live) -> None:
    name = object_name(Key(NODE, 3, "hbm"))
    foreign = shapes.taint_rule(name, pool=NODE, device="neuron-device-9", value="theirs", effect="NoSchedule")
    made = await asyncio.to_thread(live.admin.create, foreign)
    assert await live.post(firing()) == 503

    there = await live.rule()
    assert there is not None
    assert (there["metadata"]["uid"], there["spec"]) == (made["metadata"]["uid"], made["spec"])
    await asyncio.to_thread(live.admin.delete, "DeviceTaintRule", name)
    assert await live.post(firing()) == 200
    assert live.record() is not None


ANNOTATION = "neuron-remediator/"
DAMAGE = [
    pytest.param({"metadata": {"annotations": None}}, id="annotations"),
    pytest.param({"metadata": {"labels": {f"{ANNOTATION}device": "4"}}}, id="other-device"),
    pytest.param({"metadata": {"labels": {f"{ANNOTATION}fault": "h-b-m"}}}, id="no-fault"),
    pytest.param({"spec": {"deviceSelector": None}}, id="selects-every-device-in-the-cluster"),
    pytest.param({"spec": {"deviceSelector": {"device": None}}}, id="selects-the-whole-pool"),
]


@pytest.mark.parametrize("change", DAMAGE)
async def test_our_rule_that_was_damaged_asks_for_a_firing_and_is_mended_by_it(live: Live, change: Json) -> None:
    """Nothing but a firing mends it, and it is the same rule: nobody's toleration starts again."""
    alert = firing()
    await live.post(alert)
    before = await live.rule()
    await live.edit(change)
    damaged = live.record()
    assert damaged is not None
    assert damaged.state is State.WITHHELD
    assert await live.post(firing(remediation="clear", episode=damaged.episode)) == 200
    still = live.record()
    assert still is not None
    # The eviction controller may have written its status meanwhile, which moves the version and nothing else.
    assert replace(still, stored=None) == replace(damaged, stored=None)
    assert await live.post(alert) == 200

    after = await live.rule()
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


async def test_a_fault_label_spelled_like_the_name_does_not_lock_the_record(live: Live) -> None:
    """Names write `_` as `-`; read with the `-`, the rule would stand for a fault that no alert names."""
    alert = firing(fault="link_efa")
    await live.post(alert)
    await live.edit({"metadata": {"labels": {f"{ANNOTATION}fault": "link-efa"}}}, "link_efa")

    assert await live.post(alert) == 200
    rule = await live.rule("link_efa")
    assert rule is not None
    assert rule["metadata"]["labels"][f"{ANNOTATION}fault"] == "link_efa"
