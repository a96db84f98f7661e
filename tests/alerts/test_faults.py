"""The fault table is the one of the AWS guide, and every row can become an alert and a taint."""

import dataclasses
import re

import pytest

from alerts.faults import BY_TOKEN, FAULTS, HEALTHY, UNREACHABLE, Effect, Fault, Severity

# Written out once more, by hand, from the guide: the table may not drift with the code that reads it.
_GUIDE = """
hbm                        NeuronDeviceHBMUncorrectableError         critical NoExecute  hbm-uncorrectable-error          hbm
sram                       NeuronDeviceSRAMUncorrectableError        critical NoExecute  sram-uncorrectable-error         sram
device_unreachable         NeuronDeviceUnreachable                   critical NoExecute  device-unreachable               -
firmware_service_api       NeuronDeviceFirmwareServiceAPIError       warning  NoSchedule firmware-service-api-error       firmware_service_api
firmware_service_processor NeuronDeviceFirmwareServiceProcessorError warning  NoSchedule firmware-service-processor-error firmware_service_processor
link_host                  NeuronDeviceHostLinkError                 critical NoExecute  link-host-error                  link_host
link_intraserver           NeuronDeviceIntraserverLinkError          warning  NoSchedule link-intraserver-error           link_intraserver
link_interserver           NeuronDeviceInterserverLinkError          warning  NoSchedule link-interserver-error           link_interserver
link_efa                   NeuronDeviceEFALinkError                  warning  NoSchedule link-efa-error                   link_efa
link_switch                NeuronDeviceSwitchLinkError               warning  NoSchedule link-switch-error                link_switch
fabric_error               NeuronDeviceFabricError                   critical NoExecute  fabric-error                     axi_fabric
"""  # noqa: E501 - a table is read by its columns

_every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


def test_the_table_is_the_guides() -> None:
    """A fault that the guide does not have, or no more, is a change of `_GUIDE` above too."""
    rows = [
        (fault.name, fault.alert, fault.severity, fault.effect, fault.value, fault.token or "-")
        for fault in FAULTS.values()
    ]
    assert [list(map(str, row)) for row in rows] == [line.split() for line in _GUIDE.strip().splitlines()]


def test_only_memory_errors_outlast_a_clean_reading() -> None:
    assert {fault.name for fault in FAULTS.values() if fault.latched} == {"hbm", "sram"}


@pytest.mark.parametrize("field", ["name", "alert", "value", "token", "finding", "example", "meaning"])
def test_no_two_faults_share_a(field: str) -> None:
    values = [getattr(fault, field) for fault in FAULTS.values()]
    assert len(set(values)) == len(values) == len(FAULTS)


@_every_fault
def test_the_taint_value_is_a_kubernetes_label_value(fault: Fault) -> None:
    assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", fault.value)
    assert 0 < len(fault.value) <= 63


@_every_fault
def test_severity_follows_from_the_effect(fault: Fault) -> None:
    assert (fault.severity is Severity.CRITICAL) == (fault.effect is Effect.NO_EXECUTE)


@_every_fault
def test_the_example_shows_this_fault(fault: Fault) -> None:
    shown = {BY_TOKEN[token.strip()] for token in fault.example.components.split(",") if token.strip()}
    frozen = fault.example.heartbeat == "frozen"
    assert (shown, frozen) == ((set(), True) if fault is UNREACHABLE else ({fault}, False))


@_every_fault
def test_the_runbook_tells_what_to_do(fault: Fault) -> None:
    short = [field for field in ("meaning", "impact") if len(getattr(fault, field)) <= 60]
    assert short == [], f"{fault.name}: these say too little"
    without = [field for field in ("diagnosis", "mitigation") if getattr(fault, field).count("* ") < 2]
    assert without == [], f"{fault.name}: these are no lists of at least two"
    assert fault.summary.startswith("A Neuron device ")
    assert fault.summary.endswith(".")
    assert "{" not in fault.finding, "a summary names no instance"


def test_the_healthy_reading_names_no_component() -> None:
    assert HEALTHY.components.strip() == ""
    assert HEALTHY.heartbeat == "beating"


def test_every_token_leads_to_its_fault_and_the_derived_fault_has_none() -> None:
    assert {fault.name for fault in FAULTS.values() if fault.token is None} == {UNREACHABLE.name}
    assert set(BY_TOKEN.values()) == set(FAULTS.values()) - {UNREACHABLE}
    assert {token: fault.token for token, fault in BY_TOKEN.items()} == {token: token for token in BY_TOKEN}


def test_effects_are_ordered_by_rank() -> None:
    assert sorted(Effect, key=lambda effect: effect.rank) == [Effect.NONE, Effect.NO_SCHEDULE, Effect.NO_EXECUTE]
    assert [effect.rank for effect in Effect] == [0, 1, 2]


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FAULTS["new"] = UNREACHABLE  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNREACHABLE.effect = Effect.NONE  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("name", "Link EFA"),
        ("name", ""),
        ("alert", "HBMError"),
        ("value", "hbm_"),
        ("value", "x" * 64),
        ("token", "link-efa"),
    ],
)
def test_a_row_that_cannot_become_an_alert_or_a_taint_is_refused(field: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf'{field} is "{text}"; expected '):
        dataclasses.replace(FAULTS["hbm"], **{field: text})  # type: ignore[arg-type]
