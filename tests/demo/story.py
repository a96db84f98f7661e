"""The story: two devices break, two taints appear, both devices read clean, one taint goes and one stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alerts.faults import CLEARED, FAULTS, HEALTHY, Fault
from tests.demo.narrator import Narrator, Step, StoryError
from tests.stack.progress import progress

if TYPE_CHECKING:
    from tests.stack.kube import Admin
    from tests.stack.pipeline import Pipeline

LATCHED_DEVICE, LATCHED_FAULT = 3, FAULTS["hbm"]
PASSING_DEVICE, PASSING_FAULT = 5, FAULTS["link_efa"]
_START_SECONDS = 30.0
_TAINT_SECONDS = 30.0
# The hold is 15 s of clean readings; the rest is scrape, evaluation, delivery, and a busy machine.
_CLEAR_SECONDS = 60.0
_EVALUATIONS = 3  # seconds, one evaluation each


class Story:
    """Tells it on a running pipeline; `admin` is there when the pipeline has a control plane."""

    def __init__(self, pipeline: Pipeline, narrator: Narrator, admin: Admin | None) -> None:
        self._pipeline = pipeline
        self._narrator = narrator
        self._admin = admin

    def tell(self) -> None:
        """Tell all of it; raises `StoryError` at the first thing that does not happen."""
        self._healthy()
        self._break()
        stays = self._record(LATCHED_DEVICE, LATCHED_FAULT)
        self._heal()
        self._verdict(stays)

    def _healthy(self) -> None:
        self._narrator.headline("1. Every device is healthy")
        self._narrator.watch(
            [
                Step("exporter", self._all_healthy, "16 healthy devices"),
                Step("prometheus", self._scraped, "the scraped series of 16 devices"),
            ],
            within=_START_SECONDS,
        )
        if self._admin is not None:
            for device in (LATCHED_DEVICE, PASSING_DEVICE):
                pod = f"pod-on-{device}"
                self._admin.pod(pod, device=f"neuron-device-{device}")
                with progress("waiting for scheduler"):
                    got = self._admin.scheduled(pod)
                self._narrator.say("scheduler", f"{pod} is scheduled on {got}")

    def _break(self) -> None:
        self._narrator.headline("2. Two devices break")
        chains: list[list[Step]] = []
        for device, fault in ((LATCHED_DEVICE, LATCHED_FAULT), (PASSING_DEVICE, PASSING_FAULT)):
            self._pipeline.driver.show(device, fault.example)
            self._narrator.say("driver", f'neuron{device}/…/unhealthy_components reads "{fault.token}"')
            chains.append(self._steps_to_a_taint(device, fault))
        if self._admin is not None:
            chains[0].append(Step("eviction", self._evicted, f"pod-on-{LATCHED_DEVICE} deleted"))
        self._narrator.watch(*chains, within=_TAINT_SECONDS)
        if self._admin is not None:
            self._expect(self._runs(PASSING_DEVICE), f"pod-on-{PASSING_DEVICE} to be left alone")
            self._narrator.say("scheduler", f"pod-on-{PASSING_DEVICE} is left alone: its fault only keeps new work off")

    def _steps_to_a_taint(self, device: int, fault: Fault) -> list[Step]:
        def exporter() -> str | None:
            value = self._pipeline.exporter.value("neuron_device_fault", device=str(device), fault=fault.name)
            return f'neuron_device_fault{{device="{device}",fault="{fault.name}"}} 1.0' if value == 1 else None

        def prometheus() -> str | None:
            return f"device {device}: {fault.alert} fires" if self._fires(fault.alert, device) else None

        def alertmanager() -> str | None:
            held = any(
                alert["labels"]["alertname"] == fault.alert and alert["labels"]["device"] == str(device)
                for alert in self._pipeline.alertmanager.alerts()
            )
            return f"device {device}: has {fault.alert}, notifies the remediator" if held else None

        def remediator() -> str | None:
            record = self._record(device, fault)
            latch = "latched" if record and record["latched"] == "true" else "clears on clean readings"
            where = "" if self._admin is not None else " (in memory)"
            return f"device {device}: tainted {fault.value}:{record['effect']}, {latch}{where}" if record else None

        steps = [
            Step("exporter", exporter, f"{fault.name} of device {device}"),
            Step("prometheus", prometheus, f"{fault.alert} firing for device {device}"),
            Step("alertmanager", alertmanager, f"{fault.alert} for device {device}"),
            Step("remediator", remediator, f"a record of {fault.name} on device {device}"),
        ]
        if self._admin is not None:
            steps.append(
                Step("kubernetes", lambda: self._rule(device, fault), f"a DeviceTaintRule for device {device}")
            )
        return steps

    def _heal(self) -> None:
        self._narrator.headline("3. Both devices read clean")
        for device in (LATCHED_DEVICE, PASSING_DEVICE):
            self._pipeline.driver.show(device, HEALTHY)
            self._narrator.say("driver", f"neuron{device}/…/unhealthy_components is empty")

        def both_clean() -> str | None:
            values = [
                self._pipeline.exporter.value("neuron_device_fault", device=str(device), fault=fault.name)
                for device, fault in ((LATCHED_DEVICE, LATCHED_FAULT), (PASSING_DEVICE, PASSING_FAULT))
            ]
            return "reads 0 for both" if values == [0, 0] else None

        self._narrator.watch([Step("exporter", both_clean, "0 for both")], within=_TAINT_SECONDS)
        self._narrator.say("prometheus", "waits: 15 s without a new fault, then 15 s of clean readings …")

        def clear_fires() -> str | None:
            fires = self._fires(CLEARED, PASSING_DEVICE)
            return f"device {PASSING_DEVICE}: {CLEARED} fires for the record's episode" if fires else None

        def released() -> str | None:
            gone = self._record(PASSING_DEVICE, PASSING_FAULT) is None
            return f"device {PASSING_DEVICE}: taint removed" if gone else None

        steps = [
            Step("prometheus", clear_fires, f"{CLEARED} firing for device {PASSING_DEVICE}"),
            Step("remediator", released, f"the record of device {PASSING_DEVICE} gone"),
        ]
        if self._admin is not None:
            steps.append(Step("kubernetes", self._only_one_rule, f"no rule for device {PASSING_DEVICE}"))
        self._narrator.watch(steps, within=_CLEAR_SECONDS)

    def _verdict(self, stays: dict[str, str] | None) -> None:
        self._narrator.headline("4. What is left")
        # Both read clean at the same time: a clear of the other one would show within the next evaluations.
        since = self._prometheus_time()

        def evaluated_again() -> str | None:
            return "has evaluated every rule again" if self._prometheus_time() > since + _EVALUATIONS else None

        self._narrator.watch([Step("prometheus", evaluated_again, "more evaluations")], within=_TAINT_SECONDS)
        self._expect(not self._fires(CLEARED, LATCHED_DEVICE), f"no {CLEARED} for device {LATCHED_DEVICE}")
        record = self._record(LATCHED_DEVICE, LATCHED_FAULT)
        self._expect(record is not None and record == stays, f"the record of device {LATCHED_DEVICE} unchanged")
        self._narrator.say(
            "remediator",
            f"device {LATCHED_DEVICE}: still tainted {LATCHED_FAULT.value}; it stays until the node is recycled "
            "or the device released",
        )

    def _expect(self, happened: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence at the call
        if not happened:
            raise StoryError(f"expected {what}")

    def _all_healthy(self) -> str | None:
        healthy = sum(
            value == 1 and labels["state"] == "healthy"
            for name, labels, value in self._pipeline.exporter.metrics()
            if name == "neuron_device_health"
        )
        return "16 devices healthy" if healthy == 16 else None

    def _scraped(self) -> str | None:
        found = self._pipeline.prometheus.query('count(neuron_device_health{state="healthy",node!=""} == 1)')
        return f"sees 16 healthy devices of {self._pipeline.node}" if found and found[0][1] == 16 else None

    def _fires(self, alertname: str, device: int) -> bool:
        wanted = {"alertname": alertname, "device": str(device)}
        return any(
            alert["state"] == "firing" and wanted.items() <= alert["labels"].items()
            for alert in self._pipeline.prometheus.alerts()
        )

    def _record(self, device: int, fault: Fault) -> dict[str, str] | None:
        wanted = {"device": str(device), "fault": fault.name}
        for name, labels, value in self._pipeline.remediator.metrics():
            if name == "neuron_remediator_record" and value == 1 and wanted.items() <= labels.items():
                return labels
        return None

    def _prometheus_time(self) -> float:
        return self._pipeline.prometheus.query("time()")[0][1]

    def _rules(self) -> list[dict[str, Any]]:
        return [] if self._admin is None else self._admin.rules()

    def _rule(self, device: int, fault: Fault) -> str | None:
        for rule in self._rules():
            selector, taint = rule["spec"]["deviceSelector"], rule["spec"]["taint"]
            if selector["device"] == f"neuron-device-{device}" and taint["value"] == fault.value:
                return f"DeviceTaintRule {rule['metadata']['name']}"
        return None

    def _only_one_rule(self) -> str | None:
        latched = self._rule(LATCHED_DEVICE, LATCHED_FAULT)
        return f"what is left: {latched}" if latched and len(self._rules()) == 1 else None

    def _evicted(self) -> str | None:
        name = f"pod-on-{LATCHED_DEVICE}"
        gone = self._admin is not None and self._admin.find("Pod", name) is None
        return f"{name} deleted by the device taint eviction controller" if gone else None

    def _runs(self, device: int) -> bool:
        pod = None if self._admin is None else self._admin.find("Pod", f"pod-on-{device}")
        return pod is not None and "deletionTimestamp" not in pod["metadata"]
