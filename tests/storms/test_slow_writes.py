"""An API server that takes up to two seconds for each write of a rule: the Lease is kept, or handed over in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pytest

from alerts.faults import FAULTS
from remediator.records import Key
from tests.stack.controlplane import NAMESPACE
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_for
from tests.stack.replicas import LEASE, Replicas
from tests.stack.rule_watch import RuleWatch
from tests.stack.sender import Sender
from tests.stack.trouble import Trouble, but_leases
from tests.storms.storm import USER, Fault, Written, expected, faults, seen, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

LEASE_SECONDS = 3
LATCHED = "sram"
FAULTS_HELD, NEW = 60, 20
BURST = 300
PATIENCE_SECONDS = 30


class Write(NamedTuple):
    """One line of the audit log, about a write that was carried out; `agent` is the Pod it came from."""

    received: datetime
    done: datetime
    agent: str
    resource: str


def rule_writes(method: str, path: str) -> bool:
    """Only writes of records."""
    return method not in ("GET", "WATCH") and "/devicetaintrules" in path and but_leases(method, path)


def writes(control_plane: ControlPlane, since: datetime) -> list[Write]:
    """What the replicas have written, oldest first."""
    found = [
        Write(
            datetime.fromisoformat(event["requestReceivedTimestamp"]),
            datetime.fromisoformat(event["stageTimestamp"]),
            event.get("userAgent", ""),  # another test may have asked as the remediator, with none
            event["objectRef"]["resource"],
        )
        for event in control_plane.audit(user=USER)
        if event["responseStatus"]["code"] < 300
    ]
    return sorted(write for write in found if write.received > since)


def opt_out(admin: Admin, nodes: list[str], value: str | None) -> None:
    """Set or remove the label by which a Node asks to be left alone."""
    for node in nodes:
        admin.patch("Node", node, {"metadata": {"labels": {"neuron-remediator/opt-out": value}}})


@pytest.mark.parametrize("after", [0.7, 2.5])
async def test_a_leader_is_stopped_while_it_raises_what_was_opted_out(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path, after: float
) -> None:
    nodes, now = fleet(4), datetime.now(UTC)
    assert FAULTS[LATCHED].latched
    of = [Fault(Key(nodes[n % 4], n // 4, LATCHED), now) for n in range(FAULTS_HELD)]
    flags = ("--budget.max-unavailable=none", f"--budget.max-new={NEW}")
    opt_out(admin, nodes, "true")
    with (
        Replicas(tmp_path, control_plane, lease_seconds=LEASE_SECONDS, proxied=True, flags=flags) as replicas,
        RuleWatch(control_plane) as watch,
    ):
        leader = await asyncio.to_thread(replicas.wait_for_leader)
        first, second = replicas.pod(leader), replicas.pod(1 - leader)
        async with Sender(replicas.url(leader), token=TOKEN) as sender:
            await sender.send_all(fault.firing() for fault in of)
        assert Counter(one.state for one in seen(admin).values()) == {"opted-out": FAULTS_HELD}

        since = datetime.now(UTC)
        replicas.proxy(leader).storm({Trouble.DELAY: 1.0}, seed=1, where=rule_writes)
        opt_out(admin, nodes, None)
        await asyncio.sleep(after)  # no wait for anything: the instant
        await asyncio.to_thread(replicas.end, leader)
        await asyncio.to_thread(replicas.wait_for_leader, other_than=leader)

        async def raised() -> bool:
            states = Counter((one.state, one.effect) for one in watch.standing().values())
            return states == {("active", "NoExecute"): NEW, ("withheld", "None"): FAULTS_HELD - NEW}

        await wait_for(raised, timeout=PATIENCE_SECONDS, what=f"{NEW} to be raised and the others withheld")
        assert replicas.service(leader).process.returncode == 0
        assert max(watch.disturbed) == NEW
        await asyncio.to_thread(Written(control_plane).up_to_now, admin)
        seen_by_audit = writes(control_plane, since)
    taken = next(write.received for write in seen_by_audit if (write.agent, write.resource) == (second, "leases"))
    of_first = [write.done for write in seen_by_audit if (write.agent, write.resource) == (first, "devicetaintrules")]
    assert [done for done in of_first if done > taken] == []
    shown(f"stopped after {after} s of slow writes", written_before=len(of_first))


async def test_slow_writes_do_not_cost_the_lease(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path
) -> None:
    of = faults(BURST, fleet(20))
    with Replicas(tmp_path, control_plane, lease_seconds=2 * LEASE_SECONDS, proxied=True, flags=LIFTED) as replicas:
        leader = await asyncio.to_thread(replicas.wait_for_leader)
        replicas.proxy(leader).storm({Trouble.DELAY: 1.0}, seed=1, where=rule_writes)
        before = await asyncio.to_thread(admin.get, "Lease", LEASE, namespace=NAMESPACE)
        written = Written(control_plane)
        async with Sender(replicas.url(leader), token=TOKEN, connections=BURST) as sender:
            await sender.send_all(fault.firing() for fault in of)
        after = await asyncio.to_thread(admin.get, "Lease", LEASE, namespace=NAMESPACE)
        shown("slow writes", statuses=dict(sender.statuses()))
        assert all(delivery.accepted for delivery in sender.deliveries)
        assert seen(admin) == expected(of)
        assert max((await asyncio.to_thread(written.up_to_now, admin)).values()) == 1
    held = [(lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) for lease in (before, after)]
    assert held[0] == held[1]
