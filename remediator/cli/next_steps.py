"""The commands that are worth running about a node or a device, to copy. Pure.

How the record came to be as it is, is `remediator.cli.explanation`'s to say.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from alerts.faults import FAULTS, Effect
from remediator.cli.address import FAULT
from remediator.cli.strays import keys_of, strays, without_annotation, without_keys
from remediator.level import NO_ROOM
from remediator.node_records import ANNOTATION
from remediator.records import Record, State
from remediator.rule_records import object_name
from remediator.targets import NodeTarget, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remediator.cli.address import Address
    from remediator.cli.picture import Picture

_FEW = 20

_EVICTION = "DeviceTaintManagerEviction"
"""Reason of the Event that Kubernetes writes onto each pod it evicts for a device taint."""

_NODE_EVICTION = "TaintManagerEviction"
"""The same for a taint of a Node."""


class Command(NamedTuple):
    """A command to copy, and what it is good for."""

    command: str
    purpose: str


def rule_name(record: Record) -> str:
    """Name the record's DeviceTaintRule."""
    return record.stored.name if record.stored else object_name(record.key)


def _get(record: Record) -> str:
    """Arguments with which kubectl shows what bears the record."""
    if isinstance(record.target, NodeTarget):
        return f"get node {record.key.node} -o jsonpath='{{.metadata.annotations.{ANNOTATION}}}'"
    return f"get devicetaintrule {rule_name(record)} -o yaml"


def commands(
    address: Address, records: list[Record], picture: Picture, *, kubeconfig: str | None, one_by_one: bool
) -> Iterator[Command]:
    """Say what to do about an address. `kubeconfig` is the file that the commands must name, if any.

    `one_by_one`: there are so many records that what can be done about each is told device by device.
    """
    option = f" --kubeconfig {shlex.quote(kubeconfig)}" if kubeconfig else ""
    kubectl, ours = f"kubectl{option}", "neuron-taints"
    missing = picture.node_read and picture.node is None
    if one_by_one:
        for device in sorted({record.key.device for record in records})[:_FEW]:
            yield Command(f"{ours} explain {address.node}/{device}{option}", f"what to do about device {device}")
    else:
        for record in records:
            yield Command(f"{kubectl} {_get(record)}", f"the record of {record.key}")
            yield from _for_state(record, picture, kubectl, f"{ours} {{}}{option}")
    for fault in _unknown(records, picture):
        yield Command(f"neuron-remediator uninstall --fault {fault}{option}", f"takes away all records of {fault}")
    yield from _undamaged(picture, kubectl)
    yield from _disturbed(address, records, kubectl)
    if picture.node is not None:
        yield Command(f"{kubectl} describe node {address.node}", "its Events tell what was changed, and when")
    elif missing:
        yield Command(f"{kubectl} get nodes", "which Nodes there are")
    if any(record.latched and not picture.void(record) for record in records) and picture.node is not None:
        yield Command(f"{kubectl} cordon {address.node}", "before its machine is replaced: nothing new comes meanwhile")
    if not records:
        yield Command(f"{ours} list --all{option}", "everything that is tainted in the cluster")
        if not missing:
            pods = f"{kubectl} get pods -A -o wide --field-selector spec.nodeName={address.node}"
            yield Command(pods, "whether the exporter and the DRA driver run on the node")


def _unknown(records: list[Record], picture: Picture) -> list[str]:
    """Faults that no clear will ever be of, as far as this release knows them."""
    faults = {record.key.fault for record in records if not picture.void(record)}
    return [fault for fault in sorted(faults - FAULTS.keys()) if FAULT.fullmatch(fault)]


def _undamaged(picture: Picture, kubectl: str) -> Iterator[Command]:
    """How to end an annotation that cannot be read. The taint that it stood for is not known to be ours any more."""
    keys = keys_of(picture.held.records)
    for node, _ in picture.held.damaged:
        annotate = f"{kubectl} {without_annotation(node.metadata.name)}"
        yield Command(annotate, "ends the annotation that cannot be read, and what it recorded")
        if found := strays(node, keys):
            taint = f"{kubectl} {without_keys(node.metadata.name, found)}"
            yield Command(taint, "takes off what may be its taint: as it is not known to be ours, nothing else does")


def _disturbed(address: Address, records: list[Record], kubectl: str) -> Iterator[Command]:
    """How to see whom the taints evicted, and whom they keep off."""
    evicting = [record for record in records if record.taint.effect is Effect.NO_EXECUTE]
    while_kept = "while the cluster keeps its Events (an hour unless set)"
    if any(isinstance(record.target, Target) for record in evicting):
        events = f"{kubectl} get events -A --field-selector reason={_EVICTION}"
        yield Command(events, f"which pods were evicted for a tainted device, {while_kept}")
    if any(isinstance(record.target, NodeTarget) for record in evicting):
        events = f"{kubectl} get events -A --field-selector reason={_NODE_EVICTION}"
        yield Command(events, f"which pods were evicted for a tainted Node, {while_kept}")
    if any(record.disrupts and isinstance(record.target, NodeTarget) for record in records):
        pods = f"{kubectl} get pods -A -o wide --field-selector spec.nodeName={address.node}"
        yield Command(pods, "which pods are on the tainted Node")


def _for_state(record: Record, picture: Picture, kubectl: str, ours: str) -> Iterator[Command]:
    if picture.void(record):
        return
    if record.state is State.OPTED_OUT:
        yield Command(f"{kubectl} label node {record.key.node} neuron-remediator/opt-out-", "ends the opt-out")
    if record.state is State.WITHHELD and record.reason.startswith(NO_ROOM):
        yield Command(ours.format("list --state active"), "what uses up the budget")
    release = f"release {record.key}"
    known = record.key.fault in FAULTS
    if record.state is State.RELEASED and not known:
        return  # no firing raises it when the release ends
    if record.state is State.RELEASED:
        yield Command(ours.format(f"{release} --end"), "ends the release now")
    elif record.disrupts or record.latched:
        # Any other has nothing that a release could lift.
        how_long = "for a time, at your risk" if known else "at your risk: nothing raises it again"
        yield Command(ours.format(f"{release} --for 4h --reason 'WHY'"), f"lifts it by your word, {how_long}")
