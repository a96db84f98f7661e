"""Claims as they travel → who uses which device: only ours, only the names, and right after any sequence of events."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator import claims as claims_module
from remediator.caches import Caches
from remediator.claims import Claim, ClaimObject, ClaimReader, Claims, Consumer, Holding
from remediator.cluster import connect
from remediator.targets import NodeTarget, Place, Target
from tests.remediator.fakes import eventually
from tests.remediator.live import USER, running
from tests.remediator.samples import DRIVER, NODE, Json
from tests.stack import shapes
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

DEVICE = "neuron-device-3"
POD = {"resource": "pods", "name": "train-0", "uid": "u"}
POD_GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "u"}


def result(device: str = DEVICE, pool: str = NODE, driver: str = DRIVER) -> Json:
    """One device that was given to a claim."""
    return {"request": "neurons", "driver": driver, "pool": pool, "device": device}


def raw(*results: Json, reserved: list[Json] | None = None, name: str = "train", namespace: str = "ml") -> Json:
    """A claim as the API server writes it, with what the scheduler has added."""
    claim = shapes.claim(name, shapes.claim_spec(1, None, ()))
    claim["metadata"] |= {"namespace": namespace, "uid": "claim-uid", "resourceVersion": "5"}
    claim["status"] = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    if reserved:
        claim["status"]["reservedFor"] = reserved
    return claim


def read(claim: Json, reader: ClaimReader | None = None) -> Claim:
    """The same as it is kept."""
    wide = msgspec.json.decode(msgspec.json.encode(claim), type=ClaimObject)
    return (reader or ClaimReader(DRIVER))(wide)


@pytest.mark.parametrize(
    ("claim", "holdings", "pods"),
    [
        pytest.param(raw(result(), reserved=[POD]), {NODE: (DEVICE,)}, ("train-0",), id="used"),
        pytest.param(raw(result()), {NODE: (DEVICE,)}, (), id="held-only"),
        pytest.param(
            raw(result("b"), result("a"), result("c", "pool-2"), reserved=[{**POD, "name": "z"}, POD]),
            {NODE: ("a", "b"), "pool-2": ("c",)},
            ("train-0", "z"),
            id="several",
        ),
        pytest.param(raw(result(), result(driver="gpu.example"), reserved=[POD]), {NODE: (DEVICE,)}, ("train-0",)),
        pytest.param(raw(result(driver="gpu.example"), reserved=[POD]), {}, (), id="another-driver"),
        pytest.param(raw(result(), reserved=[POD_GROUP]), {NODE: (DEVICE,)}, (), id="a-pod-group-is-no-pod"),
        pytest.param(
            raw(result(), reserved=[{**POD, "apiGroup": "example.com"}]), {NODE: (DEVICE,)}, (), id="pods-of-others"
        ),
        pytest.param(raw(result(), reserved=[POD_GROUP, POD]), {NODE: (DEVICE,)}, ("train-0",), id="both"),
        pytest.param(raw(result(), result()), {NODE: (DEVICE,)}, (), id="shared-by-two-requests"),
        pytest.param(raw(), {}, (), id="pending"),
        pytest.param({"metadata": {"name": "n", "namespace": "m"}}, {}, (), id="no-status"),
        pytest.param(raw() | {"status": {"allocation": None, "reservedFor": None}}, {}, (), id="nulls"),
        pytest.param(raw() | {"status": {"allocation": {"devices": {}}}}, {}, (), id="nothing-given"),
    ],
)
def test_claims_are_read_as_the_api_server_writes_them(
    claim: Json, holdings: dict[str, tuple[str, ...]], pods: tuple[str, ...]
) -> None:
    kept = read(claim)
    assert {one.pool: one.devices for one in kept.holdings} == holdings
    assert kept.pods == pods


def test_what_many_claims_say_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet has a hundred thousand claims, and few pools, namespaces and kinds of lists of devices."""
    reader = ClaimReader(DRIVER)
    one, other = (read(raw(result("a"), result("b"), name=name), reader) for name in ("one", "two"))
    assert one.namespace is other.namespace
    assert one.holdings[0].pool is other.holdings[0].pool
    assert one.holdings[0].devices is other.holdings[0].devices

    monkeypatch.setattr(claims_module, "_REMEMBERED", 10)
    for number in range(100):
        read(raw(result(f"device-{number}", f"pool-{number}")), reader)
    assert max(len(reader._texts), len(reader._lists)) <= 10


def test_each_pod_of_each_claim_is_a_consumer() -> None:
    told: list[tuple[str, set[str]]] = []
    claims = Claims(on_change=lambda pool, devices: told.append((pool, set(devices))))
    claims.put(read(raw(result(), reserved=[POD, {**POD, "name": "train-1"}])))
    claims.put(read(raw(result(), name="observer", namespace="ops")))

    assert claims.consumers(Place(NODE, DEVICE)) == (
        Consumer("ml", "train", "train-0"),
        Consumer("ml", "train", "train-1"),
        Consumer("ops", "observer", ""),
    )
    assert claims.consumers(Place(NODE, "neuron-device-4")) == ()
    assert claims.consumers(Place("elsewhere", DEVICE)) == ()
    assert claims.devices_of(NODE) == {DEVICE}
    assert claims.devices_of("elsewhere") == frozenset()
    assert told == [(NODE, {DEVICE})]  # the second claim holds nothing new


def test_a_claim_that_gives_its_device_back_is_forgotten() -> None:
    """Its event comes without an allocation: what it held before must be known, and nothing may stay behind."""
    claims = Claims()
    claims.put(read(raw(result(), reserved=[POD])))
    claims.put(read(raw(result(), reserved=[POD])))  # the same again, as another object
    claims.put(read(raw()))

    assert claims.consumers(Place(NODE, DEVICE)) == ()
    assert not claims._claims
    assert not claims._by_pool


def test_a_deleted_claim_is_forgotten_whatever_its_last_state_says() -> None:
    claims = Claims()
    claims.remove(read(raw(result())))
    claims.put(read(raw(result())))
    claims.remove(read(raw(result("neuron-device-9"))))
    assert claims.devices_of(NODE) == frozenset()
    assert not claims._claims


_names = st.sampled_from(["one", "two", "three"])
_holdings = st.dictionaries(
    st.sampled_from(["pool-a", "pool-b"]),
    st.frozensets(st.sampled_from(["d0", "d1", "d2"]), min_size=1).map(lambda devices: tuple(sorted(devices))),
).map(lambda held: tuple(Holding(pool, devices) for pool, devices in sorted(held.items())))
_claims = st.builds(
    Claim,
    namespace=st.sampled_from(["x", "y"]),
    name=_names,
    holdings=_holdings,
    pods=st.frozensets(_names).map(lambda pods: tuple(sorted(pods))),
)
_events = st.one_of(
    st.tuples(st.just("put"), _claims),
    st.tuples(st.just("remove"), _claims),
    st.tuples(st.just("replace"), st.lists(_claims, unique_by=lambda claim: (claim.namespace, claim.name))),
)


@given(st.lists(_events, max_size=12))
def test_it_says_what_the_claims_say_after_any_events(events: list[tuple[str, Any]]) -> None:
    held: dict[str, set[str]] = {"pool-a": set(), "pool-b": set()}

    def change(pool: str, devices: Any) -> None:
        held[pool] ^= devices

    claims, known = Claims(on_change=change), dict[tuple[str, str], Claim]()
    for kind, given_ in events:
        getattr(claims, kind)(*((given_, "1") if kind == "replace" else (given_,)))
        if kind == "replace":
            known = {(claim.namespace, claim.name): claim for claim in given_}
        else:
            known.pop((given_.namespace, given_.name), None)
        if kind == "put":
            known[given_.namespace, given_.name] = given_

        for pool, devices_held in held.items():
            holders = [(claim, one.devices) for claim in known.values() for one in claim.holdings if one.pool == pool]
            assert claims.devices_of(pool) == devices_held == {device for _, devices in holders for device in devices}
            for device in ("d0", "d1", "d2"):
                assert sorted(claims.consumers(Place(pool, device))) == sorted(
                    Consumer(claim.namespace, claim.name, pod)
                    for claim, devices in holders
                    if device in devices
                    for pod in claim.pods or ("",)
                )
    claims.replace([], "2")
    assert not claims._claims
    assert not claims._by_pool


async def test_without_a_slice_claims_say_where_a_device_is(control_plane: ControlPlane, admin: Admin) -> None:
    """The kubelet wipes the slices of its node when it starts: what a claim holds is there nevertheless."""
    install(control_plane)
    admin.node(NODE, ultraserver="block-1")
    admin.pod("train", node=NODE)
    await asyncio.to_thread(admin.scheduled, "train")
    changes: list[None] = []
    async with connect(control_plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic, on_change=lambda: changes.append(None))
        async with running(caches):
            slice_ = admin.slice_of(NODE)
            assert slice_ is not None
            await asyncio.to_thread(admin.delete, "ResourceSlice", slice_["metadata"]["name"])
            await eventually(lambda: NODE not in caches.inventory.nodes(), what="the slice to be gone")
            assert caches.locate(NODE, 5) == Target(DRIVER, NODE, "neuron-node")

            changes.clear()
            await asyncio.to_thread(admin.delete, "Pod", "train", grace=0)
            await eventually(lambda: changes, what="the end of the claim's hold to be told")
            located = caches.locate(NODE, 5)
            assert isinstance(located, NodeTarget)
            assert (located.node, located.placed) == (NODE, False)
            assert located.device == Target(DRIVER, NODE, "neuron-device-5", placed=False)


async def test_where_slices_list_the_devices_claims_change_no_decision(
    control_plane: ControlPlane, admin: Admin
) -> None:
    """Pods come and go all day: none of that may have every record looked at."""
    install(control_plane)
    admin.node(NODE)
    changes: list[None] = []
    async with connect(control_plane.kubeconfig(USER)) as api:
        caches = Caches(api, driver=DRIVER, elapsed=time.monotonic, on_change=lambda: changes.append(None))
        async with running(caches):
            changes.clear()
            await asyncio.to_thread(admin.pod, "train", 16, node=NODE)
            await eventually(lambda: len(caches.claims.devices_of(NODE)) == 16, what="the claim")
    assert changes == []


async def test_nothing_is_ready_before_the_claims_are_listed(control_plane: ControlPlane, admin: Admin) -> None:
    """An installation whose permissions are older than the remediator says what it waits for, and goes on by itself."""
    install(control_plane)
    role = admin.get("ClusterRole", USER)
    older = [rule for rule in role["rules"] if rule["resources"] != ["resourceclaims"]]
    admin.patch("ClusterRole", USER, {"rules": older})
    try:
        async with connect(control_plane.kubeconfig(USER)) as api, asyncio.TaskGroup() as group:
            caches = Caches(api, driver=DRIVER, elapsed=time.monotonic)
            task = group.create_task(caches.run())
            reason = "waiting for a list of resourceclaims"
            await eventually(lambda: caches.not_ready() == reason, what="everything but the claims")
            admin.patch("ClusterRole", USER, {"rules": role["rules"]})
            await wait_for(lambda: _ready(caches), timeout=20, what="the claims")
            task.cancel()
    finally:
        admin.patch("ClusterRole", USER, {"rules": role["rules"]})


async def _ready(caches: Caches) -> bool:
    return caches.not_ready() is None
