"""What effect and state a record is to have now. Pure.

The one sentence that every path goes by:

Lowering is immediate. Raising needs a latched record, or a firing that is being processed now, and always passes the
budget.

Firings, the end of a release, an opt-out that came or went, the driver's own taint coming or going, a freed budget and
a changed `--max-effect` all end here, so that none of them can disturb a target that another would have left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alerts.faults import FAULTS, Effect
from remediator.records import NEVER, Record, State, Taint
from remediator.targets import NodeTarget, Target, lies_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from remediator.budget import Limit
    from remediator.policy import Policy
    from remediator.records import Key
    from remediator.targets import AnyTarget

NO_EVIDENCE = "withheld until the fault fires again"
NO_ROOM = "withheld by the budget: "
_OPTED_OUT = "the Node is opted out"
_COVERED = "another's taint there is at least as strong"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What surrounds a record now.

    `target` is what its device is tainted by now, `opted_out` what its Node says. `driver_effect` gives the strongest
    effect of others' taints of our key on a target, which on a device are the driver's own; `refusal` which limit of
    the budget stands against an effect on a target, or None.
    """

    target: AnyTarget
    opted_out: bool
    policy: Policy
    driver_effect: Callable[[AnyTarget], Effect]
    refusal: Callable[[Key, AnyTarget, Effect], Limit | None]
    now: datetime


def level(record: Record, view: View, *, firing: bool) -> Record:
    """Return the record as it is to be; the same object's equal when nothing changes.

    `firing` says that a firing of this very fault is being processed now.
    """
    if record.emptied:
        # It may taint every device of the cluster: that is lowered at once, like anything else.
        record = replace(record, target=view.target, taint=replace(record.taint, effect=Effect.NONE))
    if record.state is State.RELEASED and view.now < record.released_until:
        return _lifted(record, view, State.RELEASED, record.reason)
    if record.state is State.RELEASED or record.released_until != NEVER:
        record = replace(record, released_until=NEVER, released_by="", reason=FAULTS[record.key.fault].alert)
    if view.opted_out:
        return _lifted(record, view, State.OPTED_OUT, _OPTED_OUT)
    target = _target(record, view, firing=firing)
    wanted = view.policy.effect_of(record.key.fault, target)
    if Effect.NONE.rank < wanted.rank <= view.driver_effect(target).rank:
        return _lifted(record, view, State.COVERED, _COVERED)
    # What is kept off the Node is kept off its devices, so that a taint of the one may become one of the other.
    disturbs_no_other = lies_in(target, record.target) and _is_taint_of_today(record, view)
    current = record.taint.effect if disturbs_no_other else Effect.NONE
    if wanted.rank > current.rank:
        stays = replace(record, target=target) if disturbs_no_other else record
        return _raised(stays, view, target, wanted, may=firing or record.latched)
    if record.state is State.WITHHELD and wanted is record.taint.effect and not (firing or record.latched):
        # It may be damaged by a hand: only a firing writes it anew.
        return record if target == record.target else replace(record, target=target)
    return _active(record, view, target, wanted)


def _target(record: Record, view: View, *, firing: bool) -> AnyTarget:
    """What the record is to taint now.

    A slice may be gone for a while (the kubelet wipes it at every start): that moves nothing. A guess at the name of a
    device is another matter: while no slice is there it taints nothing, so that a firing taints the Node.
    """
    if view.target.placed:
        return view.target
    away = isinstance(view.target, NodeTarget) and isinstance(record.target, Target) and not firing
    return record.target if record.target.placed or away else view.target


def _is_taint_of_today(record: Record, view: View) -> bool:
    """Whether it is the very taint that its fault has here and now; who tolerates another one does not tolerate it."""
    return record.taint == _taint(record, view, record.taint.effect)


def _taint(record: Record, view: View, effect: Effect) -> Taint:
    return Taint(view.policy.taint_key, FAULTS[record.key.fault].value, effect)


def _raised(record: Record, view: View, target: AnyTarget, wanted: Effect, *, may: bool) -> Record:
    limit = view.refusal(record.key, target, wanted) if may else None
    if may and limit is None:
        return _active(record, view, target, wanted)
    # Where it stays meanwhile, the policy may allow less than where it is to go.
    there = view.policy.effect_of(record.key.fault, record.target)
    weakest = min(record.taint.effect, wanted, there, key=lambda effect: effect.rank)
    # Which reason came first is kept: a repeated firing must not become a write.
    keeps = record.state is State.WITHHELD and (limit is None or record.reason.startswith(NO_ROOM))
    return replace(
        record,
        taint=replace(record.taint, effect=weakest),
        state=State.WITHHELD,
        reason=record.reason if keeps else NO_EVIDENCE if limit is None else f"{NO_ROOM}{limit}",
    )


def _active(record: Record, view: View, target: AnyTarget, effect: Effect) -> Record:
    return replace(
        record,
        target=target,
        taint=_taint(record, view, effect),
        state=State.ACTIVE,
        reason=FAULTS[record.key.fault].alert,
    )


def _lifted(record: Record, view: View, state: State, reason: str) -> Record:
    return replace(
        record,
        target=view.target if view.target.placed else record.target,
        taint=_taint(record, view, Effect.NONE),
        state=state,
        reason=reason,
    )
