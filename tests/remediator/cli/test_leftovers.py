"""What of ours is found, and what is said of taking it away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alerts.faults import Effect
from remediator.cli.consequences import Remarks, remarks
from remediator.cli.leftovers import Kind, Leftover, Scope, Seen, kept_records, leftovers, summary, table
from remediator.cli.strays import keys_of, of_strays
from remediator.inventory import DeviceTaint, Inventory, Node, NodeSpec
from remediator.node_records import ANNOTATION, node_target, patch
from remediator.peer_object import PeerRule
from remediator.peer_object import to_object as to_peer_object
from remediator.records import MANAGED_BY, MANAGER, Record, State
from remediator.rule_records import to_object
from remediator.rules import Rule
from remediator.targets import Target
from tests.remediator.cli.pictures import held, inventory
from tests.remediator.cli.test_lease_watch import lease
from tests.remediator.samples import DRIVER, NODE, NOW, TAINT_KEY, device, node

EVERYTHING = Scope()
FOREIGN = [{"key": "maintenance", "effect": "NoSchedule"}]


def rule(record: Record, **metadata: Any) -> Rule:
    """A record's rule as the API server sends it."""
    made = to_object(record, "resource.k8s.io/v1")
    made["metadata"] |= {"uid": "uid-9", "resourceVersion": "7"} | metadata
    return msgspec.convert(made, Rule)


def other_rule(name: str = "theirs", labels: dict[str, str] | None = None, **selector: str) -> Rule:
    """A rule that is no record."""
    metadata = {"name": name, "uid": "uid-8", "resourceVersion": "5", "labels": labels or {}}
    taint = {"key": "mine", "effect": "NoExecute"}
    return msgspec.convert({"metadata": metadata, "spec": {"deviceSelector": selector, "taint": taint}}, Rule)


def on_node(fault: str = "link_efa", number: int = 3, **changes: Any) -> Record:
    """A record that taints its Node as a whole."""
    return held(fault, number=number, target=node_target(DRIVER, NODE, number), **changes)


def bearing(*records: Record, taints: list[dict[str, Any]] | None = None) -> Node:
    """The sample Node with records and their taints, behind other taints."""
    before = node()
    before = msgspec.structs.replace(before, spec=NodeSpec(taints or []))
    change = patch(before, records, now=NOW)
    annotations = msgspec.convert(change["metadata"]["annotations"], type(before.metadata.annotations))
    metadata = msgspec.structs.replace(before.metadata, annotations=annotations)
    return Node(metadata, NodeSpec(change.get("spec", {}).get("taints", taints)))


def damaged(*taints: dict[str, Any]) -> Node:
    """The sample Node with an annotation that says nothing."""
    annotations = msgspec.convert({ANNOTATION: "{"}, type(node().metadata.annotations))
    return Node(msgspec.structs.replace(node().metadata, annotations=annotations), NodeSpec(list(taints)))


def found(seen: Seen, scope: Scope = EVERYTHING) -> list[Leftover]:
    return leftovers(seen, scope, driver=DRIVER)


def said(seen: Seen, scope: Scope = EVERYTHING, there: Inventory | None = None) -> Remarks:
    return remarks(found(seen, scope), seen, scope, there or inventory(), driver=DRIVER)


def flag() -> Rule:
    target = Target(DRIVER, "peer", "neuron-node")
    made = to_peer_object(PeerRule(source=NODE, source_uid="uid-1", peer="peer", target=target), "resource.k8s.io/v1")
    made["metadata"] |= {"uid": "uid-7", "resourceVersion": "6"}
    return msgspec.convert(made, Rule)


def test_everything_with_our_mark_is_found_and_nothing_else() -> None:
    broken = other_rule("broken", {MANAGED_BY: MANAGER}, pool="p")
    theirs = msgspec.structs.replace(lease().metadata, labels={MANAGED_BY: "helm"}, name="theirs")
    seen = Seen(
        (rule(held()), flag(), broken, other_rule(), other_rule("helm", {MANAGED_BY: "helm"})),
        (bearing(on_node()), node(name="plain")),
        (lease(), msgspec.structs.replace(lease(), metadata=theirs)),
    )
    assert [(one.kind, one.node, *map(tuple, one.parts)) for one in found(seen)] == [
        (Kind.RULE, NODE, ("NoExecute", "device 3: hbm (active, latched)")),
        (
            Kind.NODE,
            NODE,
            ("NoSchedule", "device 3: link_efa (active)"),
            ("NoSchedule", f"taint {TAINT_KEY}=link-efa-error:NoSchedule"),
        ),
        (Kind.RULE, "p", ("NoExecute", "broken: no longer says which fault it stands for; taints p/*")),
        (Kind.RULE, "peer", ("None", f"flag: its peer {NODE} is tainted")),
        (Kind.LEASE, "", ("-", "ns/neuron-remediator, held by pod-1_0a1b2c3d")),
    ]
    assert summary(found(seen)) == "3 DeviceTaintRules, annotation of 1 Node, with 1 taint, 1 Lease"
    assert [row[0] for row in table(found(seen), names=True).rows] == [NODE, NODE, NODE, "p", "peer", "-"]
    assert table(found(seen), names=False).headings == ("NODE", "KIND", "EFFECT", "WHAT")


def test_a_fault_alone_is_found_wherever_it_is() -> None:
    labels = {MANAGED_BY: MANAGER, f"{MANAGER}/fault": "link_efa"}
    seen = Seen(
        (rule(held()), rule(held("link_efa", number=5)), other_rule("broken", labels), flag()),
        (bearing(on_node(), on_node("sram", 4)), damaged()),
        (lease(),),
    )
    scope = Scope(faults=frozenset({"link_efa"}))
    assert sorted((one.kind, [record.key.fault for record in one.records]) for one in found(seen, scope)) == [
        (Kind.RULE, []),
        (Kind.RULE, ["link_efa"]),
        (Kind.NODE, ["link_efa"]),
    ]
    kept = kept_records(seen.nodes[0], scope, driver=DRIVER)
    assert [record.key.fault for record in kept] == ["sram"]
    assert found(seen, Scope(faults=frozenset({"unheard_of"}))) == []


def test_what_goes_of_a_node_is_counted_as_what_it_is() -> None:
    node_ = bearing(on_node(), on_node("link_intraserver", 4), on_node("hbm", 5))
    assert summary(found(Seen(nodes=(node_,)))) == "annotation of 1 Node, with 1 taint"
    assert summary(found(Seen(nodes=(node_, node_, damaged())))) == "annotations of 3 Nodes, with 2 taints"
    # What the others ask for stays, and the gravest fault's taint goes.
    for fault, taints in (("link_efa", ""), ("link_intraserver", ""), ("hbm", ", with 1 taint")):
        (one,) = found(Seen(nodes=(node_,)), Scope(faults=frozenset({fault})))
        assert summary([one]) == f"part of the annotation of 1 Node{taints}"
        assert len(one.parts) == 1 + bool(taints)
    assert summary([one, one]) == "parts of the annotations of 2 Nodes, with 2 taints"


def test_taints_of_a_broken_annotation_are_not_known_to_be_ours() -> None:
    ours = {"key": TAINT_KEY, "value": "hbm-uncorrectable-error", "effect": "NoSchedule"}
    seen = Seen(nodes=(damaged(ours, *FOREIGN),))
    (one,) = found(seen)
    assert one.parts == (("-", f"annotation {ANNOTATION} that cannot be read"),)
    (note,) = said(seen).quiet
    assert note == (
        f"other taints of Node {NODE}, whose annotation cannot be read, are left, though one with a former --taint.key "
        "may be ours: maintenance:NoSchedule"
    )
    # The annotation of another machine says nothing of this one.
    copied = bearing(on_node())
    copied = msgspec.structs.replace(copied, metadata=msgspec.structs.replace(copied.metadata, uid="uid-2"))
    (one,) = found(Seen(nodes=(copied,)))
    assert [taint["key"] for taint in one.unknown] == [TAINT_KEY]


def test_taints_with_our_key_that_are_not_known_to_be_ours_are_told_of_with_the_way_to_end_them() -> None:
    record = held()
    keys = keys_of([record, replace(record, taint=replace(record.taint, key="former"))])
    assert keys == {TAINT_KEY, "former"}
    taints = [{"key": TAINT_KEY, "value": "x", "effect": "NoSchedule"}, {"key": "former", "effect": "NoExecute"}]
    stray = msgspec.structs.replace(node(), spec=NodeSpec([*FOREIGN, *taints]))
    (note,) = of_strays([node(), bearing(on_node()), stray], keys, Path("/my file"))
    assert note == (
        f"left on Node {NODE}, as not known to be ours: {TAINT_KEY}=x:NoSchedule, former:NoExecute; if it is ours, "
        f"take it off: kubectl --kubeconfig '/my file' taint node {NODE} {TAINT_KEY}:NoSchedule- former:NoExecute-"
    )
    *few, more = of_strays([stray] * 23, keys, None)
    assert (len(few), more) == (20, "3 more Nodes have taints with our key that are not known to be ours")


def test_what_comes_back_into_service_is_said_and_what_is_latched_loudly() -> None:
    seen = Seen((rule(held()), rule(held("link_efa", number=5))), (bearing(on_node("link_switch", 7)),))
    quiet, loud = said(seen)
    assert quiet == (f"back in service: 3 targets: {NODE}/neuron-device-3, {NODE}/neuron-device-5, Node {NODE}",)
    (warning,) = loud
    assert warning.startswith("WARNING: 1 latched record will be forgotten.")
    assert warning.endswith(f": {NODE}/3/hbm")


@pytest.mark.parametrize(
    ("seen", "there", "by"),
    [
        (Seen((rule(held()), other_rule(pool=NODE))), None, "rule theirs taints it"),
        (
            Seen((rule(held()),)),
            inventory(device("neuron-device-3", 3, DeviceTaint(TAINT_KEY, "x", Effect.NO_SCHEDULE))),
            "the driver itself taints it",
        ),
        (
            Seen((), (bearing(on_node("hbm"), taints=FOREIGN),)),
            None,
            "others taint it: maintenance:NoSchedule",
        ),
        (Seen((rule(held()),), (bearing(on_node("link_efa", 5)),)), None, f"held by {NODE}/5/link_efa too"),
    ],
)
def test_what_others_keep_tainted_is_not_said_to_come_back(seen: Seen, there: Inventory | None, by: str) -> None:
    (quiet,) = said(seen, Scope(faults=frozenset({"hbm"})), there).quiet
    assert quiet.endswith(f"stays out of service: {by}")


def test_what_has_no_effect_comes_back_from_nowhere() -> None:
    withheld = held("link_efa", State.WITHHELD)
    assert said(Seen((rule(withheld), other_rule(driver="x.example.com")))) == Remarks((), ())


def test_many_names_are_cut_short() -> None:
    records = [replace(held(number=number), latched=True) for number in range(30)]
    quiet, loud = said(Seen(tuple(map(rule, records))))
    assert quiet[0].startswith("back in service: 30 targets: ")
    assert quiet[0].endswith(" and 10 more")
    assert loud[0].endswith(" and 10 more")
