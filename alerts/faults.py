"""The fault table: the eleven kinds of fault of a Neuron device, every fact about a kind in its one row.

Names, effects and taint values are those of the AWS guide to Neuron device taints, so that a policy or a
toleration written for the Neuron DRA driver's own taints means the same here. The driver token is the word
the device's `unhealthy_components` file uses for the fault.

Both services import this module, so it holds data and nothing else: no I/O, no third-party import, nothing
about how a fault is detected, notified or carried out.
"""
# ruff: noqa: S106 - a token is the driver's word for a component here, no secret

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from types import MappingProxyType
from typing import Final, Literal


class Effect(StrEnum):
    """The effect of a taint, as the Kubernetes API spells it; compare by `rank`, never as text."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"

    @property
    def rank(self) -> int:
        """How disruptive the effect is: 0 informs, 1 keeps new work off, 2 also evicts."""
        return list(Effect).index(self)

    @classmethod
    def read(cls, text: str) -> "Effect":
        """The effect of that name; one that is not known informs only, as in Kubernetes, which ignores it."""
        try:
            return cls(text)
        except ValueError:
            return cls.NONE


class Severity(StrEnum):
    """Whom an alert calls: `critical` pages, `warning` opens a ticket."""

    CRITICAL = "critical"
    WARNING = "warning"


class Remediation(StrEnum):
    """The `remediation` label of an alert: what the alert asks the remediator to do."""

    TAINT = "taint"
    LATCH = "latch"
    CLEAR = "clear"
    HEARTBEAT = "heartbeat"


NOT_HELD: Final = "NeuronDeviceFaultNotHeld"
LATCHED: Final = "NeuronDeviceFaultLatched"
CLEARED: Final = "NeuronDeviceFaultCleared"
WITHHELD: Final = "NeuronDeviceFaultWithheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a device's files show: the text of `unhealthy_components`, and whether its heartbeat moves."""

    components: str
    heartbeat: Literal["beating", "frozen"] = "beating"


HEALTHY: Final = Example(components="\n")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ALERT = re.compile(r"NeuronDevice[A-Z][A-Za-z]*")
# A taint value is a Kubernetes label value; lower case with dashes is what the guide uses.
_VALUE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    `token` is None for the one fault no file names: it is derived from the silence of the device. `latched`
    says that a clean reading does not end the fault. `finding` completes "the device …". `meaning`, `impact`,
    `diagnosis` and `mitigation` are the runbook in Markdown, the last two as lists, with `<device>` where the
    alert's device number belongs. Raises ValueError for a row that could not become an alert or a taint.
    """

    name: str
    alert: str
    severity: Severity
    effect: Effect
    value: str
    latched: bool = False
    token: str | None
    finding: str
    meaning: str
    impact: str
    diagnosis: str
    mitigation: str
    example: Example

    def __post_init__(self) -> None:
        for field, text, pattern in (
            ("name", self.name, _NAME),
            ("alert", self.alert, _ALERT),
            ("value", self.value, _VALUE),
            ("token", self.token, _NAME),
        ):
            if text is not None and not pattern.fullmatch(text):
                raise ValueError(f'defining fault "{self.name}": {field} is "{text}"; expected {pattern.pattern}')

    @property
    def summary(self) -> str:
        """The fault in one sentence that names no instance: the alert's summary annotation."""
        return f"A Neuron device {self.finding}."


_ROWS: Final = (
    Fault(
        name="hbm",
        alert="NeuronDeviceHBMUncorrectableError",
        severity=Severity.CRITICAL,
        effect=Effect.NO_EXECUTE,
        value="hbm-uncorrectable-error",
        latched=True,
        token="hbm",
        finding="reports an uncorrectable error in its high-bandwidth memory",
        meaning=cleandoc("""
            The firmware found at least one error in the device's high-bandwidth memory (HBM) that could not
            be corrected or repaired. Repairable HBM errors are a different condition and never raise this
            alert.
        """),
        impact=cleandoc("""
            What ran on the device may have computed with wrong data, and a checkpoint written after the
            error cannot be trusted. The fault does not recover: the device stays out of use until its node
            is replaced.
        """),
        diagnosis=cleandoc("""
            * Query `neuron_device_ecc_errors{memory="hbm"}`: `uncorrectable` above 0 confirms the fault;
              `repairable` alone does not.
            * Search the node's kernel log for `NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR` with
              `nd-id=<device>`. The Neuron runtime writes it only when a workload meets the error, so its
              absence proves nothing.
            * In the workload's log, Neuron runtime code 1201 is this fault; 1205 is the repairable one.
        """),
        mitigation=cleandoc("""
            * Restart the evicted jobs from a checkpoint older than the start of this alert.
            * Replace the node: a clean reading does not end this fault. AWS usually announces the
              retirement of such an instance within about 15 minutes.
        """),
        example=Example(components="hbm\n"),
    ),
    Fault(
        name="sram",
        alert="NeuronDeviceSRAMUncorrectableError",
        severity=Severity.CRITICAL,
        effect=Effect.NO_EXECUTE,
        value="sram-uncorrectable-error",
        latched=True,
        token="sram",
        finding="reports an uncorrectable error in its on-chip memory",
        meaning=cleandoc("""
            The firmware found at least one error in the device's on-chip memory (SRAM) that could not be
            corrected.
        """),
        impact=cleandoc("""
            What ran on the device may have computed with wrong data, and a checkpoint written after the
            error cannot be trusted. The fault does not recover: the device stays out of use until its node
            is replaced.
        """),
        diagnosis=cleandoc("""
            * Query `neuron_device_ecc_errors{memory="sram",kind="uncorrectable"}`: above 0 confirms the
              fault.
            * Search the node's kernel log for `NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR` or
              `NC_UNCORRECTABLE_ERROR` with `nd-id=<device>`. The Neuron runtime writes it only when a
              workload meets the error, so its absence proves nothing.
            * In the workload's log, Neuron runtime code 1202 is this fault.
        """),
        mitigation=cleandoc("""
            * Restart the evicted jobs from a checkpoint older than the start of this alert.
            * Replace the node: a clean reading does not end this fault. AWS usually announces the
              retirement of such an instance within about 15 minutes.
        """),
        example=Example(components="sram\n"),
    ),
    Fault(
        name="device_unreachable",
        alert="NeuronDeviceUnreachable",
        severity=Severity.CRITICAL,
        effect=Effect.NO_EXECUTE,
        value="device-unreachable",
        token=None,
        finding="cannot be read: its heartbeat stands still or its files are gone",
        meaning=cleandoc("""
            The exporter expects the device but gets no live reading from it: the firmware's heartbeat does
            not move, the device's directory is gone, or its files cannot be read. Other devices of the node
            still answer; if none did, the source of the readings would count as down and no device would be
            accused.
        """),
        impact=cleandoc("""
            Nothing is known about the device any more, so its other ten faults are not reported, neither as
            present nor as absent. Work on it is likely hung or failing.
        """),
        diagnosis=cleandoc("""
            * Check on the node that `/dev/neuron<device>` and
              `/sys/devices/virtual/neuron_device/neuron<device>/` exist, and compare the number of devices
              with that of the instance type.
            * Read the `healthcheck_heartbeat` file of the device several times over 30 seconds: the number
              must change.
            * Query `neuron_device_reading_timestamp_seconds` and `neuron_source_up` for the node: if the
              source is down, look at the exporter and the driver first.
            * Search the node's kernel log for PCIe errors and for messages of the Neuron driver.
        """),
        mitigation=cleandoc("""
            * If the device does not answer again by itself, reboot the node; if it stays away, replace the
              node.
            * Once the device gives live and clean readings for the hold time, the taint is removed without
              further action.
        """),
        example=Example(components="\n", heartbeat="frozen"),
    ),
    Fault(
        name="firmware_service_api",
        alert="NeuronDeviceFirmwareServiceAPIError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="firmware-service-api-error",
        token="firmware_service_api",
        finding="reports an error of its firmware service API",
        meaning=cleandoc("""
            The device's health bitmap marks the API of the firmware service as failing. The compute engines
            are not reported as faulty.
        """),
        impact=cleandoc("""
            The device may still compute correctly, so running work is left alone. Management operations may
            fail.
        """),
        diagnosis=cleandoc("""
            * See whether the same node reports `firmware_service_processor` too: then the service itself is
              in trouble, not only its API.
            * Compare `neuron_driver_info` of the node with the rest of the fleet: the same fault on many
              nodes with one driver version points at software.
            * Search the node's kernel log for messages of the Neuron driver.
        """),
        mitigation=cleandoc("""
            * Let the running work finish or move it at a convenient time.
            * If the fault stays, reboot the node once its work is gone; if it comes back, replace the node.
        """),
        example=Example(components="firmware_service_api\n"),
    ),
    Fault(
        name="firmware_service_processor",
        alert="NeuronDeviceFirmwareServiceProcessorError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="firmware-service-processor-error",
        token="firmware_service_processor",
        finding="reports an error of its firmware service processor",
        meaning=cleandoc("""
            The device's health bitmap marks the processor that runs the firmware service as failing. The
            compute engines are not reported as faulty.
        """),
        impact=cleandoc("""
            The device may still compute correctly, so running work is left alone. Its health signals come
            from the firmware, so treat other readings of this device with care.
        """),
        diagnosis=cleandoc("""
            * See whether `device_unreachable` follows: a failing service processor may stop the heartbeat.
            * Compare `neuron_driver_info` of the node with the rest of the fleet: the same fault on many
              nodes with one driver version points at software.
            * Search the node's kernel log for messages of the Neuron driver.
        """),
        mitigation=cleandoc("""
            * Let the running work finish or move it at a convenient time.
            * If the fault stays, reboot the node once its work is gone; if it comes back, replace the node.
        """),
        example=Example(components="firmware_service_processor\n"),
    ),
    Fault(
        name="link_host",
        alert="NeuronDeviceHostLinkError",
        severity=Severity.CRITICAL,
        effect=Effect.NO_EXECUTE,
        value="link-host-error",
        token="link_host",
        finding="reports an error of its link to the host",
        meaning=cleandoc("""
            The device's health bitmap marks the PCIe link between the device and its host as failing.
        """),
        impact=cleandoc("""
            Data moved between host and device may be lost or late. Work on the device cannot be relied upon
            and is evicted.
        """),
        diagnosis=cleandoc("""
            * Compare `current_link_speed` and `current_link_width` of the device's PCIe address under
              `/sys/bus/pci/devices/` with `max_link_speed` and `max_link_width`, and with a healthy device.
            * Search the node's kernel log for PCIe (AER) errors of that address.
            * See whether `device_unreachable` follows: then the link is gone altogether.
        """),
        mitigation=cleandoc("""
            * Restart the evicted jobs elsewhere.
            * Reboot the node so that the link is trained anew; if the fault comes back, replace the node.
        """),
        example=Example(components="link_host\n"),
    ),
    Fault(
        name="link_intraserver",
        alert="NeuronDeviceIntraserverLinkError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="link-intraserver-error",
        token="link_intraserver",
        finding="reports an error of a NeuronLink inside its server",
        meaning=cleandoc("""
            The device's health bitmap marks a NeuronLink to another device of the same server as failing.
        """),
        impact=cleandoc("""
            Collectives across the devices of this server may fail or slow down. Work that uses this device
            alone is not affected, so running work is left alone.
        """),
        diagnosis=cleandoc("""
            * Compare the device's `connected_devices` file with that of a healthy device: a missing
              neighbour names the link.
            * Query `neuron_device_fault{fault="link_intraserver"} == 1` for the node: the two ends of one
              broken link often report together.
            * In the workload's log, Neuron runtime code 1200 (collectives) is a hint, not a proof.
        """),
        mitigation=cleandoc("""
            * Move jobs that span several devices of this server at a convenient time.
            * If the fault stays, reboot the node once its work is gone; if it comes back, replace the node.
        """),
        example=Example(components="link_intraserver\n"),
    ),
    Fault(
        name="link_interserver",
        alert="NeuronDeviceInterserverLinkError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="link-interserver-error",
        token="link_interserver",
        finding="reports an error of a NeuronLink to another server",
        meaning=cleandoc("""
            The device's health bitmap marks a NeuronLink to another server of the same UltraServer as
            failing.
        """),
        impact=cleandoc("""
            Jobs that span the servers of this UltraServer may fail or slow down. Work inside one server is
            not affected, so running work is left alone.
        """),
        diagnosis=cleandoc("""
            * Read `/sys/class/neuron_device/ultraserver_mode` on the node: it loses the modes the broken
              link was needed for.
            * If the Neuron UltraServer Operator runs, look at `linkStatusHorizontal` and
              `linkStatusVertical` of the node in its `NeuronUltraServer` object: `down` names the link.
            * See whether other nodes of the UltraServer report the same fault: a broken link has two ends.
        """),
        mitigation=cleandoc("""
            * Run jobs that fit one server on these nodes, and move those that span servers at a convenient
              time.
            * If the fault stays, replace the node; if both ends keep reporting, tell AWS Support which
              nodes they are.
        """),
        example=Example(components="link_interserver\n"),
    ),
    Fault(
        name="link_efa",
        alert="NeuronDeviceEFALinkError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="link-efa-error",
        token="link_efa",
        finding="reports an error of its EFA link",
        meaning=cleandoc("""
            The device's health bitmap marks its path to the Elastic Fabric Adapter (EFA), the network
            between instances, as failing.
        """),
        impact=cleandoc("""
            Collectives between instances through this device may fail or slow down. Work inside the
            instance is not affected, so running work is left alone.
        """),
        diagnosis=cleandoc("""
            * Look at the EFA counters under `/sys/class/infiniband/*/ports/*/hw_counters/` on the node:
              rising `impaired_remote_conn_events`, `unresponsive_remote_events`, `retrans_*` or `rx_drops`
              confirm the fault.
            * In the workload's log, Neuron runtime code 1206 (network proxy failure) points the same way.
            * The same fault on many nodes at once points at the network, not at the devices.
        """),
        mitigation=cleandoc("""
            * Move jobs that span instances at a convenient time.
            * If the fault stays on this node alone, replace the node; if many nodes report it, open a case
              with AWS Support instead.
        """),
        example=Example(components="link_efa\n"),
    ),
    Fault(
        name="link_switch",
        alert="NeuronDeviceSwitchLinkError",
        severity=Severity.WARNING,
        effect=Effect.NO_SCHEDULE,
        value="link-switch-error",
        token="link_switch",
        finding="reports an error of its link to the NeuronSwitch",
        meaning=cleandoc("""
            The device's health bitmap marks its link to the NeuronSwitch as failing. Only Trainium3
            UltraServers have one.
        """),
        impact=cleandoc("""
            Collectives through the switch may fail or slow down. Work that uses this device alone is not
            affected, so running work is left alone.
        """),
        diagnosis=cleandoc("""
            * Query `neuron_device_fault{fault="link_switch"} == 1` over all nodes: many devices of one
              UltraServer at once point at the switch, one alone at its own link.
            * Search the node's kernel log for messages of the Neuron driver.
        """),
        mitigation=cleandoc("""
            * Move jobs that span devices at a convenient time.
            * If the fault stays on one device, replace the node; if the whole UltraServer reports it, open
              a case with AWS Support.
        """),
        example=Example(components="link_switch\n"),
    ),
    Fault(
        name="fabric_error",
        alert="NeuronDeviceFabricError",
        severity=Severity.CRITICAL,
        effect=Effect.NO_EXECUTE,
        value="fabric-error",
        # The one token that differs from the guide's fault name, and the only pair left unmatched.
        token="axi_fabric",
        finding="reports an error of its internal fabric",
        meaning=cleandoc("""
            The device's health bitmap marks the on-chip interconnect (AXI fabric), which joins the engines
            and the memories of the device, as failing. The driver calls this component `axi_fabric`.
        """),
        impact=cleandoc("""
            Data moved inside the device may be lost or wrong. Work on the device cannot be relied upon and
            is evicted.
        """),
        diagnosis=cleandoc("""
            * Look for `hbm` or `sram` faults of the same device: they decide whether the node must be
              replaced at once.
            * A DMA abort (`NEURON_HW_ERR=DMA_ERROR` in the kernel log, Neuron runtime code 1203) is another
              condition: it does not raise this alert and does not prove this fault.
        """),
        mitigation=cleandoc("""
            * Restart the evicted jobs elsewhere, from a checkpoint older than the start of this alert.
            * Reboot the node; if the fault comes back, replace the node.
        """),
        example=Example(components="axi_fabric\n"),
    ),
)

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _ROWS})
BY_TOKEN: Final[Mapping[str, Fault]] = MappingProxyType(
    {fault.token: fault for fault in _ROWS if fault.token is not None}
)
UNREACHABLE: Final = FAULTS["device_unreachable"]

FORMER: Final[Mapping[str, str | None]] = MappingProxyType({})
"""Names that releases before had for a fault: the name it has now, or None where it is no more.

What a cluster has recorded under such a name is moved, or removed. A name that is in neither table is left alone: it
may be of a release that is newer than this one.
"""
