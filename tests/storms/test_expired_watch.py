"""Watches that the API server ends with 410: the caches list anew and miss nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.stack.http import request
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import wait_until
from tests.stack.replicas import Replicas
from tests.stack.sender import WEBHOOK
from tests.stack.trouble import Trouble
from tests.storms.storm import USER, expected, faults, seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.storms.storm import Fault

SECONDS = 20
WATCHED = {"nodes", "resourceslices", "resourceclaims", "devicetaintrules"}


@pytest.mark.parametrize("kind", [Trouble.WATCH_GONE, Trouble.WATCH_ERROR])
def test_what_happened_meanwhile_is_noticed_and_told(
    control_plane: ControlPlane, admin: Admin, fleet: Callable[[int], list[str]], tmp_path: Path, kind: Trouble
) -> None:
    of = faults(3, fleet(1))
    with Replicas(tmp_path, control_plane, count=1, proxied=True, flags=LIFTED) as replicas:
        replicas.wait_for_leader()
        proxy = replicas.proxy(0)

        def send(fault: Fault) -> None:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            request("POST", replicas.url(0) + WEBHOOK, body=fault.firing(), headers=headers)

        def records() -> set[str]:
            page = replicas.service(0).metrics()
            return {labels["fault"] for name, labels, _ in page if name == "neuron_remediator_record"}

        for fault in of[:2]:
            send(fault)
        lists = _lists(control_plane)
        proxy.storm({kind: 1.0}, seed=1)
        wait_until(lambda: (_lists(control_plane) - lists).keys() == WATCHED, timeout=SECONDS, what="lists of all anew")
        admin.delete("DeviceTaintRule", of[0].name)
        wait_until(lambda: records() == {of[1].key.fault}, timeout=SECONDS, what="the missing rule to be noticed")
        wait_until(lambda: _told_of(admin, of[0]), timeout=SECONDS, what="an Event about it")
        send(of[2])
        assert seen(admin) == expected(of[1:])
        # It fires on, so it is held again.
        send(of[0])
        assert seen(admin) == expected(of)


def _lists(control_plane: ControlPlane) -> Counter[str]:
    """How often the remediator has listed each kind so far."""
    return Counter(event["objectRef"]["resource"] for event in control_plane.audit(user=USER, verbs=("list",)))


def _told_of(admin: Admin, fault: Fault) -> bool:
    return any(
        event["reason"] == "NeuronDeviceTaintRemoved"
        and event["involvedObject"]["name"] == fault.key.node
        and event["metadata"]["creationTimestamp"] >= fault.started.isoformat(timespec="seconds")
        and f"fault {fault.key.fault}" in event["message"]
        for event in admin.items("Event")
    )
