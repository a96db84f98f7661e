"""What an operator may try without harm: a dry run, which writes nothing, and a cap that disturbs nobody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remediator.records import Key
from tests.stack.http import request
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import WEBHOOK
from tests.stack.shapes import device_name, taint_rule
from tests.storms.storm import Fault, Written, expected, faults, seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

SECONDS = 20
HBM, LINK = "hbm", "link_host"
"""A latched fault and one that is not; both evict."""


def _send(replicas: Replicas, *bodies: bytes) -> None:
    """Post each, and see it answered 200."""
    for body in bodies:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request("POST", replicas.url(0) + WEBHOOK, body=body, headers=headers)


def _outcomes(replicas: Replicas) -> dict[str, float]:
    """What became of alerts so far, without what is zero."""
    page = replicas.service(0).metrics()
    return {
        labels["outcome"]: value for name, labels, value in page if name == "neuron_remediator_alerts_total" and value
    }


def test_a_dry_run_writes_nothing(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    nodes = fleet(2)
    of = faults(28, nodes)
    held = [fault for fault in of[:8] if fault.key.fault not in (HBM, "sram")][:6]
    with Replicas(tmp_path / "real", control_plane, count=1, flags=LIFTED) as real:
        real.wait_for_leader()
        _send(real, *(fault.firing() for fault in held))
    before = seen(admin)
    written = Written(control_plane)
    with Replicas(tmp_path / "dry", control_plane, count=1, lease_seconds=None, flags=("--dry-run", *LIFTED)) as dry:
        new = of[8:]
        _send(dry, *(fault.firing() for fault in new), *(fault.over() for fault in held[:5]))
        assert _outcomes(dry) == {"applied": 20.0, "cleared": 5.0}
        # Its leveller does its work too, where it imagines it.
        admin.patch("Node", nodes[1], {"metadata": {"labels": {"neuron-remediator/opt-out": "true"}}})
        page = dry.service(0)
        wait_until(
            lambda: (page.value("neuron_remediator_actions_total", action="update", result="ok") or 0) > 0,
            timeout=SECONDS,
            what="the opt-out to be imagined",
        )
        assert page.value("neuron_remediator_leader") == 0, "it must not be taken for who acts"
        # What it exports is what is in the cluster, so that no rule of Prometheus takes the imagined for held.
        names = {labels["fault"] for name, labels, _ in page.metrics() if name == "neuron_remediator_record"}
        assert names == {fault.key.fault for fault in held}
    assert seen(admin) == before == expected(held)
    written.up_to_now(admin)
    assert written.everything() == []


def test_a_cap_is_a_preview_and_lifting_it_disturbs_on_evidence_only(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    (node,) = fleet(1)
    now = datetime.now(UTC)
    link, hbm = Fault(Key(node, 0, LINK), now), Fault(Key(node, 1, HBM), now)
    for pod, device in (("job", device_name(0)), ("witness", device_name(2))):
        admin.pod(pod, device=device, template=True)
        admin.scheduled(pod)
    job = admin.get("Pod", "job")["metadata"]["uid"]

    with Replicas(tmp_path / "capped", control_plane, count=1, flags=("--max-effect=None", *LIFTED)) as capped:
        capped.wait_for_leader()
        _send(capped, link.firing(), hbm.firing())
        none = {fault.name: fault.standing()._replace(effect="None") for fault in (link, hbm)}
        assert seen(admin) == none
        _evict_witness(admin, node)
        assert _runs(admin, "job", job)

    with Replicas(tmp_path / "lifted", control_plane, count=1, flags=LIFTED) as lifted:
        lifted.wait_for_leader()
        # What is latched needs no further evidence; the other waits for it.
        waiting = none[link.name]._replace(state="withheld")
        levelled = {hbm.name: hbm.standing(), link.name: waiting}
        wait_until(lambda: seen(admin) == levelled, timeout=SECONDS, what="the cap to be lifted")
        assert _runs(admin, "job", job)
        _send(lifted, link.firing())
        assert seen(admin) == expected([link, hbm])
        admin.evicted("job")


def _evict_witness(admin: Admin, node: str) -> None:
    """Taint the other pod's device by hand and wait for its eviction: by then ours would have been evicted too."""
    rule = taint_rule("by-hand", pool=node, device=device_name(2), value="test", effect="NoExecute")
    admin.create(rule)
    admin.evicted("witness")
    admin.delete("DeviceTaintRule", "by-hand")


def _runs(admin: Admin, pod: str, uid: str) -> bool:
    metadata = admin.get("Pod", pod)["metadata"]
    return metadata["uid"] == uid and "deletionTimestamp" not in metadata
