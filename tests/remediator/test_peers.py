"""Which peers are flagged, by what is known of nodes, slices and UltraServers, and what is changed to get there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import Effect
from remediator.inventory import NEURON_NODE, Build, Device, Inventory, Node
from remediator.names import SUBDOMAIN_LIMIT, is_subdomain
from remediator.peer_object import (
    PEER,
    PEER_KEY,
    PEER_OF,
    SOURCE_UID,
    PeerRule,
    from_object,
    is_peer_rule,
    rule_name,
    says,
    to_object,
)
from remediator.peers import Changes, changes, wanted
from remediator.records import MANAGED_BY, MANAGER, Key, Record
from remediator.rule_records import key_of
from remediator.rules import Rule
from remediator.targets import Target
from remediator.ultraservers import members_of
from tests.remediator.samples import DRIVER, Json, node, record, resource_slice
from tests.remediator.strategies import node_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BLOCK = "cr-0123456789abcdef0"


def peer_rule(source: str = "u1", peer: str = "u2", uid: str = "") -> PeerRule:
    """The flag on `u2` for `u1`, which is faulty."""
    return PeerRule(
        source=source, source_uid=uid or f"uid-{source}", peer=peer, target=Target(DRIVER, peer, NEURON_NODE)
    )


def stored(rule: PeerRule, version: int = 1, uid: str = "", **changed: Any) -> Rule:
    """The rule as the API server has it; `changed` are parts of its metadata or spec that are others."""
    body = to_object(rule, "resource.k8s.io/v1")
    body["metadata"] |= {"uid": uid or f"uid-of-{rule.name}", "resourceVersion": str(version)}
    read = msgspec.convert(body, Rule)
    metadata = {name: value for name, value in changed.items() if name in read.metadata.__struct_fields__}
    taint = {name: value for name, value in changed.items() if name in read.spec.taint.__struct_fields__}
    selector = {name: value for name, value in changed.items() if name in read.spec.device_selector.__struct_fields__}
    spec = msgspec.structs.replace(
        read.spec,
        taint=msgspec.structs.replace(read.spec.taint, **taint),
        device_selector=msgspec.structs.replace(read.spec.device_selector, **selector),
    )
    return msgspec.structs.replace(read, metadata=msgspec.structs.replace(read.metadata, **metadata), spec=spec)


def faulty(name: str = "u1", *, effect: Effect = Effect.NO_EXECUTE, uid: str = "") -> Record:
    """A record of device 3 of a node."""
    kept = record(node_uid=uid or f"uid-{name}")
    return replace(kept, key=Key(name, 3, "hbm"), taint=replace(kept.taint, effect=effect))


@dataclass
class World:
    """Four nodes of two UltraServers, of which `u1` is faulty; `slices` has a capacity block, or what else there is."""

    slices: dict[str, str | None] = field(default_factory=lambda: {"u1": "x", "u2": "x", "u3": "y", "u4": "y"})
    records: list[Record] = field(default_factory=lambda: [faulty()])
    members: Mapping[str, frozenset[str]] | None = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=lambda: {f"u{number}": f"uid-u{number}" for number in range(1, 5)})
    held: dict[str, Rule] = field(default_factory=dict)

    @property
    def inventory(self) -> Inventory:
        """A node's slice: None is one of a standalone node, "" one of an UltraServer without a capacity block."""
        inventory = Inventory(DRIVER)
        for name, block in self.slices.items():
            build = Build("neuron-device" if block is None else NEURON_NODE)
            device = Device("neuron-device-0" if block is None else NEURON_NODE, 0, build, capacity_block=block or "")
            inventory.put(resource_slice(device, name=f"slice-{name}", node_name=name, pool=name))
        return inventory

    def known_node(self, name: str) -> Node | None:
        """The Node."""
        return node(name=name, uid=self.nodes[name]) if name in self.nodes else None

    def wanted(self) -> dict[str, PeerRule]:
        """What is asked for."""
        return wanted(
            records=self.records,
            members=self.members,
            inventory=self.inventory,
            nodes=self.known_node,
            held=self.held.values(),
        )

    def pairs(self) -> set[tuple[str, str]]:
        """The same, as sources and peers."""
        return {(rule.source, rule.peer) for rule in self.wanted().values()}

    def hold(self, *rules: Rule) -> None:
        """Have these rules in the cluster."""
        self.held |= {rule.metadata.name: rule for rule in rules}


def together(*nodes: str) -> dict[str, frozenset[str]]:
    """One NeuronUltraServer."""
    return members_of([frozenset(nodes)])


def test_the_rule_is_exactly_this() -> None:
    assert to_object(peer_rule(), "resource.k8s.io/v1beta2") == {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": "neuron-peer.u1.u2",
            "labels": {"app.kubernetes.io/managed-by": "neuron-remediator"},
            "annotations": {
                "neuron-remediator/peer-of": "u1",
                "neuron-remediator/node": "u2",
                "neuron-remediator/node-uid": "uid-u1",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "u1", "uid": "uid-u1"}],
        },
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": "u2", "device": "neuron-node"},
            "taint": {"key": "neuron.aws.com/peer-tainted", "value": "u1", "effect": "None"},
        },
    }


@pytest.mark.parametrize(("length", "value"), [(63, "n" * 63), (64, "")])
def test_the_value_names_the_faulty_node_where_that_is_a_valid_one(length: int, value: str) -> None:
    assert peer_rule("n" * length).value == value


_DOTTED = st.from_regex(r"[ab](\.[ab]){0,3}", fullmatch=True) | st.sampled_from(["a" * 253, "b" * 200, "a" * 252 + "b"])


@given(st.lists(st.tuples(_DOTTED, _DOTTED), min_size=2, max_size=8, unique=True))
def test_each_pair_of_nodes_has_a_name_of_its_own(pairs: list[tuple[str, str]]) -> None:
    names = [rule_name(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    assert all(is_subdomain(name) and len(name) <= SUBDOMAIN_LIMIT for name in names)


def test_names_of_nodes_with_dots_are_told_apart() -> None:
    """Node `a` and its peer `b.c` are another pair than node `a.b` and its peer `c`."""
    assert rule_name("a", "b.c") != rule_name("a.b", "c")
    assert rule_name("ip-10-1-1-1.ec2.internal", "ip-10-1-1-2.ec2.internal") == (
        "neuron-peer.ip-10-1-1-1.ec2.internal.ip-10-1-1-2.ec2.internal"
    )


@given(node_names, node_names)
def test_what_is_written_is_read_and_is_no_record(source: str, peer: str) -> None:
    rule = peer_rule(source, peer)
    read = stored(rule)
    assert is_peer_rule(read)
    assert key_of(read) is None
    assert says(read, rule)
    assert from_object(read, driver=DRIVER) == (rule if source != peer else None)


@pytest.mark.parametrize(
    ("changed", "pairs"),
    [
        pytest.param({}, {("u1", "u2")}, id="by-capacity-block"),
        pytest.param({"members": together("u1", "u3", "u4")}, {("u1", "u3"), ("u1", "u4")}, id="by-ultraserver"),
        pytest.param({"members": together("u3", "u4")}, {("u1", "u2")}, id="others-are-named"),
        pytest.param({"members": together("u2", "u3")}, set(), id="the-peer-is-named-elsewhere"),
        pytest.param({"members": together("u1")}, set(), id="alone-in-its-ultraserver"),
        pytest.param({"members": None}, set(), id="ultraservers-not-known"),
        pytest.param({"records": []}, set(), id="no-record"),
        pytest.param({"records": [faulty(effect=Effect.NONE)]}, set(), id="no-effect"),
        pytest.param({"records": [faulty(effect=Effect.NO_SCHEDULE)]}, {("u1", "u2")}, id="the-weaker-effect"),
        pytest.param({"records": [faulty(uid="uid-before")]}, set(), id="a-record-of-the-machine-before"),
        pytest.param({"records": [faulty("u3"), faulty("u4")]}, {("u3", "u4"), ("u4", "u3")}, id="both-are-faulty"),
        pytest.param({"slices": {"u1": "x", "u2": None}}, set(), id="the-peer-is-standalone"),
        pytest.param({"slices": {"u1": "x"}}, set(), id="the-peer-has-no-slice"),
        pytest.param({"slices": {"u1": "", "u2": ""}}, set(), id="no-capacity-block"),
        pytest.param({"slices": {"u2": "x"}}, set(), id="the-source-has-no-slice"),
        pytest.param(
            {"slices": {"u2": "x"}, "members": together("u1", "u2")}, {("u1", "u2")}, id="named-and-without-a-slice"
        ),
        pytest.param({"nodes": {"u1": "uid-u1"}}, set(), id="the-peer-is-gone"),
        pytest.param({"nodes": {"u2": "uid-u2"}}, set(), id="the-source-is-gone"),
        pytest.param({"members": together("u1", "u9")}, set(), id="named-and-not-there"),
    ],
)
def test_who_is_flagged(changed: dict[str, Any], pairs: set[tuple[str, str]]) -> None:
    assert World(**changed).pairs() == pairs


@pytest.mark.parametrize(
    ("changed", "stays"),
    [
        pytest.param({"slices": {"u1": "x"}}, True, id="the-peer's-slice-is-away"),
        pytest.param({"slices": {"u2": "x"}}, True, id="the-source's-slice-is-away"),
        pytest.param({"slices": {}}, True, id="both-are-away"),
        pytest.param({"slices": {"u1": "x"}, "members": together("u1", "u2")}, True, id="away-and-named"),
        pytest.param({"members": None}, True, id="ultraservers-not-known"),
        pytest.param({"slices": {"u1": "x"}, "members": together("u1", "u3")}, False, id="named-without-it"),
        pytest.param({"slices": {"u1": "x"}, "members": together("u2", "u3")}, False, id="named-elsewhere"),
        pytest.param({"slices": {"u1": "x", "u2": "y"}}, False, id="another-capacity-block"),
        pytest.param({"slices": {"u1": "x", "u2": None}}, False, id="the-peer-became-standalone"),
        pytest.param({"slices": {"u1": None}}, False, id="the-source-became-standalone"),
        pytest.param({"slices": {"u2": None}}, False, id="the-peer-became-standalone-while-the-source-is-away"),
        pytest.param(
            {"slices": {"u2": None}, "members": together("u1", "u2")}, False, id="the-peer-is-named-and-standalone"
        ),
        pytest.param({"slices": {}, "records": []}, False, id="the-fault-is-gone"),
        pytest.param({"members": None, "records": []}, False, id="the-fault-is-gone-while-nothing-is-known"),
        pytest.param({"slices": {}, "nodes": {"u1": "uid-u1"}}, False, id="the-peer-is-gone"),
        pytest.param({"slices": {}, "nodes": {"u2": "uid-u2"}}, False, id="the-source-is-gone"),
        pytest.param(
            {"slices": {}, "nodes": {"u1": "new", "u2": "u"}, "records": [faulty(uid="new")]},
            False,
            id="another-machine",
        ),
    ],
)
def test_what_is_there_goes_on_evidence_only(changed: dict[str, Any], stays: bool) -> None:  # noqa: FBT001 - a table
    world = World(**changed)
    world.hold(stored(peer_rule()))
    assert world.pairs() == ({("u1", "u2")} if stays else set())
    assert bool(changes(world.wanted(), world.held.values()).delete) is not stays


@pytest.mark.parametrize(
    "changed",
    [
        {"effect": "NoExecute"},
        {"effect": "Sometimes"},
        {"value": "x"},
        {"key": "neuron.aws.com/device-unhealthy"},
        {"pool": ""},
        {"device": "neuron-device-0"},
        {"driver": ""},
        {"owner_references": []},
        {"annotations": {SOURCE_UID: "uid-u1"}},
        {"annotations": {PEER_OF: "u1", PEER: "u2"}},
    ],
)
def test_what_a_hand_has_damaged_is_mended(changed: dict[str, Any]) -> None:
    damaged = stored(peer_rule(), **changed)
    assert changes(World().wanted(), [damaged]) == Changes((), ((peer_rule(), damaged),), ())


def test_what_a_hand_has_added_harms_nobody() -> None:
    labels = {MANAGED_BY: MANAGER, "team": "ml"}
    assert changes(World().wanted(), [stored(peer_rule(), labels=labels)]) == Changes((), (), ())


def test_what_says_another_pair_than_its_name_is_no_reason_to_flag_anybody() -> None:
    world = World(slices={})
    world.hold(stored(peer_rule(), annotations={PEER_OF: "u1", PEER: "u3", SOURCE_UID: "uid-u1"}))
    assert world.pairs() == set()


def test_a_rule_of_the_machine_before_is_made_anew() -> None:
    """Under a new name of its owner it would look as if it had been there all along."""
    before = stored(peer_rule(uid="uid-before"))
    assert changes(World().wanted(), [before]) == Changes((before,), (), (peer_rule(),))


def test_a_rule_that_a_finalizer_holds_is_left_to_it() -> None:
    ending = stored(peer_rule(), deletion_timestamp="2026-11-30T12:00:00Z")
    assert changes(World().wanted(), [ending]) == Changes((), (), ())
    assert changes({}, [ending]) == Changes((), (), ())


def test_a_rule_without_our_mark_is_not_ours() -> None:
    assert not is_peer_rule(stored(peer_rule(), labels={"team": "ml"}))
    assert not is_peer_rule(stored(peer_rule(), name="copy-of-neuron-peer.u1.u2"))


# Properties

_NAMES = ("a", "b", "a.b", "b.a", "n" * 250)
_names = st.sampled_from(_NAMES)
_uids = st.sampled_from(["uid-1", "uid-2"])
_DAMAGES: list[Json] = [
    {},
    {"effect": "NoExecute"},
    {"pool": "", "device": ""},
    {"pool": "elsewhere"},
    {"driver": "gpu.example"},
    {"value": ""},
    {"owner_references": []},
    {"annotations": {}},
    {"annotations": {}, "owner_references": []},
    {"deletion_timestamp": "2026-11-30T12:00:00Z", "effect": "NoSchedule"},
]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw anything at all, rules for nodes that are no peers and damaged ones included."""
    rules = draw(st.lists(st.tuples(_names, _names, _uids, st.sampled_from(_DAMAGES)), max_size=6))
    world = World(
        slices=draw(st.dictionaries(_names, st.sampled_from(["x", "x", "y", "", None]))),
        records=[
            faulty(name, effect=effect, uid=uid)
            for name, effect, uid in draw(st.lists(st.tuples(_names, st.sampled_from(Effect), _uids), max_size=4))
        ],
        members=draw(st.none() | st.lists(st.frozensets(_names), max_size=2).map(members_of)),
        nodes=draw(st.dictionaries(_names, _uids)),
    )
    for source, peer, uid, damage in rules:
        world.hold(stored(peer_rule(source, peer, uid), **damage))
    return world


def applied(due: Changes, held: Mapping[str, Rule]) -> dict[str, Rule]:
    """What the API server holds when it has carried that out; an apply takes nothing away that a hand has added."""
    after = dict(held)
    for rule in due.delete:
        del after[rule.metadata.name]
    for asked, over in due.mend:
        fresh = stored(asked)
        metadata = msgspec.structs.replace(
            over.metadata,
            labels=over.metadata.labels | fresh.metadata.labels,
            annotations=over.metadata.annotations | fresh.metadata.annotations,
            owner_references=[*over.metadata.owner_references, *fresh.metadata.owner_references],
        )
        after[asked.name] = msgspec.structs.replace(fresh, metadata=metadata)
    for asked in due.create:
        assert asked.name not in after, "the name is taken"
        after[asked.name] = stored(asked)
    return after


def ending(rules: Iterable[Rule]) -> set[str]:
    return {rule.metadata.name for rule in rules if rule.metadata.deletion_timestamp is not None}


@given(worlds())
def test_what_is_carried_out_ends_with_what_is_wanted_and_no_more_to_do(world: World) -> None:
    asked = world.wanted()
    after = applied(changes(asked, world.held.values()), world.held)
    assert after.keys() - ending(after.values()) == asked.keys() - ending(after.values())
    assert asked.keys() <= after.keys()
    assert all(says(after[name], rule) for name, rule in asked.items())

    world.held = after
    assert world.wanted() == asked
    assert changes(asked, after.values()) == Changes((), (), ())


@given(worlds())
def test_a_flag_informs_and_selects_one_device(world: World) -> None:
    for name, rule in world.wanted().items():
        body = to_object(rule, "resource.k8s.io/v1")
        assert body["metadata"]["name"] == name
        assert body["spec"]["taint"] == {"key": PEER_KEY, "value": rule.value, "effect": "None"}
        assert body["spec"]["deviceSelector"]["device"] == NEURON_NODE
        assert all(body["spec"]["deviceSelector"].values())


@given(worlds())
def test_each_flag_has_a_faulty_source_and_no_evidence_against_it(world: World) -> None:
    """A second opinion, pair by pair."""
    pairs = world.pairs()
    for source in _NAMES:
        sure = {peer for peer in _NAMES if _certain(world, source, peer)}
        assert {(source, peer) for peer in sure} <= pairs
        for peer in _NAMES:
            if (source, peer) in pairs:
                assert source != peer
                assert {source, peer} <= world.nodes.keys()
                assert any(
                    one.disrupts and one.key.node == source and one.node_uid == world.nodes[source]
                    for one in world.records
                )
                assert peer in sure or (rule_name(source, peer) in world.held and not _disproved(world, source, peer))


def _certain(world: World, source: str, peer: str) -> bool:
    """Whether both are known to be in one UltraServer, and the source to be faulty."""
    uid = world.nodes.get(source)
    is_faulty = any(one.disrupts and one.key.node == source and one.node_uid == uid for one in world.records)
    listed = world.slices.get(peer) is not None
    if not is_faulty or peer not in world.nodes or not listed or source == peer or world.members is None:
        return False
    if source in world.members:
        return peer in world.members[source]
    return peer not in world.members and world.slices.get(source) == world.slices[peer] != ""


def _disproved(world: World, source: str, peer: str) -> bool:
    """Whether slices or UltraServers say that they are not in one."""
    if world.members is None:
        return False
    if source in world.members or peer in world.members:
        return peer not in world.members.get(source, ()) or (peer in world.slices and world.slices[peer] is None)
    seen = {world.slices[name] for name in (source, peer) if name in world.slices}
    return None in seen or "" in seen or len(seen) == 2
