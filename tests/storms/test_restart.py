"""A restart with a thousand records: soon of use, and nothing is written that was not wrong before."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.remediator.samples import alert_json, body
from tests.stack.http import is_ok, request
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import WEBHOOK
from tests.storms.storm import Fault, Standing, Written, faults, seen, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

RECORDS = 1000
READY_SECONDS = 2
LEASE_SECONDS = 2
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def test_ready_soon_and_nothing_needless_is_written(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of = faults(RECORDS, fleet(16))
    with Replicas(tmp_path, control_plane, count=1, lease_seconds=LEASE_SECONDS, flags=LIFTED) as replicas:
        replicas.wait_for_leader()
        _told(replicas, of)
        before = seen(admin)
        assert len(before) == RECORDS
        for end, leads_within in ((replicas.end, READY_SECONDS), (replicas.kill, LEASE_SECONDS + READY_SECONDS)):
            end(0)
            written = Written(control_plane)
            started = _restarted(replicas, of[0])
            shown(f"restart after {end.__name__}", **started)
            assert started["ready"] - started["waited"] <= READY_SECONDS
            assert started["leads"] - started["waited"] <= leads_within
        _told(replicas, of)
        # One node that has to be lowered shows that all have been looked at by then, and no other was written.
        node = of[-1].key.node
        _opt_out(admin, node)
        after = seen(admin)
        assert _but(node, after) == _but(node, before)
        written.up_to_now(admin)
        changed = {
            (verb, kind)
            for verb, kind, name in written.everything()
            if name not in before.keys() - _but(node, before).keys()
        }
        assert changed - {("create", "events")} == {("update", "leases"), ("patch", "pods")}
        _forget_rules(admin)


def _restarted(replicas: Replicas, fault: Fault) -> dict[str, float]:
    """Start it; returns the seconds until each step, and those it has waited for a core, which others made it."""
    process = replicas.service(0).process
    offset, began = process.log_path.stat().st_size, datetime.now(UTC)
    replicas.start(0, wait=False)
    ready = _seconds_until(lambda: is_ok(f"{replicas.url(0)}/readyz"), since=began)
    waited = int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    leads = _seconds_until(lambda: _takes(replicas, fault.firing()), since=began)
    imported = _logged(process.log_path, offset, "starting", since=began)
    return {"imported": imported, "first_lists": ready - imported, "ready": ready, "leads": leads, "waited": waited}


def _but(node: str, rules: Mapping[str, Standing]) -> dict[str, Standing]:
    """Those of all other nodes."""
    return {name: rule for name, rule in rules.items() if rule.pool != node}


def _forget_rules(admin: Admin) -> None:
    """Delete all rules by one request: one for each would take longer than the test."""
    admin._send("DELETE", "/apis/resource.k8s.io/v1/devicetaintrules")


def _told(replicas: Replicas, of: Sequence[Fault]) -> None:
    """Tell of all these faults in one notification, again until it is taken."""
    alerts = (
        alert_json(started=one.started, node=one.key.node, device=str(one.key.device), fault=one.key.fault)
        for one in of
    )
    notification = body(*alerts)
    wait_until(lambda: _takes(replicas, notification), timeout=60, what="a notification of all faults to be taken")


def _takes(replicas: Replicas, notification: bytes) -> bool:
    answer = request("POST", replicas.url(0) + WEBHOOK, body=notification, headers=HEADERS, check=False)
    return answer.status == 200


def _opt_out(admin: Admin, node: str) -> None:
    """Opt a Node out, and wait until that is done to all its records."""
    admin.patch("Node", node, {"metadata": {"labels": {"neuron-remediator/opt-out": "true"}}})
    wait_until(
        lambda: {rule.state for rule in seen(admin).values() if rule.pool == node} == {"opted-out"},
        timeout=20,
        what=f"the records of {node} to be lowered",
    )


def _seconds_until(condition: Callable[[], bool], *, since: datetime) -> float:
    def met() -> bool:
        with contextlib.suppress(OSError):  # it does not listen yet
            return condition()
        return False

    wait_until(met, timeout=20, what="the restarted one to be of use")
    return (datetime.now(UTC) - since).total_seconds()


def _logged(path: Path, offset: int, message: str, *, since: datetime) -> float:
    """Seconds until that message was logged, in what was logged after that many bytes."""
    log = path.read_bytes()[offset:].decode()
    found = re.search(rf"^ts=(\S+) .*msg={message}\b", log, re.MULTILINE)
    assert found is not None, f"no line says {message}: {log}"
    return (datetime.fromisoformat(found[1]) - since).total_seconds()
