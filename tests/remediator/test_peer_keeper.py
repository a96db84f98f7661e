"""Peer rules on the real API server, with the permissions that ship: made, mended and removed as asked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from remediator import peer_keeper
from remediator.backends.device_taint_rule import RecordCache
from remediator.cluster import RESOURCE_API, connect
from remediator.foreign_rules import ForeignRules, Sorting
from remediator.inventory import NEURON_NODE
from remediator.listwatch import ListWatch, as_it_came
from remediator.peer_keeper import PeerKeeper
from remediator.peer_object import PeerRule
from remediator.peer_rules import PeerRules
from remediator.records import MANAGED_BY
from remediator.rules import Rule
from remediator.targets import Target
from tests.remediator.fakes import Leads, eventually
from tests.remediator.live import USER
from tests.remediator.samples import DRIVER, Json
from tests.stack import shapes
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

FINALIZER = "example.com/hold"
NAME = "neuron-peer.u1.u2"


@dataclass
class Keeping:
    """A keeper with what it needs, and the administrator's view of what it does."""

    admin: Admin
    rules: PeerRules
    uid: str
    wanted: dict[str, PeerRule] = field(default_factory=dict)
    version: str = "v1"
    waiting_for: str | None = None
    leads: Leads = field(default_factory=Leads)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    looks: int = 0
    keeper: PeerKeeper = field(init=False)

    def want(self, *peers: str) -> None:
        """Ask for flags on these peers of `u1`, and on no others."""
        rules = [
            PeerRule(source="u1", source_uid=self.uid, peer=peer, target=Target(DRIVER, peer, NEURON_NODE))
            for peer in peers
        ]
        self.wanted = {rule.name: rule for rule in rules}
        self.keeper.poke()

    def asked(self) -> dict[str, PeerRule]:
        """What the keeper is told to keep."""
        self.looks += 1
        return self.wanted

    def set(self, **values: Any) -> None:
        """Change what is around the keeper."""
        for name, value in values.items():
            setattr(self, name, value)

    def in_cluster(self) -> dict[str, Json]:
        """The rules there are."""
        return {rule["metadata"]["name"]: rule for rule in self.admin.rules()}

    def not_leading(self) -> str | None:
        """Why nothing may be changed."""
        return self.leads.not_leading()

    def remaining(self) -> float:
        """How long a write may take."""
        return self.leads.remaining()

    async def becomes(self, *peers: str) -> dict[str, Json]:
        """Wait until these peers are flagged as they should be, and no others; returns the rules."""
        expected = {f"neuron-peer.u1.{peer}": self._expected(peer) for peer in peers}

        async def met() -> bool:
            found = await asyncio.to_thread(self.in_cluster)
            return {name: self._essence(rule) for name, rule in found.items()} == expected

        await wait_for(met, timeout=10, what=f"flags on {peers}")
        return await asyncio.to_thread(self.in_cluster)

    def _essence(self, rule: Json) -> Json:
        taint, metadata = rule["spec"]["taint"], rule["metadata"]
        return {
            "selector": rule["spec"]["deviceSelector"],
            "taint": (taint["key"], taint.get("value", ""), taint["effect"]),
            "owners": [(owner["kind"], owner["name"], owner["uid"]) for owner in metadata.get("ownerReferences", ())],
            "annotations": metadata.get("annotations", {}),
            "mark": metadata["labels"].get(MANAGED_BY),
        }

    def _expected(self, peer: str) -> Json:
        return {
            "selector": {"driver": DRIVER, "pool": peer, "device": "neuron-node"},
            "taint": ("neuron.aws.com/peer-tainted", "u1", "None"),
            "owners": [("Node", "u1", self.uid)],
            "annotations": {
                "neuron-remediator/peer-of": "u1",
                "neuron-remediator/node": peer,
                "neuron-remediator/node-uid": self.uid,
            },
            "mark": "neuron-remediator",
        }

    async def edit(self, change: Json, name: str = NAME) -> None:
        """Change a rule as a hand with kubectl would."""
        await asyncio.to_thread(self.admin.patch, "DeviceTaintRule", name, change)

    async def writes(self, action: str, result: str = "ok", *, least: int = 1) -> None:
        """Wait for that many writes of a kind."""
        await eventually(lambda: self.counts[action, result] >= least, what=f"{action} with result {result}")


@pytest.fixture
async def keeping(control_plane: ControlPlane, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeping]:
    """Give a running keeper, which looks often, with a node `u1`."""
    monkeypatch.setattr(peer_keeper, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(peer_keeper, "_PAUSE_SECONDS", 0.05)
    install(control_plane)
    node = admin.node("u1", ultraserver="block")
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(control_plane.kubeconfig(USER)))
        rules = PeerRules(lambda: one.keeper.poke())  # noqa: PLW0108 - there is none yet
        one = Keeping(admin, rules, node["metadata"]["uid"])
        sorting = Sorting(RecordCache(), ForeignRules(DRIVER), rules)
        path = f"{RESOURCE_API}/v1/devicetaintrules"
        watch: ListWatch[Any, Any] = ListWatch(api, path, Rule, as_it_came, sorting, {}, time.monotonic)

        def count(action: str, result: str) -> None:
            one.counts[action, result] += 1

        def not_ready() -> str | None:
            return one.waiting_for if watch.current else "waiting for a list of rules"

        one.keeper = PeerKeeper(
            api,
            rules,
            wanted=one.asked,
            version=lambda: one.version,
            not_ready=not_ready,
            leadership=one,
            count=count,
            elapsed=time.monotonic,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(watch.run()), group.create_task(one.keeper.run())]
            yield one
            assert not any(task.done() for task in tasks), "it ended by itself"
            for task in tasks:
                task.cancel()


async def test_flags_come_and_go_as_asked(keeping: Keeping) -> None:
    keeping.want("u2", "u3", "u4")
    await keeping.becomes("u2", "u3", "u4")
    keeping.want("u3")
    await keeping.becomes("u3")
    keeping.want()
    await keeping.becomes()
    await keeping.writes("delete", least=3)
    assert keeping.counts["create", "ok"] == 3
    assert {action for action, _ in keeping.counts} == {"create", "delete"}


async def test_nothing_is_written_where_nothing_is_to_be_changed(keeping: Keeping) -> None:
    keeping.want("u2")
    (before,) = (await keeping.becomes("u2")).values()
    seen = keeping.looks
    await eventually(lambda: keeping.looks >= seen + 3, what="three more looks")
    (after,) = keeping.in_cluster().values()
    assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (
        before["metadata"]["uid"],
        before["metadata"]["generation"],
    )
    assert keeping.counts == {("create", "ok"): 1}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"taint": {"effect": "NoExecute"}}}, id="effect"),
        pytest.param({"spec": {"taint": {"key": "example.com/mine", "value": "x"}}}, id="key-and-value"),
        pytest.param({"spec": {"deviceSelector": {"pool": None, "device": None}}}, id="selector"),
        pytest.param({"spec": {"deviceSelector": None}}, id="no-selector"),
        pytest.param({"metadata": {"ownerReferences": None}}, id="owner"),
        pytest.param({"metadata": {"annotations": None}}, id="annotations"),
    ],
)
async def test_what_a_hand_has_damaged_is_mended_in_place(keeping: Keeping, change: Json) -> None:
    keeping.want("u2")
    before = (await keeping.becomes("u2"))[NAME]["metadata"]["uid"]
    await keeping.edit(change)
    await keeping.writes("update")
    assert (await keeping.becomes("u2"))[NAME]["metadata"]["uid"] == before


async def test_a_rule_that_belongs_to_nobody_any_more_is_made_anew(keeping: Keeping) -> None:
    """As the rule of a machine of that name before this one."""
    keeping.want("u2")
    before = (await keeping.becomes("u2"))[NAME]["metadata"]["uid"]
    await keeping.edit({"metadata": {"ownerReferences": None, "annotations": {"neuron-remediator/node-uid": "other"}}})
    await keeping.writes("delete")
    assert (await keeping.becomes("u2"))[NAME]["metadata"]["uid"] != before


async def test_what_was_left_behind_is_removed_and_what_is_somebody_elses_is_not(keeping: Keeping) -> None:
    """By mark and name, whatever else it says."""
    theirs = shapes.taint_rule("neuron-peer.mine", pool="u2", device="neuron-node", value="x", effect="NoSchedule")
    left = shapes.taint_rule("neuron-peer.u8.u9", pool="u9", device="neuron-node", value="x", effect="NoExecute")
    left["metadata"]["labels"] = {MANAGED_BY: "neuron-remediator"}
    marked = left | {"metadata": left["metadata"] | {"name": "scratch"}}
    for rule in (theirs, marked, left):
        await asyncio.to_thread(keeping.admin.create, rule)
    await keeping.writes("delete")
    assert keeping.in_cluster().keys() == {"neuron-peer.mine", "scratch"}
    # The eviction controller writes the status of a new rule, and may be in the way once.
    assert {action for action, _ in keeping.counts} == {"delete"}


async def test_what_disturbs_is_ended_first(
    keeping: Keeping, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_keeper, "_WORKERS", 1)
    keeping.set(waiting_for="the preparations")
    effects = {"neuron-peer.u1.u5": "None", "neuron-peer.u1.u6": "NoExecute", "neuron-peer.u1.u7": "None"}
    for name, effect in effects.items():
        left = shapes.taint_rule(name, pool="u5", device="neuron-node", value="x", effect=effect)
        left["metadata"]["labels"] = {MANAGED_BY: "neuron-remediator"}
        await asyncio.to_thread(keeping.admin.create, left)
    await eventually(lambda: len(keeping.rules.all()) == len(effects), what="the rules in the cache")
    keeping.set(waiting_for=None)
    keeping.want()
    await keeping.becomes()

    def deleted() -> list[str]:
        done = control_plane.audit(user=USER, verbs=["delete"], resource="devicetaintrules")
        names = [event["objectRef"]["name"] for event in done]
        return [name for name in names if name in effects]

    await eventually(lambda: set(deleted()) == effects.keys(), what="the lines of the audit log")
    assert deleted()[0] == "neuron-peer.u1.u6"


async def test_a_flag_that_a_hand_takes_our_mark_from_is_ours_no_more(keeping: Keeping) -> None:
    keeping.want("u2")
    await keeping.becomes("u2")
    await keeping.edit({"metadata": {"labels": {MANAGED_BY: None}}, "spec": {"taint": {"value": "mine"}}})
    await keeping.writes("create", "conflict")
    keeping.want()
    await eventually(lambda: not keeping.rules.all(), what="the cache without it")
    assert keeping.in_cluster()[NAME]["spec"]["taint"]["value"] == "mine"


async def test_a_name_that_somebody_else_has_taken_is_said_seldom(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = shapes.taint_rule(NAME, pool="u2", device="neuron-node", value="x", effect="NoSchedule")
    made = await asyncio.to_thread(keeping.admin.create, theirs)
    keeping.want("u2", "u3")
    await keeping.writes("create", "conflict", least=3)
    rules = await asyncio.to_thread(keeping.in_cluster)
    assert rules.keys() == {NAME, "neuron-peer.u1.u3"}
    assert rules[NAME]["spec"] == made["spec"]
    assert [vars(record)["rule"] for record in caplog.records if "without our mark" in record.message] == [NAME]


async def test_what_a_hand_removes_comes_back(keeping: Keeping) -> None:
    keeping.want("u2")
    await keeping.becomes("u2")
    await asyncio.to_thread(keeping.admin.delete, "DeviceTaintRule", NAME)
    await keeping.writes("create", least=2)
    await keeping.becomes("u2")


async def test_a_rule_whose_deletion_is_held_up_comes_back_when_it_is_gone(keeping: Keeping) -> None:
    keeping.want("u2")
    await keeping.becomes("u2")
    await keeping.edit({"metadata": {"finalizers": [FINALIZER]}})
    await asyncio.to_thread(keeping.admin.delete, "DeviceTaintRule", NAME)
    await keeping.edit({"spec": {"taint": {"effect": "NoSchedule"}}})
    await keeping.writes("update")
    assert keeping.counts["delete", "ok"] == 0
    await keeping.edit({"metadata": {"finalizers": None}})
    await keeping.writes("create", least=2)
    await keeping.becomes("u2")


async def test_the_rules_go_with_the_faulty_node(keeping: Keeping) -> None:
    """By the garbage collector alone, whatever becomes of us."""
    keeping.want("u2", "u3")
    await keeping.becomes("u2", "u3")
    keeping.leads.reason = "stopped"
    await asyncio.to_thread(keeping.admin.delete_node, "u1")
    await keeping.becomes()
    assert not {action for action, _ in keeping.counts} - {"create"}


@pytest.mark.parametrize(
    ("changed", "back"),
    [
        pytest.param({"leads": Leads(reason="another replica leads")}, {"leads": Leads()}, id="another-leads"),
        pytest.param({"leads": Leads(seconds=0)}, {"leads": Leads()}, id="the-lease-is-about-to-end"),
        pytest.param({"waiting_for": "a list of nodes"}, {"waiting_for": None}, id="too-little-is-known"),
        pytest.param({"version": ""}, {"version": "v1"}, id="no-rules-are-served"),
    ],
)
async def test_nothing_is_written_while_that_would_be_wrong(keeping: Keeping, changed: Json, back: Json) -> None:
    keeping.want("u2")
    await keeping.becomes("u2")
    keeping.set(**changed)
    keeping.want("u3")
    await keeping.keeper.look()
    assert keeping.counts == {("create", "ok"): 1}

    keeping.set(**back)
    await keeping.becomes("u3")


@pytest.mark.parametrize(
    ("changed", "back"),
    [
        pytest.param({"version": "v9"}, {"version": "v1"}, id="refused"),
        pytest.param({"leads": Leads(seconds=1e-6)}, {"leads": Leads()}, id="no-answer-while-the-lease-is-certain"),
    ],
)
async def test_what_fails_is_said_seldom_and_tried_again(
    keeping: Keeping, caplog: pytest.LogCaptureFixture, changed: Json, back: Json
) -> None:
    keeping.set(**changed)
    keeping.want("u2")
    await keeping.writes("create", "failed", least=2)
    keeping.set(**back)
    await keeping.becomes("u2")
    assert [record.levelname for record in caplog.records if "failed, will retry" in record.message] == ["WARNING"]


async def test_a_bug_in_what_is_asked_costs_one_look(keeping: Keeping, caplog: pytest.LogCaptureFixture) -> None:
    keeping.want("u2")
    keeping.wanted["broken"] = None  # type: ignore[assignment]
    await eventually(lambda: "unexpected error" in caplog.text, what="the error")
    del keeping.wanted["broken"]
    await keeping.becomes("u2")
