"""The series of the fleet say exactly what is in the cluster: checked against a plain recomputation and a real one."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from exporter.families import FAMILIES
from remediator.backends.device_taint_rule import RecordCache
from remediator.caches import Caches, SliceCache
from remediator.claims import ClaimObject, ClaimReader, Claims
from remediator.cluster import connect
from remediator.foreign_rules import ForeignRules, Sorting
from remediator.inventory_metrics import InventoryCollector
from remediator.peer_object import PeerRule
from remediator.peer_object import to_object as to_peer_object
from remediator.peer_rules import PeerRules
from remediator.rule_records import to_object
from remediator.rules import Rule
from remediator.slices import Compactor, SliceObject
from remediator.targets import Target
from tests.remediator.live import USER, running
from tests.remediator.raw_cluster import Lines, RawCluster
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, Json, record
from tests.remediator.test_claims import POD, raw, result
from tests.stack import shapes
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from remediator.inventory import Inventory
    from remediator.inventory_metrics import Fleet
    from remediator.records import Record
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

ROOT = Path(__file__).parents[2]
BUILD = ("neuron-device", "trn2.48xlarge", "2.31.7.0", "1.3.0")
LABELS = {
    "neuron_devices": ("kind", "instance_type", "neuron_driver_version", "dra_driver_version"),
    "neuron_device_taint": ("node", "device", "key", "value", "effect", "source"),
    "neuron_device_consumer": ("node", "device", "claim_namespace", "claim", "consumer_pod"),
    "neuron_device_inventory": (
        *("node", "device", "pool", "device_name", "instance_type"),
        *("neuron_driver_version", "dra_driver_version", "capacity_block"),
    ),
}
DEFAULT = ("neuron_devices", "neuron_device_taint", "neuron_device_consumer")


@dataclass
class Memory:
    """The caches of a cluster without its API server: tests say what the watches would."""

    waiting_for: str | None = None
    claims: Claims = field(default_factory=Claims)
    foreign_rules: ForeignRules = field(default_factory=lambda: ForeignRules(DRIVER))
    records: RecordCache = field(default_factory=RecordCache)
    peer_rules: PeerRules = field(default_factory=PeerRules)

    def __post_init__(self) -> None:
        """Put the sinks in front of them, each with what makes the form it takes."""
        self.slices = SliceCache(DRIVER, on_change=lambda: None)
        compact, read = Compactor(), ClaimReader(DRIVER)
        self.sinks: dict[str, tuple[Any, Callable[[Json], Any]]] = {
            "slices": (self.slices, lambda raw_: compact(decoded(raw_, SliceObject))),
            "claims": (self.claims, lambda raw_: read(decoded(raw_, ClaimObject))),
            "rules": (
                Sorting(self.records, self.foreign_rules, self.peer_rules),
                lambda raw_: decoded(raw_, Rule),
            ),
        }

    @property
    def inventory(self) -> Inventory:
        """The devices."""
        return self.slices.inventory

    def not_ready(self) -> str | None:
        """Why nothing can be said."""
        return self.waiting_for

    def put(self, kind: str, *objects: Json) -> None:
        """Tell that objects were added or changed."""
        sink, read = self.sinks[kind]
        for one in objects:
            sink.put(read(one))

    def remove(self, kind: str, *objects: Json) -> None:
        """Tell that objects were deleted."""
        sink, read = self.sinks[kind]
        for one in objects:
            sink.remove(read(one))

    def replace(self, kind: str, objects: Iterable[Json], version: int) -> None:
        """Tell a whole list."""
        sink, read = self.sinks[kind]
        sink.replace([read(one) for one in objects], str(version))

    def page(self, *, per_device: bool = False) -> dict[str, Lines]:
        """What is exported now, by series."""
        return page(self, self.records.all, per_device=per_device)


def decoded(object_: Json, kind: Any) -> Any:
    """An object as it travels and is read."""
    return msgspec.json.decode(msgspec.json.encode(object_), type=kind)


def page(fleet: Fleet, records: Callable[[], Iterable[Record]], *, per_device: bool = False) -> dict[str, Lines]:
    """Scrape, and check that no line is there twice and that labels are those that were promised."""
    registry = CollectorRegistry()
    registry.register(InventoryCollector(fleet, records, per_device=per_device))
    lines: dict[str, Lines] = {}
    for family in registry.collect():
        lines[family.name] = {
            tuple(sample.labels[label] for label in LABELS[family.name]): int(sample.value) for sample in family.samples
        }
        assert all(sample.labels.keys() == set(LABELS[family.name]) for sample in family.samples)
        assert len(lines[family.name]) == len(family.samples), "a line is there twice"
    return lines


def versioned(object_: Json, version: int = 1, uid: str = "uid-1", **metadata: str) -> Json:
    """The object as the API server stores it."""
    return object_ | {"metadata": object_["metadata"] | {"uid": uid, "resourceVersion": str(version), **metadata}}


def slice_of(*devices: Json, node: str = NODE) -> Json:
    """A node's slice."""
    return versioned(shapes.resource_slice({"metadata": {"name": node, "uid": "n"}}, devices), name=f"slice-{node}")


def tainted_device(number: int, *effects: str) -> Json:
    """One entry of a slice, with taints of the driver."""
    entry = shapes.standalone_devices(number + 1, "trn2.48xlarge")[number]
    return entry | {"taints": [{"key": TAINT_KEY, "value": "driver-says", "effect": effect} for effect in effects]}


def ours(target: str = "neuron-device-3", device: int = 3, fault: str = "hbm", version: int = 1) -> Json:
    """A record's rule that selects `target`."""
    rule = to_object(record(fault), "resource.k8s.io/v1")
    rule["metadata"]["name"] = f"neuron-health.{NODE}.{device}.{fault}"
    rule["metadata"]["labels"]["neuron-remediator/device"] = str(device)
    rule["spec"]["deviceSelector"]["device"] = target
    return versioned(rule, version, uid=f"uid-{device}")


def theirs(name: str = "maintenance", **selector: str) -> Json:
    """A rule of somebody else."""
    rule = shapes.taint_rule(name, pool="", device="", value="planned", effect="NoSchedule")
    rule["spec"]["deviceSelector"] = {"driver": DRIVER, **selector}
    return versioned(rule)


def flag(source: str = "faulty", peer: str = NODE) -> Json:
    """Our rule on a peer of a faulty node."""
    rule = PeerRule(source=source, source_uid="uid-1", peer=peer, target=Target(DRIVER, peer, "neuron-node"))
    return versioned(to_peer_object(rule, "resource.k8s.io/v1"), uid=f"uid-{source}-{peer}")


def by_record(device: str, node: str = NODE) -> tuple[str, ...]:
    """The line of an hbm record."""
    return (node, device, TAINT_KEY, "hbm-uncorrectable-error", "NoExecute", "record")


def by_rule(device: str, node: str = NODE) -> tuple[str, ...]:
    """The line of somebody else's rule."""
    return (node, device, TAINT_KEY, "planned", "NoSchedule", "rule")


def test_each_device_is_named_by_its_index_whoever_taints_it() -> None:
    memory = Memory()
    memory.put("slices", slice_of(tainted_device(2), tainted_device(3, "None", "NoSchedule")))
    memory.put("rules", ours(), theirs(pool=NODE, device="neuron-device-3"))
    memory.put("claims", raw(result(), reserved=[POD]))

    assert memory.page() == {
        "neuron_devices": {BUILD: 2},
        "neuron_device_taint": {
            (NODE, "3", TAINT_KEY, "driver-says", "None", "driver"): 1,
            (NODE, "3", TAINT_KEY, "driver-says", "NoSchedule", "driver"): 1,
            by_record("3"): 1,
            by_rule("3"): 1,
        },
        "neuron_device_consumer": {(NODE, "3", "ml", "train", "train-0"): 1},
    }


def test_on_an_ultraserver_node_equal_taints_are_one_line() -> None:
    """Two devices with the same fault have a rule each, and the node is tainted once."""
    memory = Memory()
    memory.put("slices", slice_of(shapes.ultraserver_device("block-1", "trn2u.48xlarge")))
    memory.put("rules", ours("neuron-node", 3), ours("neuron-node", 7), theirs(pool=NODE))
    memory.put("claims", raw(result("neuron-node")))

    found = memory.page()
    assert found["neuron_device_taint"] == {by_record("neuron-node"): 1, by_rule("neuron-node"): 1}
    assert found["neuron_device_consumer"] == {(NODE, "neuron-node", "ml", "train", ""): 1}


def test_devices_of_two_pools_with_one_index_make_one_line() -> None:
    """A line that is there twice would cost the whole scrape."""
    memory = Memory()
    memory.put("slices", slice_of(tainted_device(3, "NoSchedule")))
    second = versioned(slice_of(tainted_device(3, "NoSchedule")), name="second")
    second["spec"]["pool"] = {**second["spec"]["pool"], "name": "pool-2"}
    memory.put("slices", second)
    memory.put("claims", raw(result(), result(pool="pool-2"), reserved=[POD]))

    found = memory.page()
    assert found["neuron_devices"] == {BUILD: 2}
    assert found["neuron_device_taint"] == {(NODE, "3", TAINT_KEY, "driver-says", "NoSchedule", "driver"): 1}
    assert found["neuron_device_consumer"] == {(NODE, "3", "ml", "train", "train-0"): 1}


@pytest.mark.parametrize("slices", [(shapes.ultraserver_device("block-1", "trn2u.48xlarge"),), ()])
def test_a_flag_on_a_peer_is_ours(slices: tuple[Json, ...]) -> None:
    memory = Memory()
    memory.put("slices", *(slice_of(device) for device in slices))
    memory.put("rules", flag())
    assert memory.page()["neuron_device_taint"] == {
        (NODE, "neuron-node", "neuron.aws.com/peer-tainted", "faulty", "None", "peer"): 1
    }


@pytest.mark.parametrize("target", ["neuron-node", "neuron-device-3"])
def test_a_device_whose_slice_is_away_is_named_as_the_record_says(target: str) -> None:
    """The kubelet wipes the slices of its node when it starts: what is tainted and in use then stays on the page."""
    memory = Memory()
    memory.put("rules", ours(target))
    memory.put("claims", raw(result(target), reserved=[POD]))

    found, device = memory.page(), "neuron-node" if target == "neuron-node" else "3"
    assert found["neuron_device_taint"] == {by_record(device): 1}
    assert found["neuron_device_consumer"] == {(NODE, device, "ml", "train", "train-0"): 1}


@pytest.mark.parametrize(
    ("selector", "devices"),
    [
        pytest.param({"pool": NODE, "device": "neuron-device-1"}, [(NODE, "1")], id="one"),
        pytest.param({"pool": NODE}, [(NODE, "0"), (NODE, "1"), (NODE, "neuron-device-3")], id="pool-with-a-claim"),
        pytest.param({"pool": "elsewhere"}, [("elsewhere", "")], id="unknown-pool"),
        pytest.param({"pool": "elsewhere", "device": "d"}, [("elsewhere", "d")], id="unknown-device"),
        pytest.param({"device": "neuron-device-1"}, [("", "neuron-device-1")], id="every-pool"),
        pytest.param({}, [("", "")], id="everything"),
    ],
)
def test_somebody_elses_rule_is_shown_for_each_device_it_names(
    selector: dict[str, str], devices: list[tuple[str, str]]
) -> None:
    memory = Memory()
    memory.put("slices", slice_of(*shapes.standalone_devices(2, "trn2.48xlarge")))
    memory.put("claims", raw(result()))  # a third device, which only a claim knows
    memory.put("rules", theirs(**selector))

    found = memory.page()
    assert found["neuron_device_taint"] == {by_rule(device, node): 1 for node, device in devices}
    held = {(NODE, "neuron-device-3", "ml", "train", ""): 1}
    assert found["neuron_device_consumer"] == (held if (NODE, "neuron-device-3") in devices else {})


def test_who_knows_nothing_says_nothing() -> None:
    """Half a list would tell of devices that are gone, or in nobody's use."""
    memory = Memory(waiting_for="waiting for a list of resourceclaims")
    memory.put("slices", slice_of(tainted_device(3, "NoSchedule")))
    memory.put("rules", ours())
    assert memory.page(per_device=True) == {name: {} for name in LABELS}


def test_each_device_has_a_line_on_request() -> None:
    memory = Memory()
    memory.put("slices", slice_of(tainted_device(3)))
    memory.put("slices", slice_of(shapes.ultraserver_device("block-1", "trn2u.48xlarge"), node="ultra"))

    assert tuple(memory.page()) == DEFAULT
    assert memory.page(per_device=True)["neuron_device_inventory"] == {
        (NODE, "3", NODE, "neuron-device-3", "trn2.48xlarge", "2.31.7.0", "1.3.0", ""): 1,
        ("ultra", "neuron-node", "ultra", "neuron-node", "trn2u.48xlarge", "2.31.7.0", "1.3.0", "block-1"): 1,
    }


_EFFECTS = st.sampled_from(["None", "NoSchedule", "NoExecute"])
_OPTIONAL = st.sampled_from([None, "a", "b"])


@st.composite
def _slices(draw: st.DrawFn) -> Json:
    """One of three slices: two of one pool, one of another; names of devices are never in two of one pool."""
    name = draw(st.sampled_from(["s0", "s1", "s2"]))
    entries = []
    for device in draw(st.sets(st.sampled_from([f"{name}-d0", f"{name}-d1", "neuron-node"]))):
        if device == "neuron-node" and name == "s1":
            continue
        attributes = {"deviceId": {"int": int(device[-1])}} if device[-1].isdigit() and draw(st.booleans()) else {}
        taints = [{"key": "k", "effect": effect} for effect in draw(st.sets(_EFFECTS, max_size=2))]
        entries.append({"name": device, "attributes": attributes, "taints": taints})
    node = "b" if name == "s2" else "a"
    made = slice_of(*entries, node=node)
    made["metadata"]["name"] = name
    made["spec"]["pool"]["generation"] = draw(st.integers(1, 2))
    return made


@st.composite
def _claims(draw: st.DrawFn) -> Json:
    given_ = draw(st.sets(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["s0-d0", "s2-d1", "neuron-node"]))))
    drivers = st.sampled_from([DRIVER, DRIVER, "gpu.example"])
    results = [result(device, pool, draw(drivers)) for pool, device in sorted(given_)]
    pods = [{**POD, "name": name} for name in sorted(draw(st.sets(st.sampled_from(["p0", "p1"]))))]
    return raw(*results, reserved=pods, name=draw(st.sampled_from(["c0", "c1"])))


@st.composite
def _rules(draw: st.DrawFn) -> Json:
    """A record's rule, the flag on a peer, or somebody else's with any selector."""
    if draw(st.integers(0, 3)) == 0:
        return flag(draw(st.sampled_from(["a", "b"])), draw(st.sampled_from(["a", "b"])))
    if draw(st.booleans()):
        rule = ours(draw(st.sampled_from(["s0-d0", "s0-d1", "neuron-node"])), draw(st.integers(0, 1)))
        rule["spec"]["deviceSelector"]["pool"] = draw(st.sampled_from(["a", "b"]))
        rule["spec"]["taint"]["effect"] = draw(_EFFECTS)
        return rule
    selector = {
        "driver": draw(st.sampled_from([None, DRIVER, "gpu.example"])),
        "pool": draw(_OPTIONAL),
        "device": draw(st.sampled_from([None, "s0-d0", "neuron-node"])),
    }
    rule = theirs(draw(st.sampled_from(["r0", "r1"])))
    rule["spec"]["deviceSelector"] = {part: value for part, value in selector.items() if value is not None}
    return rule


_STEPS = st.one_of(
    *(
        st.tuples(st.sampled_from(["put", "put", "put", "remove", "replace"]), st.just(kind), objects)
        for kind, objects in (("slices", _slices()), ("claims", _claims()), ("rules", _rules()))
    )
)


@given(st.lists(_STEPS, max_size=25))
def test_the_page_is_what_a_plain_recomputation_gives_after_any_events(steps: list[tuple[str, str, Json]]) -> None:
    """Adds, changes, removals and lists anew, of slices, claims and rules, in any order."""
    memory = Memory()
    there: dict[str, dict[str, Json]] = {"slices": {}, "claims": {}, "rules": {}}
    for version, (step, kind, object_) in enumerate(steps, 1):
        known, name = there[kind], object_["metadata"]["name"]
        stored = versioned(object_, version, uid=known[name]["metadata"]["uid"] if name in known else f"uid-{version}")
        if step == "put":
            known[name] = stored
            memory.put(kind, stored)
        elif step == "remove":
            if name in known:
                memory.remove(kind, versioned(known.pop(name), version, stored["metadata"]["uid"]))
        else:  # a watch that was closed: what happened meanwhile comes as one list
            known.clear()
            known[name] = stored
            memory.replace(kind, known.values(), version)

        cluster = RawCluster(**{kind_: list(objects.values()) for kind_, objects in there.items()})
        assert memory.page() == {
            "neuron_devices": cluster.devices(),
            "neuron_device_taint": cluster.taints(),
            "neuron_device_consumer": cluster.consumers(),
        }


def fleet_of(nodes: int, tainted: int) -> Memory:
    """Nodes of sixteen devices, the first few with a tainted device that a pod uses."""
    memory = Memory()
    for number in range(nodes):
        name = f"node-{number}"
        entries = shapes.standalone_devices(16, "trn2.48xlarge")
        if number < tainted:
            entries[3] = tainted_device(3, "NoSchedule")
        memory.put("slices", slice_of(*entries, node=name))
        memory.put("claims", raw(result(pool=name), reserved=[POD], name=f"claim-{number}"))
    return memory


def test_a_scrape_costs_what_is_tainted_and_not_what_there_is() -> None:
    def calls(memory: Memory) -> int:
        with cProfile.Profile() as profile:
            lines = memory.page()["neuron_device_taint"]
        assert len(lines) == 20
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    small, large = fleet_of(40, 20), fleet_of(800, 20)
    calls(small)  # the first time, a few things are looked up that are remembered then
    assert calls(large) < 1.5 * calls(small)


def _kept(job: str) -> Callable[[str], bool]:
    """Tell what the shipped configuration lets through of a job's page."""
    jobs = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    (rules,) = (entry["metric_relabel_configs"] for entry in jobs if entry["job_name"] == job)
    by_name = [(rule["action"], re.compile(rule["regex"])) for rule in rules if "source_labels" in rule]
    return lambda name: all(bool(regex.fullmatch(name)) is (action == "keep") for action, regex in by_name)


def test_the_remediator_tells_what_the_cluster_holds_and_does_not_speak_for_devices() -> None:
    remediator, exporter = _kept("neuron-remediator"), _kept("neuron-exporter")
    assert [name for name in LABELS if remediator(name)] == list(DEFAULT)
    assert [
        family.name for family in FAMILIES if family.name.startswith("neuron_dev") and remediator(family.name)
    ] == []
    assert not remediator("neuron_device_taint_forged")
    assert [name for name in LABELS if exporter(name)] == []
    assert all(exporter(family.name) for family in FAMILIES)


@pytest.mark.parametrize("name", LABELS)
def test_each_series_is_public(name: str) -> None:
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert f"`{name}{{{','.join(LABELS[name])}}}`" in changelog


@dataclass
class Real:
    """A node in a real cluster, and what the page is to say of it."""

    admin: Admin
    caches: Caches
    taints: Lines = field(default_factory=dict)
    consumers: Lines = field(default_factory=dict)

    async def driver_says(self, device: Json) -> None:
        """Publish the node's slice with that device 3."""
        name = (self.admin.slice_of(NODE) or {})["metadata"]["name"]
        entries = [*shapes.standalone_devices(3, "trn2.48xlarge"), device]
        await asyncio.to_thread(self.admin.patch, "ResourceSlice", name, {"spec": {"devices": entries}})

    async def mark(self, name: str, labels: dict[str, str] | None) -> None:
        """Take our labels from a rule by hand, or put them back."""
        await asyncio.to_thread(self.admin.patch, "DeviceTaintRule", name, {"metadata": {"labels": labels}})

    async def create(self, object_: Json) -> None:
        """Make an object."""
        await asyncio.to_thread(self.admin.create, object_)

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object at once."""
        await asyncio.to_thread(self.admin.delete, kind, name, grace=0)

    async def check(self) -> None:
        """The page comes to say what is expected, which is what the API server's own objects say."""
        expected = {
            "neuron_devices": {BUILD: 4},
            "neuron_device_taint": self.taints,
            "neuron_device_consumer": self.consumers,
        }

        async def equal() -> bool:
            return page(self.caches, self.caches.records.all) == expected

        await wait_for(equal, timeout=20, what=f"a page with {sorted(self.taints)} and {sorted(self.consumers)}")
        cluster = await asyncio.to_thread(
            lambda: RawCluster(
                slices=self.admin.items("ResourceSlice"),
                claims=self.admin.items("ResourceClaim"),
                rules=self.admin.items("DeviceTaintRule"),
            )
        )
        assert (cluster.devices(), cluster.taints(), cluster.consumers()) == tuple(expected.values())


@pytest.fixture
async def real(control_plane: ControlPlane, admin: Admin) -> AsyncIterator[Real]:
    """Give a node of four devices, and the caches of a remediator with the permissions that ship."""
    install(control_plane)
    admin.node(NODE, devices=4)
    async with connect(control_plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
        assert page(caches, caches.records.all) == {name: {} for name in DEFAULT}
        async with running(caches):
            yield Real(admin, caches)


async def test_the_page_is_what_the_real_cluster_holds(real: Real) -> None:
    """A taint of the driver, a claim with its pod, a record and somebody else's rule come, and go again."""
    await real.check()
    await real.driver_says(tainted_device(3, "None"))
    by_driver = (NODE, "3", TAINT_KEY, "driver-says", "None", "driver")
    real.taints[by_driver] = 1
    await real.check()

    await asyncio.to_thread(real.admin.pod, "train", device="neuron-device-3", node=NODE)
    await asyncio.to_thread(real.admin.scheduled, "train")
    real.consumers[NODE, "3", "default", "train", "train"] = 1
    await real.check()

    owner = real.admin.get("Node", NODE)
    rule = to_object(record("link_efa", node_uid=owner["metadata"]["uid"]), "resource.k8s.io/v1")
    await real.create(rule)
    ours_ = (NODE, "3", TAINT_KEY, "link-efa-error", "NoSchedule", "record")
    real.taints[ours_] = 1
    await real.check()

    pool_wide = theirs(pool=NODE)
    await real.create(pool_wide | {"metadata": {"name": "maintenance"}})
    of_theirs = {by_rule(device): 1 for device in "0123"}
    real.taints |= of_theirs
    await real.check()

    await real.delete("DeviceTaintRule", rule["metadata"]["name"])
    del real.taints[ours_]
    await real.check()
    # The claim outlives its pod, and its controller takes the device back.
    await real.delete("Pod", "train")
    real.consumers.clear()
    await real.check()
    await real.driver_says(shapes.standalone_devices(4, "trn2.48xlarge")[3])
    del real.taints[by_driver]
    await real.check()
    await real.delete("DeviceTaintRule", "maintenance")
    real.taints.clear()
    await real.check()


async def test_a_rule_that_a_hand_takes_our_mark_from_is_somebody_elses(real: Real) -> None:
    """It taints as before, so it stays on the page, and no record stands for the fault any more."""
    owner = real.admin.get("Node", NODE)
    rule = to_object(record("link_efa", node_uid=owner["metadata"]["uid"]), "resource.k8s.io/v1")
    name, labels = rule["metadata"]["name"], rule["metadata"]["labels"]
    await real.create(rule)
    line = (NODE, "3", TAINT_KEY, "link-efa-error", "NoSchedule")
    for marks, source in ((labels, "record"), (None, "rule"), (labels, "record")):
        await real.mark(name, marks)
        real.taints = {(*line, source): 1}
        await real.check()
        assert len(tuple(real.caches.records.all())) == (source == "record")
