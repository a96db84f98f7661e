"""Why one record is as it is, and what ends it, in sentences. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alerts.faults import CLEARED, FAULTS, Effect
from alerts.intervals import Intervals
from remediator.budget import WINDOW, Limit
from remediator.cli.picture import meets
from remediator.cli.words import joined, kept_off_by_others, means, plain, since, span, taint_text, until, where
from remediator.level import NO_EVIDENCE, NO_ROOM
from remediator.node_records import foreign_taints
from remediator.records import Record, State
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from datetime import datetime

    from remediator.cli.picture import Picture

_LIMITS = {
    Limit.UNAVAILABLE: "as many targets were out of use as the remediator's --budget.max-unavailable allows",
    Limit.NEW: f"as many targets had been newly disrupted within {span(WINDOW)} as its --budget.max-new allows",
}
_REPEAT = "Alertmanager's next repeat of its firing raises it (up to 5m with the shipped route)"
_UNLESS_ALLOWED = "unless the remediator's --node-taint.allow-no-execute and --max-effect allow it"
_RULES_NEED = (
    "they need Kubernetes 1.37, or 1.36.3 or newer 1.36 with the DRADeviceTaintRules gate on all three components and "
    "resource.k8s.io/v1beta2 enabled"
)
_LATCHED = "It is latched: it rises by itself as soon as there is room"


def finding(record: Record) -> str:
    """What is wrong with the device."""
    fault = FAULTS.get(record.key.fault)
    return f"the device {fault.finding}" if fault else "a fault that this version does not know"


def done(record: Record, picture: Picture) -> str:
    """What automation has done."""
    effect, target = record.taint.effect, where(record.target, listed=picture.lists(record))
    others = picture.others_on(record.target, but=[record])
    also = f"; also held there by {joined(other.key for other in others)}" if others else ""
    if not record.disrupts:
        words = _words_of_others(record, picture)
        if not (words or others or record.state is State.COVERED):
            return f"no effect on {target}: {means(record)}"
        see = f"; see {' and '.join(f'`{word}`' for word in words)} below" if words else ""
        return f"no effect of {'its own' if others else 'ours'} on {target}{also}{see}"
    return f"tainted {effect} since {since(record.tainted_since, picture.now)} on {target}: {means(record)}{also}"


def _words_of_others(record: Record, picture: Picture) -> list[str]:
    """The words of `remediator.cli.node_lines` under which somebody else is found to keep pods off the target."""
    device, found = picture.device_of(record), []
    if any(taint.disrupts for taint in picture.driver_taints(record)):
        found.append("driver")
    if picture.node is not None and kept_off_by_others(picture.node):
        found.append("node taint")
    if any(meets(rule, device) and Effect.read(rule.spec.taint.effect).rank > 0 for rule in picture.held.others):
        found.append("other rule")
    return found


def instead_of_rule(record: Record, picture: Picture) -> str:
    """Why the Node is tainted as a whole, and not the device by a rule."""
    if not picture.held.served:
        return f"this cluster serves no DeviceTaintRules, by which the device alone could be tainted; {_RULES_NEED}"
    listed = picture.lists(record)
    if listed is None and picture.inventory is None:
        return "whether a rule could single the device out is not known: ResourceSlices could not be read"
    if listed:
        return (
            "slices list the device: unless the remediator's --backend asks for taints of Nodes, it moves the record "
            "to a rule within seconds"
        )
    known = "have no such device" if listed is False else f"are not there: driver {picture.driver} does not run there"
    return f"a rule would select the device in the node's slices, and these {known}"


def why(record: Record, picture: Picture) -> str:
    """Why it is in its state."""
    if picture.void(record):
        now_there = "is not there any more" if picture.node is None else "is another machine by now"
        return f"void: it belongs to a machine that is gone, the Node of its name {now_there}"
    if record.state is State.RELEASED:
        return f"released: {_release(record, picture.now)}"
    return f"{record.state}: {_WHY[record.state](record, picture)}"


def _active(record: Record, _picture: Picture) -> str:
    fault = FAULTS.get(record.key.fault)
    alert = plain(record.reason) or "its alert"
    if fault is None or record.taint.effect is fault.effect:
        return f"this is what {alert} leads to"
    if isinstance(record.target, NodeTarget) and record.taint.effect is Effect.NO_SCHEDULE:
        return f"{alert} leads to {fault.effect}, and a taint of a Node has no more than NoSchedule {_UNLESS_ALLOWED}"
    return f"{alert} leads to {fault.effect}, and the remediator's --max-effect allows {record.taint.effect} at most"


def _withheld(record: Record, picture: Picture) -> str:
    weaker = f"; it keeps the weaker effect {record.taint.effect} meanwhile" if record.disrupts else ""
    if record.reason.startswith(NO_ROOM):
        limit = record.reason.removeprefix(NO_ROOM)
        said = _LIMITS[Limit(limit)] if limit in list(Limit) else f"the limit {plain(limit)!r} of its budget is reached"
        return f"when it last fired, {since(record.last_fired, picture.now)}, {said}{weaker}. {_room(record)}"
    fault = FAULTS.get(record.key.fault)
    if record.reason == NO_EVIDENCE and fault is not None and record.taint.effect is fault.effect:
        return f"its taint is to have another key or another place, and the fault has not fired since; {_REPEAT}"
    if record.reason == NO_EVIDENCE:
        return f"it would be stronger, but the fault has not fired since{weaker}; with room, {_REPEAT}"
    if isinstance(record.target, NodeTarget):
        return f"its taint or its annotation was changed by hand; the next firing writes it anew{weaker}"
    return f"its rule was changed by hand or is being deleted; the next firing writes it anew{weaker}"


def _room(record: Record) -> str:
    """What is true now: the reason on the record is that of the time when it was withheld, and may be over."""
    gauges = "neuron_remediator_budget_used against neuron_remediator_budget_limit"
    return f"Whether there is room now: {gauges}. {_LATCHED if record.latched else f'With room, {_REPEAT}'}"


def _covered(record: Record, picture: Picture) -> str:
    return f"{_coverer(record, picture)} is at least as strong, so ours has no effect"


def _coverer(record: Record, picture: Picture) -> str:
    if not isinstance(record.target, NodeTarget):
        return "the driver's own taint on this target"
    foreign = foreign_taints(picture.node) if picture.node is not None else []
    on_node = [taint_text(taint) for taint in foreign if taint.get("key") == record.taint.key]
    if on_node:
        return f"a taint on the Node that is not ours ({joined(on_node)})"
    if any(taint.key == record.taint.key for taint in picture.driver_taints(record)):
        return "the driver's own taint on the device"
    return "a taint on the Node that is not ours, or the driver's own on the device,"


def _opted_out(record: Record, _picture: Picture) -> str:
    return f"Node {record.key.node} carries the label neuron-remediator/opt-out=true"


_WHY = {
    State.ACTIVE: _active,
    State.WITHHELD: _withheld,
    State.COVERED: _covered,
    State.OPTED_OUT: _opted_out,
}


def _release(record: Record, now: datetime) -> str:
    by = plain(record.released_by) or "somebody"
    unnoticed = ", which the remediator has yet to notice" if record.key.fault in FAULTS else ""
    over = "" if now < record.released_until else unnoticed
    return f"by {by} until {until(record.released_until, now)}{over}; the reason given: {plain(record.reason)!r}"


def ends(record: Record, picture: Picture) -> str:
    """What will end it."""
    if picture.void(record):
        return "the garbage collector removes it"
    fault = FAULTS.get(record.key.fault)
    if fault is None:
        return "when somebody takes it away, or with the Node, unless the remediator is newer and knows the fault"
    hold = f"{Intervals().hold}s with the shipped rules"
    clean = f"when the device has read clean for the hold time ({hold}; {CLEARED}, episode {plain(record.episode)})"
    if record.state is State.RELEASED:
        return f"{clean}; if it still stands when the release ends, the next firing raises it to {fault.effect} again"
    if record.latched:
        whose = "this fault never does" if fault.latched else "the source said that this one does not"
        return f"when the Node is replaced, or by an operator's release: it does not end with a clean reading ({whose})"
    return clean
