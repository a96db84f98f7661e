"""Symptoms people met with taints of Nodes and with device taints, each as a test of what is right here.

Groups H and I of the reports; the others are in `tests/remediator/test_public_reports.py`. All of it is on real control
planes, 1.37 with rules and 1.36 as its defaults are, or names the test that is. Where a report asks for another
mechanism, the end state is tested and the docstring of the test says so.

case 106: tests/remediator/test_public_reports_taints.py::test_what_came_between_read_and_write_is_kept,
    tests/storms/test_interleavings.py::test_a_thousand_turns_with_another_writer_and_none_is_lost
case 108: tests/remediator/test_public_reports_taints.py::test_a_node_without_taints
case 110: tests/remediator/test_public_reports_taints.py::test_the_times_of_taints
case 112: tests/remediator/test_public_reports_taints.py::test_five_conflicts_and_then_success, test_conflicts_for_ever
case 114: tests/remediator/test_public_reports_taints.py::test_watches_that_expire_end_or_fall_silent
case 116: tests/remediator/test_public_reports_taints.py::test_no_identity_no_rule, test_every_selector_is_complete
case 118: tests/remediator/test_public_reports_taints.py::test_a_raised_effect_is_one_patch
case 120: tests/remediator/test_public_reports_taints.py::test_no_rules_served, test_rules_served_in_one_version
case 122: tests/remediator/test_public_reports_taints.py::test_only_a_clean_reading_clears
case 124: tests/remediator/test_public_reports_taints.py::test_a_failed_write_is_tried_again_without_another_event
case 126: tests/remediator/test_public_reports_taints.py::test_a_slice_that_vanishes_is_no_clean_reading
case 128: tests/remediator/test_public_reports_taints.py::test_the_drivers_taint_and_our_rule_on_one_device
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from alerts.faults import FAULTS, Effect
from exporter.service.flags import UsageError
from remediator.errors import ConflictError, Refusal, UnavailableError
from remediator.placement import Choice
from remediator.policy import Policy
from remediator.records import Key
from remediator.rule_records import object_name
from remediator.settings import read
from remediator.targets import Target
from tests.remediator.fakes import eventually
from tests.remediator.live import firing
from tests.remediator.on_cluster import OnCluster, on_cluster
from tests.remediator.samples import DRIVER, NODE, TAINT_KEY, Json, alert_json
from tests.stack.apiproxy import ApiProxy
from tests.stack.controlplane import ControlPlane
from tests.stack.kube import Admin
from tests.stack.trouble import Trouble
from tests.storms.on_nodes import ANNOTATION, as_it_was, becomes, ours, records, settled_node, without_time
from tests.storms.storm import USER, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.cluster import Api
    from tests.remediator.conftest import Service
    from tests.stack.nodes import Taint
    from tests.stack.shapes import Object

NUMBERS = {*range(106, 129, 2)}
"""The reports of the groups that the table above is about."""

LINK, HBM = FAULTS["link_efa"], FAULTS["hbm"]


def test_the_test_of_each_report_is_where_the_table_says() -> None:
    root = Path(__file__).parents[2]
    cases = re.split(r"^case (\d+): ", __doc__ or "", flags=re.MULTILINE)[1:]
    assert sorted(map(int, cases[::2])) == sorted(NUMBERS)
    for number, where in zip(cases[::2], cases[1::2], strict=True):
        file, names = "", re.findall(r"tests/\w+/\w+\.py|test_\w+(?!\.py)\b", where)
        for name in names:
            if name.endswith(".py"):
                file = (root / name).read_text(encoding="utf-8")
            else:
                assert f"def {name}(" in file, f"case {number}: no test {name}"
        assert len(names) >= 2, f"case {number} names no test"


KeptBy = Mapping[str, tuple[ControlPlane, Admin]]


@pytest.fixture
def kept_by(control_plane: ControlPlane, admin: Admin, bare_plane: ControlPlane, bare_admin: Admin) -> KeptBy:
    """Give a cluster where records are rules, and one where they are on Nodes."""
    return {"rule": (control_plane, admin), "node": (bare_plane, bare_admin)}


async def there(call: Callable[..., Any], *arguments: Any) -> Any:
    """Do something in the cluster, while the loop goes on."""
    return await asyncio.to_thread(call, *arguments)


def rule_of(admin: Admin, fault: str = "hbm", device: int = 3) -> Object:
    """The rule of a fault, as the API server has it."""
    return admin.get("DeviceTaintRule", object_name(Key(NODE, device, fault)))


def clear(remediator: OnCluster, fault: str = "link_efa", device: int = 3) -> Json:
    """The alert that the very spell which is recorded is over."""
    record = remediator.record(fault, device)
    assert record is not None, f"there is no record of {fault} on device {device}"
    names = {"alertname": "NeuronDeviceFaultCleared", "remediation": "clear", "severity": "none"}
    return firing(**names, fault=fault, device=str(device), episode=record.episode)


def effect(remediator: OnCluster) -> str | None:
    """The effect that the memory fault of device 3 has, as the remediator knows it."""
    record = remediator.record()
    return str(record.taint.effect) if record else None


def opted_out(remediator: OnCluster) -> bool:
    """Whether the remediator knows that the Node is opted out."""
    node = remediator.caches.known_node(NODE)
    return node is not None and node.opted_out


# Public reports: taints of Nodes


class Between:
    """Has something happen right before a request of ours is sent: `first`, then each time the next of `errors`."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch, method: str = "merge") -> None:
        self.first: Callable[[], object] | None = None
        self.errors: list[Exception] = []
        self.for_ever: Exception | None = None
        self.sent = 0
        self._send = getattr(api, method)
        monkeypatch.setattr(api, method, self._meddle)

    async def _meddle(self, *arguments: Any, **named: Any) -> Any:
        self.sent += 1
        if self.first is not None:
            happens, self.first = self.first, None
            await there(happens)
        if self.for_ever is not None or self.errors:
            raise self.for_ever or self.errors.pop(0)
        return await self._send(*arguments, **named)


@pytest.mark.parametrize("step", ["raise", "remove"])
async def test_what_came_between_read_and_write_is_kept(
    bare_plane: ControlPlane, bare_admin: Admin, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Even kube-controller-manager lost a taint by GET, then PATCH (case 106: kubernetes#128304)."""
    await there(settled_node, bare_admin, NODE)
    async with on_cluster(bare_plane) as remediator:
        between = Between(remediator.api, monkeypatch)
        alert = firing(fault="link_efa")
        if step == "remove":
            assert await remediator.post(alert) == 200
            alert = clear(remediator)
        between.sent, between.first = 0, lambda: bare_admin.taint_node(NODE, "example.com/new", "NoExecute", "1")
        assert await remediator.post(alert) == 200
        assert between.sent == 2, "the one that was based on what is past, and the one that counts"
    taints = await there(bare_admin.node_taints, NODE)
    new = {"key": "example.com/new", "value": "1", "effect": "NoExecute"}
    mine = {"key": TAINT_KEY, "value": LINK.value, "effect": "NoSchedule"}
    assert without_time(taints) == ([new] if step == "remove" else [new, mine])


@pytest.mark.parametrize("before", ["absent", None, []], ids=["absent", "null", "empty"])
async def test_a_node_without_taints(bare_plane: ControlPlane, bare_admin: Admin, before: object) -> None:
    """A JSON Patch fails where spec.taints does not exist (case 108: claudie PR 1819)."""
    node = await there(settled_node, bare_admin, NODE)
    if before != "absent":
        node = await there(bare_admin.patch, "Node", NODE, {"spec": {"taints": before}})
    async with on_cluster(bare_plane) as remediator:
        assert await remediator.post(firing(fault="link_efa")) == 200
        assert await there(ours, bare_admin, NODE) == [(LINK.value, "NoSchedule")]
        assert await remediator.post(clear(remediator)) == 200
    after = await there(bare_admin.get, "Node", NODE)
    assert as_it_was(after) == as_it_was(node)
    assert "taints" not in after["spec"]


async def test_the_times_of_taints(bare_plane: ControlPlane, bare_admin: Admin) -> None:
    """A timeAdded on a taint broke another controller (case 110: rancher#51795, #51799)."""
    theirs: list[Taint] = [
        {"key": "example.com/with", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
        {"key": "example.com/without", "effect": "NoSchedule"},
        {"key": "example.com/with", "effect": "NoSchedule", "timeAdded": "2020-02-29T23:59:59Z"},
    ]
    await there(settled_node, bare_admin, NODE)
    before = (await there(bare_admin.patch, "Node", NODE, {"spec": {"taints": theirs}}))["spec"]["taints"]
    async with on_cluster(bare_plane) as remediator:
        for fault in ("link_efa", "hbm", "link_efa"):
            assert await remediator.post(firing(fault=fault)) == 200
            *others, mine = await there(bare_admin.node_taints, NODE)
            assert others == before
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", mine["timeAdded"])
        assert await remediator.post(clear(remediator)) == 200
    assert (await there(bare_admin.node_taints, NODE))[:-1] == before


CONFLICT = ConflictError("the object has been modified")


async def test_five_conflicts_and_then_success(
    bare_plane: ControlPlane, bare_admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """409 on busy nodes (case 112: rancher/dashboard#679, rancher PR 15635)."""
    await there(settled_node, bare_admin, NODE)
    async with on_cluster(bare_plane) as remediator:
        between = Between(remediator.api, monkeypatch)
        between.errors = [CONFLICT] * 5
        assert await remediator.post(firing(fault="link_efa")) == 200
        assert between.sent == 6
        written = {"action": "create", "backend": "node-taint"}
        assert remediator.count("actions", **written, result="conflict") == 5
        assert remediator.count("actions", **written, result="ok") == 1
    assert await there(ours, bare_admin, NODE) == [(LINK.value, "NoSchedule")]


async def test_conflicts_for_ever(bare_plane: ControlPlane, bare_admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bound the sender is told to come again, and what is done by nobody's asking waits for the next look.

    Alertmanager is the queue, and NeuronDeviceFaultNotHeld is the alarm (case 112: rancher/dashboard#679, PR 15635).
    """
    await there(settled_node, bare_admin, NODE)
    async with on_cluster(bare_plane, sweeps=False) as remediator:
        between = Between(remediator.api, monkeypatch)
        between.for_ever = CONFLICT
        for _ in range(2):
            between.sent = 0
            assert await asyncio.wait_for(remediator.post(firing(fault="link_efa")), 8) == 503
            assert between.sent == 6
        assert remediator.record("link_efa") is None, "nothing holds it, so the rules say so"
        assert ANNOTATION not in (await there(bare_admin.get, "Node", NODE))["metadata"]["annotations"]
        between.for_ever = None
        assert await remediator.post(firing(fault="hbm")) == 200

        between.sent, between.for_ever = 0, CONFLICT
        await there(bare_admin.untaint_node, NODE, TAINT_KEY)
        await eventually(lambda: effect(remediator) == "None", what="the hand to be seen")
        await remediator.parts.leveller.sweep()
        assert between.sent == 1
        between.for_ever = None
        await remediator.parts.leveller.sweep()
    assert await there(ours, bare_admin, NODE) == [(HBM.value, "NoSchedule")]


async def test_watches_that_expire_end_or_fall_silent(
    bare_plane: ControlPlane, bare_admin: Admin, tmp_path: Path
) -> None:
    """A watch ends with 410, or with nothing in a loop, or stops (case 114: python-base#57, python#728, k8s#104171).

    Here every watch is answered 410: what a hand does is seen all the same, by lists, and those are not asked for in a
    busy loop. Other kinds of trouble, ten minutes of silence among them, are in `tests/remediator/test_listwatch.py`.
    """
    await there(settled_node, bare_admin, NODE)
    with ApiProxy(bare_plane, tmp_path) as proxy:
        async with on_cluster(bare_plane, kubeconfig=proxy.kubeconfig()) as remediator:
            assert await remediator.post(firing()) == 200
            proxy.storm({Trouble.WATCH_GONE: 1.0}, seed=1)
            began, before = time.monotonic(), len(lists(bare_plane))
            for _ in range(2):
                await there(bare_admin.untaint_node, NODE, TAINT_KEY)
                await there(becomes, lambda: ours(bare_admin, NODE), [(HBM.value, "NoSchedule")], "the taint to return")
            took, asked = time.monotonic() - began, len(lists(bare_plane)) - before
            assert COLLECTIONS < asked < COLLECTIONS * (1 + took / SHORTEST_PAUSE_SECONDS)


COLLECTIONS, SHORTEST_PAUSE_SECONDS = 3, 0.1


def lists(plane: ControlPlane) -> list[Object]:
    """The lists that the remediator has asked for."""
    return plane.audit(user=USER, verbs=("list",))


# Public reports: device taints


@pytest.mark.parametrize("missing", ["node", "device", "fault"])
@pytest.mark.parametrize("text", ["", None, "*", " "])
async def test_no_identity_no_rule(service: Service, missing: str, text: str | None) -> None:
    """A rule with an empty selector evicted every pod in the cluster (case 116: kubernetes#141422).

    A driver cannot be left out of an alert: it is the one of the flag, which may not be empty.
    """
    alert = alert_json()
    alert["labels"] = {name: value for name, value in (alert["labels"] | {missing: text}).items() if value is not None}
    assert await service.post(alert) == 200
    assert service.backend.writes == []
    device = "neuron-device-3"
    for part, parts in {
        "driver": ("", NODE, device),
        "pool": (DRIVER, "", device),
        "device": (DRIVER, NODE, ""),
    }.items():
        with pytest.raises(ValueError, match=f"`{part}` is empty"):
            Target(*parts)
    with pytest.raises(UsageError, match="driver"):
        read(["--driver=", "--webhook.allow-anonymous"], {})


async def test_every_selector_is_complete(control_plane: ControlPlane, admin: Admin) -> None:
    """What is written has all three parts, wherever the device was found (case 116: kubernetes#141422).

    That nothing else can be written, a property in `tests/remediator/test_records.py` says.
    """
    await there(admin.node, NODE, 2)
    async with on_cluster(control_plane, choice=Choice.RULES) as remediator:
        for device in ("0", "1", "2"):
            assert await remediator.post(firing(device=device)) == 200
    selectors = [rule["spec"]["deviceSelector"] for rule in await there(admin.rules)]
    assert selectors == [{"driver": DRIVER, "pool": NODE, "device": f"neuron-device-{n}"} for n in range(3)]


async def test_a_raised_effect_is_one_patch(control_plane: ControlPlane, admin: Admin) -> None:
    """A timeAdded moves when the effect changes (case 118: kubernetes PR 137167).

    The policy changes by `--max-effect`. timeAdded moves with the effect, once and rightly: who tolerates NoExecute for
    some seconds has not been able to count them before. Neither repeats nor another restart move it again.
    """
    await there(settled_node, admin, NODE, 16)
    alert = firing()
    async with on_cluster(
        control_plane, policy=Policy(taint_key=TAINT_KEY, max_effect=Effect.NO_SCHEDULE)
    ) as remediator:
        assert await remediator.post(alert) == 200
    before = await there(rule_of, admin)
    old = {"spec": {"taint": {"timeAdded": "2026-01-02T03:04:05Z"}}}
    before = await there(admin.patch, "DeviceTaintRule", before["metadata"]["name"], old)
    written = Written(control_plane)
    for _ in range(2):
        async with on_cluster(control_plane) as remediator:
            await eventually(lambda: effect(remediator) == "NoExecute", what="the raise")
            for _ in range(10):
                assert await remediator.post(alert) == 200
    after = await there(rule_of, admin)
    assert await there(written.up_to_now, admin) == {("patch", after["metadata"]["name"]): 1}
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert {**after["spec"]["taint"], "timeAdded": ""} == {
        **before["spec"]["taint"],
        "timeAdded": "",
        "effect": "NoExecute",
    }
    assert after["spec"]["taint"]["timeAdded"] > "2026-11"
    kept = ("uid", "labels", "annotations", "ownerReferences")
    assert [after["metadata"][name] for name in kept] == [before["metadata"][name] for name in kept]


async def test_no_rules_served(bare_plane: ControlPlane, bare_admin: Admin) -> None:
    """The API for rules is gated apart, and off in 1.36 (case 120: kubernetes#140179, PR 135068).

    With rules alone wanted, it says so and sends everybody away with 503, as a later answer may be another one.
    """
    await there(settled_node, bare_admin, NODE, 16)
    async with on_cluster(bare_plane, choice=Choice.RULES, ready=False) as remediator:
        said = "the API server serves no version of DeviceTaintRule; expected one, or --backend=auto"
        await eventually(lambda: remediator.caches.not_ready() == said, what="it to say what it lacks")
        assert await remediator.post(firing()) == 503
    assert records(await there(bare_admin.get, "Node", NODE)) == {}
    async with on_cluster(bare_plane) as remediator:
        assert await remediator.post(firing()) == 200
    assert await there(ours, bare_admin, NODE) == [(HBM.value, "NoSchedule")]


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
async def test_rules_served_in_one_version(
    control_plane: ControlPlane, admin: Admin, beta_plane: ControlPlane, beta_admin: Admin, version: str
) -> None:
    """Served as one version only, each is found and used (case 120: kubernetes#140179, PR 135068)."""
    plane, admin = {"v1": (control_plane, admin), "v1beta2": (beta_plane, beta_admin)}[version]
    await there(settled_node, admin, NODE, 16)
    async with on_cluster(plane) as remediator:
        assert await remediator.post(firing(fault="link_efa"), firing()) == 200
        assert [rule["spec"]["taint"]["value"] for rule in await there(admin.rules)] == [HBM.value, LINK.value]
        assert (await there(rule_of, admin))["apiVersion"] == f"resource.k8s.io/{version}"
        assert await remediator.post(clear(remediator)) == 200
    assert [rule["spec"]["taint"]["value"] for rule in await there(admin.rules)] == [HBM.value]
    assert (await there(admin.get, "Node", NODE))["spec"].get("taints", []) == []


@pytest.mark.parametrize("by", ["rule", "node"])
async def test_only_a_clean_reading_clears(kept_by: KeptBy, by: str) -> None:
    """A recovery loop must keep the taint when its query fails (case 122: dra-driver-nvidia-gpu#1455).

    Here the query is the exporter's reading, and its answer the alert that names the spell. No answer is no alert, or a
    resolved one; an answer that the fault is there is a firing. That readings which are old or lost send no clear, the
    rules' own tests and `tests/stories/test_stories.py::test_s4_silence_changes_nothing` say.
    """
    plane, admin = kept_by[by]
    await there(settled_node, admin, NODE, 16)

    def tainted() -> bool:
        return bool(ours(admin, NODE) if by == "node" else admin.rules())

    async with on_cluster(plane) as remediator:
        alert = firing(fault="link_efa")
        assert await remediator.post(alert) == 200
        over = clear(remediator)
        timed_out = alert | {"status": "resolved", "endsAt": alert["startsAt"]}
        other_spell = over | {"labels": over["labels"] | {"episode": "another"}}
        for kept in (timed_out, alert, other_spell, over | {"status": "resolved"}, firing(fault="link_efa")):
            assert await remediator.post(kept) == 200
            assert await there(tainted)
        assert await remediator.post(over) == 200
        assert await there(tainted), "it has begun anew since that reading"
        assert await remediator.post(clear(remediator)) == 200
        assert not await there(tainted)


REFUSED = UnavailableError(Refusal.SERVER_ERROR, "PATCH: 500 Internal Server Error")


@pytest.mark.parametrize(("by", "method"), [("rule", "create"), ("node", "merge")])
async def test_a_failed_write_is_tried_again_without_another_event(
    kept_by: KeptBy, monkeypatch: pytest.MonkeyPatch, by: str, method: str
) -> None:
    """One failure of the API left a stale state, as nothing tried again (case 124: dra-driver-nvidia-gpu#904).

    What was asked for is answered with 503, and Alertmanager asks again until it is done; what nobody asks for is done
    by the next look at all records, which comes by itself.
    """
    plane, admin = kept_by[by]
    await there(settled_node, admin, NODE, 16)
    async with on_cluster(plane, sweeps=False) as remediator:
        between = Between(remediator.api, monkeypatch, method)
        between.errors = [REFUSED]
        alert = firing()
        assert await remediator.post(alert) == 503
        assert await remediator.post(alert) == 200
        assert between.sent == 2

        lowers = Between(remediator.api, monkeypatch, {"rule": "apply", "node": "merge"}[by])
        lowers.errors = [REFUSED]
        await there(admin.patch, "Node", NODE, {"metadata": {"labels": {"neuron-remediator/opt-out": "true"}}})
        await eventually(lambda: opted_out(remediator), what="the label to be seen")
        for wanted in ("NoSchedule" if by == "node" else "NoExecute", "None"):
            await remediator.parts.leveller.sweep()
            assert effect(remediator) == wanted
        assert lowers.sent == 2


async def test_a_slice_that_vanishes_is_no_clean_reading(control_plane: ControlPlane, admin: Admin) -> None:
    """A kubelet that starts deletes the slices, and sometimes they do not return (case 126: gpu#330, k8s PR 125163).

    The rule stays as it is, as a rule taints what a slice will list again. Only what has no record yet goes to the Node
    meanwhile, and becomes a rule when the slice is back.
    """
    await there(settled_node, admin, NODE, 16)
    async with on_cluster(control_plane) as remediator:
        alerts = [firing(), firing(fault="link_efa", device="4")]
        assert await remediator.post(*alerts) == 200
        before = await there(admin.rules)
        await there(admin.wipe_slice, NODE)
        await eventually(lambda: not remediator.caches.inventory.nodes(), what="the loss to be seen")
        for _ in range(2):
            await remediator.parts.leveller.sweep()
            assert await remediator.post(*alerts) == 200
        assert await there(admin.rules) == before
        assert await there(ours, admin, NODE) == []

        assert await remediator.post(firing(fault="link_efa", device="5")) == 200
        assert await there(ours, admin, NODE) == [(LINK.value, "NoSchedule")]
        assert await there(admin.rules) == before
        await there(admin.publish_slice, NODE)
        await there(becomes, lambda: ours(admin, NODE), [], "the Node to be free again")
        kept = [
            rule for rule in await there(admin.rules) if rule["metadata"]["labels"]["neuron-remediator/device"] != "5"
        ]
        assert kept == before
        assert (await there(rule_of, admin, "link_efa", 5))["spec"]["taint"]["effect"] == "NoSchedule"


@pytest.mark.parametrize(
    ("theirs", "state"), [("NoExecute", "covered"), ("NoSchedule", "active")], ids=["as-strong", "weaker"]
)
async def test_the_drivers_taint_and_our_rule_on_one_device(
    control_plane: ControlPlane, admin: Admin, theirs: str, state: str
) -> None:
    """Several taints on one device, and who may take which away (case 128: enhancements PR 5512).

    Both have one key, so that one toleration is for both; ours is told by its owner's mark, and it is an object of its
    own. Where the driver's is at least as strong ours has no effect.
    """
    await there(settled_node, admin, NODE, 16)
    device = "neuron-device-3"
    await there(admin.driver_taint, NODE, device, "driver-says", theirs)
    listed = (await there(admin.slice_of, NODE))["spec"]
    async with on_cluster(control_plane) as remediator:
        assert await remediator.post(firing(fault="link_host")) == 200
        rule = await there(rule_of, admin, "link_host")
        assert rule["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "neuron-remediator"
        assert rule["metadata"]["annotations"]["neuron-remediator/state"] == state
        assert rule["spec"]["taint"]["effect"] == ("None" if state == "covered" else "NoExecute")
        assert await remediator.post(clear(remediator, "link_host")) == 200
    assert await there(admin.rules) == []
    assert (await there(admin.slice_of, NODE))["spec"] == listed
    assert control_plane.audit(user=USER, resource="resourceslices") == []
