"""Times, texts and effects as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from alerts.faults import Effect
from remediator.inventory import NEURON_NODE
from remediator.node_records import foreign_taints
from remediator.records import NEVER
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remediator.inventory import Node
    from remediator.records import Record
    from remediator.targets import AnyTarget

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_KEEP_OFF = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
_COARSE = 2
_ROOM = 10  # of the larger unit: from there on the smaller one says nothing

MEANS = {
    Effect.NONE: "nothing is kept off it and nothing is evicted",
    Effect.NO_SCHEDULE: "no new work is placed on it, and what runs there stays",
    Effect.NO_EXECUTE: "no new work is placed on it, and pods that use it are evicted unless they tolerate the taint",
}
"""What an effect does to the device it is on."""

_MEANS_FOR_NODE = {
    Effect.NONE: MEANS[Effect.NONE],
    Effect.NO_SCHEDULE: (
        "it keeps every new pod off the Node unless it tolerates the taint, whether or not it uses a Neuron device; "
        "pods there stay"
    ),
    Effect.NO_EXECUTE: (
        "it keeps every new pod off the Node and evicts every pod there unless it tolerates the taint, the DRA driver "
        "and Neuron Observer among them"
    ),
}

NODE_RIGHTS = "have the ClusterRole neuron-taints-node-operator (deploy/rbac.yaml) bound to you"
"""What to do about Nodes that may not be listed or written."""

OPERATOR_RIGHTS = "have the ClusterRole neuron-taints-operator (deploy/rbac.yaml) bound to you"
"""What to do about anything else that may not be done."""


UNLISTED = "no slice lists this device: the taint meets nothing, unless a claim still holds it"
"""What is to be known of a taint on a name that no slice has."""


def plain(text: str) -> str:
    """A text that others have written, on one line and without anything that could drive a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "replace").decode() for one in text)


def utc(moment: datetime) -> str:
    """A time to the second, or "unknown"."""
    if moment == NEVER:
        return "unknown"
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds") + "Z"


def rfc3339(moment: datetime | None) -> str | None:
    """A time for programs; None where there is none."""
    if moment is None or moment == NEVER:
        return None
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def span(length: timedelta) -> str:
    """How long: in its largest unit, and in the next one where that still matters. Nothing is shorter than 0 s."""
    left = max(0, int(length.total_seconds()))
    said: list[str] = []
    for seconds, unit in _UNITS:
        count, left = divmod(left, seconds)
        if count or said or unit == "s":
            said.append(f"{count}{unit}" if count or not said else "")
            if len(said) == _COARSE or count >= _ROOM:
                break
    return "".join(said)


def age(since: datetime, now: datetime) -> str:
    """How long ago, or "unknown"."""
    return "unknown" if since == NEVER else span(now - since)


def since(moment: datetime, now: datetime) -> str:
    """A time with its distance, for a sentence."""
    return "unknown when" if moment == NEVER else f"{utc(moment)} ({span(now - moment)} ago)"


def until(moment: datetime, now: datetime) -> str:
    """A time to come with its distance, for a sentence."""
    if moment == NEVER:
        return "an unknown time"
    return f"{utc(moment)} ({f'in {span(moment - now)}' if moment > now else 'over'})"


def means(record: Record) -> str:
    """What its effect does where it is."""
    return (_MEANS_FOR_NODE if isinstance(record.target, NodeTarget) else MEANS)[record.taint.effect]


def where(target: AnyTarget, *, listed: bool | None = None) -> str:
    """What a taint lands on, in words; `listed`: whether a slice lists it now (None: as the target says)."""
    if isinstance(target, NodeTarget):
        return f"the Node {plain(target.node)} as a whole"
    if target.device == NEURON_NODE:
        return f"{NEURON_NODE} of pool {plain(target.pool)} (the whole node: on an UltraServer it is one device)"
    placed = target.placed if listed is None else listed
    unplaced = "" if placed else f" ({UNLISTED})"
    return f"{plain(target.device)} of pool {plain(target.pool)}{unplaced}"


def called(target: AnyTarget) -> str:
    """A target's short name, where its node has been named."""
    return "the Node" if isinstance(target, NodeTarget) else plain(target.device)


def taint_text(taint: Mapping[str, Any]) -> str:
    """A taint of a Node as kubectl writes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return plain(f"{taint.get('key')}{value}:{taint.get('effect')}")


def kept_off_by_others(node: Node) -> list[str]:
    """The taints of a Node that are not ours and keep pods off."""
    return [taint_text(taint) for taint in foreign_taints(node) if taint.get("effect") in _KEEP_OFF]


def no_such_node(name: str, others: Iterable[str]) -> str:
    """Say that a Node is not there, and which of the others its name may have been meant to be."""
    likely = get_close_matches(name, sorted(others), n=2)
    hint = f"; did you mean {plain(' or '.join(likely))}?" if likely else ""
    return f"there is no Node of that name{hint}"


def joined(parts: Iterable[object]) -> str:
    """Several things in a sentence."""
    return ", ".join(str(part) for part in parts)


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
