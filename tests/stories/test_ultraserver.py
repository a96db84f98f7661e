"""A node of an UltraServer: its slice has the one device `neuron-node`, and whatever is faulty lands there.

How many faults hold it is counted by nobody: each has its own rule, and the taint leaves with the last. The other
nodes of the UltraServer are told, and left alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS, HEALTHY
from tests.stack.binaries import require
from tests.stack.kube import Admin
from tests.stack.pipeline import LIFTED, Pipeline
from tests.stories.conftest import NODE
from tests.stories.watching import (
    KEY,
    Rule,
    becomes,
    cleared,
    eviction,
    evictions,
    firing,
    read_clean_for,
    records,
    rule_of,
    tainted,
    writes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane

pytestmark = pytest.mark.stack

PEER = "ip-10-1-1-202.us-west-2.compute.internal"
CAPACITY_BLOCK = "cr-0f1e2d3c4b5a69788"
LINK = FAULTS["link_host"]
PEER_KEY = "neuron.aws.com/peer-tainted"
PEERS_WITHIN = 15.0
PLACED_WITHIN = 10.0


@pytest.fixture(params=["control_plane", "beta_plane"], ids=["1.37", "1.36-v1beta2"])
def plane(request: pytest.FixtureRequest) -> ControlPlane:
    """Give a control plane of either version."""
    chosen: ControlPlane = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[Admin]:
    """Give its administrator's client; whatever a story has made is gone after it."""
    client = Admin(plane)
    yield client
    client.clean()


@pytest.fixture
def ultraserver(plane: ControlPlane, admin: Admin, tmp_path: Path) -> Iterator[Pipeline]:
    """Start the two nodes of an UltraServer and all that watches over the first; the other has no exporter."""
    require("prometheus", "alertmanager")
    for node in (NODE, PEER):
        admin.node(node, ultraserver=CAPACITY_BLOCK)
    with Pipeline(tmp_path, node=NODE, control_plane=plane, remediator_flags=LIFTED) as running:
        yield running


def job(admin: Admin, name: str, node: str = NODE) -> str:
    """Ask for a whole node of the UltraServer; returns the job's name."""
    admin.pod(name, device="neuron-node", node=node, template=True)
    return name


def runs(admin: Admin, name: str) -> bool:
    """Whether the job has its node, and nobody has asked it to end."""
    pod = admin.get("Pod", name)
    return "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]


def refused(admin: Admin, name: str, node: str = NODE) -> None:
    """Check that a job that asks for the node now is not let onto it."""
    assert "cannot allocate all claims" in admin.unschedulable(job(admin, name, node))


def target(rule: Rule | None) -> tuple[str, str] | None:
    """Pool and device of the rule; None if there is none."""
    return (rule["spec"]["deviceSelector"]["pool"], rule["spec"]["deviceSelector"]["device"]) if rule else None


def flags(admin: Admin) -> list[tuple[str, str, str]]:
    """Each rule that flags a peer: pool, device and effect."""
    rules = [rule["spec"] for rule in admin.rules() if rule["spec"]["taint"]["key"] == PEER_KEY]
    return [(one["deviceSelector"]["pool"], one["deviceSelector"]["device"], one["taint"]["effect"]) for one in rules]


FLAGGED = [(PEER, "neuron-node", "None")]


def test_the_last_fault_takes_the_taint_along(ultraserver: Pipeline, admin: Admin, plane: ControlPlane) -> None:
    """Two faulty devices are two rules on `neuron-node` and one eviction; with one clean the node stays tainted.

    The peer is flagged meanwhile, with a taint that does nothing, and its job runs on.
    """
    assert [admin.scheduled(job(admin, "trains-here")), admin.scheduled(job(admin, "trains-there", PEER))] == [
        "neuron-node",
        "neuron-node",
    ]
    for device in (3, 7):
        ultraserver.driver.show(device, LINK.example)
    rules = [tainted(admin, device, LINK.name) for device in (3, 7)]
    assert [target(rule) for rule in rules] == [(NODE, "neuron-node")] * 2
    first = min(writes(plane, rule)[0] for rule in rules)
    print(f"job: evicted {eviction(plane, 'trains-here') - first} after the first rule")
    becomes(lambda: flags(admin) == FLAGGED, "the peer to be flagged", within=PEERS_WITHIN)
    print(f"peer: flagged within {datetime.now(UTC) - first} of the first rule")
    refused(admin, "wants-the-node")

    ultraserver.driver.show(3, HEALTHY)
    read_clean_for(ultraserver, 3, LINK.name, 6)
    ultraserver.driver.show(7, HEALTHY)
    cleared(admin, 3, LINK.name)
    refused(admin, "wants-it-with-one-clean")
    assert flags(admin) == FLAGGED
    assert target(rule_of(admin, 7, LINK.name)) == (NODE, "neuron-node")
    admin.delete("Pod", "wants-it-with-one-clean")

    cleared(admin, 7, LINK.name)
    assert admin.scheduled("wants-the-node") == "neuron-node"
    becomes(lambda: flags(admin) == [], "the peer's flag to go", within=PEERS_WITHIN)
    gone = datetime.now(UTC)
    print(f"peer: flag gone within {gone - writes(plane, rules[1])[-1]} of the last rule")
    assert len(evictions(plane, "trains-here")) == 1
    assert (evictions(plane, "trains-there"), runs(admin, "trains-there")) == ([], True)


def test_a_fault_without_a_slice_ends_on_the_whole_node(
    ultraserver: Pipeline, admin: Admin, plane: ControlPlane
) -> None:
    """The slice is gone as the fault comes and back after it: the record ends on `neuron-node`, whoever ran there.

    A job that runs shows by its claim what the node is; it is evicted once. With no job nothing shows it until the
    slice is back. Then a latched record moves by itself, and one that is not as soon as NotHeld has brought a firing.
    """
    assert admin.scheduled(job(admin, "trains-on", PEER)) == "neuron-node"
    for node in (PEER, NODE):
        admin.wipe_slice(node)
    ultraserver.driver.set_components(2, "hbm\n")
    ultraserver.driver.show(5, LINK.example)
    alert = firing(PEER, 3, LINK.name, datetime.now(UTC).isoformat())
    assert ultraserver.notify(alert).status == 200
    assert target(tainted(admin, 3, LINK.name)) == (PEER, "neuron-node")
    eviction(plane, "trains-on")
    becomes(lambda: records(ultraserver, 2, "hbm") and records(ultraserver, 5, LINK.name), "both records")

    for node in (PEER, NODE):
        admin.publish_slice(node, ultraserver=CAPACITY_BLOCK)
    published = datetime.now(UTC)
    for device, fault in ((2, "hbm"), (5, LINK.name)):
        on_the_node(admin, device, fault)
        print(f"{fault}: on neuron-node within {datetime.now(UTC) - published} of the slice's return")
    refused(admin, "wants-the-node")
    refused(admin, "wants-the-other", PEER)
    assert target(tainted(admin, 3, LINK.name)) == (PEER, "neuron-node")
    assert len(evictions(plane, "trains-on")) == 1
    # What held the fault while the node had no slice.
    becomes(lambda: KEY not in [taint["key"] for taint in admin.node_taints(NODE)], "no taint on the Node itself")


def on_the_node(admin: Admin, device: int, fault: str) -> None:
    """Wait until the record of the fault evicts from `neuron-node`."""

    def stands() -> bool:
        rule = rule_of(admin, device, fault)
        effect = rule["spec"]["taint"]["effect"] if rule else None
        return (target(rule), effect) == ((NODE, "neuron-node"), "NoExecute")

    becomes(stands, f"{fault} of device {device} to be on neuron-node", within=PLACED_WITHIN)
