"""The webhook on the real API server: what is written, how often, and what nodes, slices and outages do to it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from remediator import listwatch
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.node_records import ANNOTATION
from remediator.records import Key
from remediator.rule_records import object_name
from remediator.targets import NodeTarget, Target
from tests.remediator.fakes import eventually
from tests.remediator.live import USER, Live, firing, now
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, alert_json
from tests.stack import shapes
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    import pytest

    from tests.remediator.conftest import Start
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin


async def test_a_firing_becomes_exactly_this_rule(live: Live) -> None:
    assert await live.post(firing()) == 200

    rule = await live.rule()
    assert rule is not None
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": NODE, "device": "neuron-device-3"}
    taint = rule["spec"]["taint"]
    assert (taint["key"], taint["value"], taint["effect"]) == (TAINT_KEY, "hbm-uncorrectable-error", "NoExecute")
    assert "timeAdded" in taint
    owner = rule["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", NODE)


async def test_two_hundred_posts_are_one_write(live: Live) -> None:
    """Counted where nothing escapes: in the API server's audit log (alertmanager#2286)."""
    before = len(await live.writes(0))
    alert = firing()
    eight = asyncio.Semaphore(8)

    async def post() -> int:
        async with eight:
            return await live.post(alert)

    assert set(await asyncio.gather(*(post() for _ in range(200)))) == {200}
    assert (await live.writes(before + 1))[before:] == ["create"]


async def test_a_write_is_seen_before_its_event(live: Live) -> None:
    """The very next alert decides on it."""
    alert = firing(fault="link_efa")
    assert await live.post(alert) == 200
    held = live.record("link_efa")
    assert held is not None
    assert await live.post(alert, firing(fault="link_efa", remediation="clear", episode=held.episode)) == 200

    assert live.record("link_efa") is None
    assert await live.rule("link_efa") is None


async def test_a_restart_finds_everything_and_writes_nothing(
    start: Start, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records come in pages; foreign rules are not among them."""
    alerts = [firing(device=str(number)) for number in range(5)]
    assert await live.post(*alerts) == 200
    foreign = shapes.taint_rule("somebodys", pool=NODE, device="neuron-device-9", value="x", effect="NoSchedule")
    await asyncio.to_thread(live.admin.create, foreign)
    before = len(await live.writes(5))
    monkeypatch.setattr(listwatch, "_PAGE", "2")
    restarted = await start()

    def identities(one: Live) -> set[tuple[Key, str]]:
        return {(record.key, record.stored.uid) for record in one.backend.records() if record.stored}

    assert len(identities(restarted)) == 5
    assert identities(restarted) == identities(live)
    assert await restarted.post(*alerts) == 200
    assert len(await live.writes(before)) == before


async def test_two_remediators_make_one_rule(start: Start, live: Live) -> None:
    """The same alert from several peers ran the command several times (prometheus-am-executor#33)."""
    other = await start()
    alert = firing()
    statuses = await asyncio.gather(*(one.post(alert) for one in (live, other) * 5))

    assert set(statuses) == {200}
    assert len(live.admin.rules()) == 1


async def test_a_recycled_node_starts_clean_and_late_copies_say_nothing(live: Live) -> None:
    """The garbage collector takes the latched record with its Node."""
    late = alert_json(started=now() - timedelta(seconds=1))
    assert await live.post(firing()) == 200
    await asyncio.to_thread(live.admin.delete_node, NODE)
    await eventually(lambda: live.record() is None, what="the garbage collector's work in the cache")
    await asyncio.to_thread(live.admin.node, NODE)

    assert await live.post(late) == 200
    assert await live.rule() is None
    assert await live.post(firing()) == 200
    assert await live.rule() is not None


async def test_a_node_that_is_not_there_gets_no_rule(live: Live) -> None:
    assert await live.post(firing(node="ip-10-9-9-9.ec2.internal")) == 200

    assert live.admin.rules() == []
    assert live.metrics.registry.get_sample_value("neuron_remediator_alerts_total", {"outcome": "ignored_unknown_node"})


async def test_a_node_made_a_moment_ago_is_known(live: Live) -> None:
    """Its watch event may be under way. No slice lists its devices yet: it bears the record itself until one does."""
    await asyncio.to_thread(live.admin.create, shapes.node("brand-new", "trn2.48xlarge", {}))

    assert await live.post(firing(node="brand-new")) == 200
    assert live.admin.rules() == []
    bearer = await asyncio.to_thread(live.admin.get, "Node", "brand-new")
    ours = [taint for taint in bearer["spec"]["taints"] if taint["key"] == TAINT_KEY]
    assert [(taint["value"], taint["effect"]) for taint in ours] == [("hbm-uncorrectable-error", "NoSchedule")]
    held = live.backend.record(Key("brand-new", 3, "hbm"))
    assert held is not None
    assert held.target == NodeTarget("brand-new", Target(DRIVER, "brand-new", "neuron-device-3"))

    await asyncio.to_thread(live.admin.publish_slice, "brand-new")

    async def moved() -> bool:
        assert await live.post(firing(node="brand-new")) == 200
        return bool(await asyncio.to_thread(live.admin.rules))

    await wait_for(moved, timeout=10, what="a firing that finds the slice in the cache")
    (rule,) = live.admin.rules()
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": "brand-new", "device": "neuron-device-3"}
    assert rule["spec"]["taint"]["effect"] == "NoExecute"
    assert rule["metadata"]["annotations"]["neuron-remediator/placed"] == "true"
    bearer = await asyncio.to_thread(live.admin.get, "Node", "brand-new")
    assert TAINT_KEY not in {taint["key"] for taint in bearer["spec"].get("taints", [])}
    assert ANNOTATION not in bearer["metadata"].get("annotations", {})


async def test_a_node_whose_event_has_not_come_is_read_live(control_plane: ControlPlane, admin: Admin) -> None:
    """Only the API server's word that a Node is not there counts, never the silence of a watch."""
    install(control_plane)
    made = admin.create(shapes.node("brand-new", "trn2.48xlarge", {}))
    async with connect(control_plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
        known, unknown = await caches.node("brand-new"), await caches.node("not-there")

    assert known is not None
    assert known.metadata.uid == made["metadata"]["uid"]
    assert unknown is None


async def test_a_vanished_slice_moves_nothing(live: Live) -> None:
    """The kubelet wipes the slices of its node when it starts (dra-driver-nvidia-gpu#330)."""
    await live.post(firing())
    found = await asyncio.to_thread(live.admin.slice_of, NODE)
    assert found is not None
    await asyncio.to_thread(live.admin.delete, "ResourceSlice", found["metadata"]["name"])
    before = await live.rule()

    for _ in range(3):
        assert await live.post(firing()) == 200
    after = await live.rule()
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_an_outage_of_the_api_server_loses_nothing(live: Live) -> None:
    """Alertmanager is told to ask again until it is over, and the watches come back by themselves."""
    alert = firing()
    await asyncio.to_thread(live.plane.stop_apiserver)
    try:
        assert await live.post(alert) == 503
        assert await live.post(alert) == 503
    finally:
        await asyncio.to_thread(live.plane.start_apiserver)

    async def taken() -> bool:
        return await live.post(alert) == 200

    await wait_for(taken, timeout=20, what="the notification to be taken")
    assert await live.rule() is not None
    await asyncio.to_thread(live.admin.delete, "DeviceTaintRule", object_name(Key(NODE, 3, "hbm")))
    await eventually(lambda: live.record() is None, what="a change after the outage in the cache")
