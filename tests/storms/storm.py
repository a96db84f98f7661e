"""The faults of a storm: what is sent of each, what is to stand in the cluster afterwards, and what was written.

It makes no trouble itself, and judges nothing: expected and seen are plain values to compare.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from alerts.faults import FAULTS
from remediator.records import Key, episode_of
from remediator.rule_records import object_name
from tests.remediator.samples import alert_json, body
from tests.stack.process import wait_until
from tests.stack.shapes import device_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from random import Random

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.sender import Sender
    from tests.stack.shapes import Object

USER = "neuron-remediator"
DEVICES = 16
AUDIT_SECONDS = 10.0
"""How long a line of the audit log may take after the answer it is about."""

_ANNOTATION = "neuron-remediator/"
_SUCCESS = range(200, 300)


class Standing(NamedTuple):
    """What counts of a rule of ours."""

    pool: str
    device: str
    value: str
    effect: str
    state: str
    episode: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One spell of one fault on one device."""

    key: Key
    started: datetime

    @property
    def name(self) -> str:
        """The name of its rule."""
        return object_name(self.key)

    def firing(self) -> bytes:
        """The notification that it is there."""
        return body(alert_json(started=self.started, **self._labels()))

    def over(self) -> bytes:
        """The notification that this very spell is over."""
        cleared = {"alertname": "NeuronDeviceFaultCleared", "remediation": "clear", "severity": "none"}
        labels = self._labels() | cleared | {"episode": episode_of(self.started)}
        return body(alert_json(started=self.started + timedelta(seconds=1), **labels))

    def again(self) -> Fault:
        """The same fault on the same device, as it begins anew now."""
        return Fault(self.key, datetime.now(UTC))

    def standing(self) -> Standing:
        """Its rule, as the table has it."""
        row = FAULTS[self.key.fault]
        return Standing(
            pool=self.key.node,
            device=device_name(self.key.device),
            value=row.value,
            effect=str(row.effect),
            state="active",
            episode=episode_of(self.started),
        )

    def _labels(self) -> dict[str, str]:
        return {"node": self.key.node, "device": str(self.key.device), "fault": self.key.fault}


def faults(count: int, nodes: Sequence[str]) -> list[Fault]:
    """Return that many faults that begin now, each kind in turn, no two alike."""
    kinds, now = tuple(FAULTS), datetime.now(UTC)
    keys = [Key(nodes[n % len(nodes)], n // len(nodes) % DEVICES, kinds[n % len(kinds)]) for n in range(count)]
    if len(set(keys)) < count:
        raise ValueError(f"making {count} faults on {len(nodes)} nodes: some would be the same; expected more nodes")
    return [Fault(key, now + timedelta(microseconds=n)) for n, key in enumerate(keys)]


def chosen(random: Random, of: Sequence[Fault], count: int) -> set[Fault]:
    """Draw that many that will end, among those that a clean reading ends."""
    return set(random.sample([fault for fault in of if not FAULTS[fault.key.fault].latched], count))


def expected(standing: Iterable[Fault]) -> dict[str, Standing]:
    """The rules that these faults lead to, by name."""
    return {fault.name: fault.standing() for fault in standing}


def seen(admin: Admin) -> dict[str, Standing]:
    """The rules that are there, by name."""
    return {rule["metadata"]["name"]: _standing(rule) for rule in admin.rules()}


def _standing(rule: Object) -> Standing:
    selector, taint, notes = rule["spec"]["deviceSelector"], rule["spec"]["taint"], rule["metadata"]["annotations"]
    return Standing(
        pool=selector["pool"],
        device=selector["device"],
        value=taint["value"],
        effect=taint["effect"],
        state=notes[f"{_ANNOTATION}state"],
        episode=notes[f"{_ANNOTATION}episode"],
    )


async def spell(sender: Sender, fault: Fault, *, ends: bool, after: float = 0) -> None:
    """Send one fault after so many seconds until it is taken, and then its clear, or a repetition."""
    await asyncio.sleep(after)
    await sender.send(fault.firing())
    await sender.send(fault.over() if ends else fault.firing())


async def rain(sender: Sender, of: Sequence[Fault], ending: Collection[Fault], *, random: Random, over: float) -> None:
    """Send every fault, and the clears of those that end, spread over that many seconds; returns when all are taken."""
    async with asyncio.TaskGroup() as group:
        for fault in of:
            group.create_task(spell(sender, fault, ends=fault in ending, after=random.uniform(0, over)))


class Written:
    """What the remediator has written since this was made, by the audit log."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._before = len(self._all())

    def _all(self) -> list[Object]:
        return self._control_plane.audit(user=USER)

    def everything(self) -> list[tuple[str, str, str]]:
        """Verb, resource and name of each write that was carried out, oldest first."""
        return [
            (event["verb"], event["objectRef"]["resource"], event["objectRef"].get("name", ""))
            for event in self._all()[self._before :]
            if event["responseStatus"]["code"] in _SUCCESS
        ]

    def rules(self) -> Counter[tuple[str, str]]:
        """How often each verb was carried out on each rule."""
        return Counter((verb, name) for verb, kind, name in self.everything() if kind == "devicetaintrules")

    def up_to_now(self, admin: Admin) -> Counter[tuple[str, str]]:
        """Return the writes of rules once every line about what has happened by now is in the log.

        A write whose sender was killed meanwhile may be told as a failure though it was carried out, so their number
        says nothing. A write of the administrator's that comes after all of them marks the end.
        """
        marker = f"marker-{len(self._all())}"
        admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": marker}})
        admin.delete("ConfigMap", marker)
        wait_until(lambda: self._is_told(marker), timeout=AUDIT_SECONDS, what="the audit log to be complete")
        return self.rules()

    def _is_told(self, marker: str) -> bool:
        events = self._control_plane.audit(user="admin", verbs=("delete",), resource="configmaps")
        return any(event["objectRef"].get("name") == marker for event in events)


def shown(what: str, **figures: object) -> None:
    """Print figures of a test, for who runs it with ``-s``."""
    written = ", ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )
    print(f"\n{what}: {written}", end="")
