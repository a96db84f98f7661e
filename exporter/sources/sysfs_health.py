"""Is the device alive? Decides from the files of a device, now and before, what may be said of it (pure).

The driver prints cached values and keeps them silently when it cannot read the device any more, so a clean
text proves nothing: only a heartbeat that moves does. A device that was silent before anybody looked is
therefore unknown, never healthy.

And silence is laid at the device's door only with a *witness*: another device of the node that went on beating
meanwhile. When all fall silent together, the driver is at fault, and sixteen evictions would be wrong.
It must not read files or clocks. Times are monotonic seconds, apart from ``wall``, seconds since the epoch.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.readings import Health, Live, Problem, Unknown, Unreachable
from exporter.sources import sysfs_text
from exporter.sources.sysfs_tree import Failed, Files

HEARTBEAT: Final = "healthcheck_heartbeat"
COMPONENTS: Final = "unhealthy_components"

_FAILED_READS: Final = 2
# What the kernel answers for a device that does not. Other errors (no permission, no descriptors left) are the
# exporter's own and say nothing of the device.
_DEVICE_ERRORS: Final = frozenset({errno.EIO, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EREMOTEIO})

_OWN_ERRORS: Final = {
    errno.EACCES: Problem.NOT_PERMITTED,
    errno.EPERM: Problem.NOT_PERMITTED,
    errno.EFBIG: Problem.UNPARSABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The newest heartbeat value: first and latest time it was read.

    ``beating_since`` is the start of the present run of changes; None until the first change is seen.
    ``alive`` is the wall clock at the latest change.
    """

    value: int
    changed: float
    read: float
    beating_since: float | None = None
    alive: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is remembered of one device between two readings.

    ``seen``: its folder was there since the driver was loaded. ``lost``: time of the first of ``failures``
    observations in a row without an answer. ``unreachable``: why, from the moment it was declared so until a
    live reading. ``trouble``: what stood in the way in the newest observation. ``faults``: what it said.
    """

    seen: bool = False
    beat: Beat | None = None
    lost: float | None = None
    failures: int = 0
    trouble: Problem | str | None = "not read yet"
    faults: frozenset[str] = frozenset()
    unreachable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a reading took place, and how long a heartbeat may stand still."""

    now: float
    wall: float
    timeout: float


def observe(before: Trace, files: Files | None, moment: Moment) -> Trace:
    """Take in the files of one device; None when its folder is not there."""
    if files is None:
        return _failing(replace(before, beat=None), Problem.DEVICE_GONE, moment)
    before = replace(before, seen=True)
    heartbeat, components = files.get(HEARTBEAT), files.get(COMPONENTS)
    errors = [content.errno for content in (heartbeat, components) if isinstance(content, Failed)]
    if not _DEVICE_ERRORS.isdisjoint(errors):
        return _failing(before, Problem.DEVICE_ERROR, moment)
    trace = replace(before, lost=None, failures=0, trouble=None)
    if heartbeat is None or components is None:
        return replace(trace, trouble=f"the driver shows no {HEARTBEAT if heartbeat is None else COMPONENTS}")
    if isinstance(heartbeat, Failed) or isinstance(components, Failed):
        return replace(trace, trouble=_OWN_ERRORS.get(errors[0], Problem.READ_FAILED))
    value = sysfs_text.heartbeat(heartbeat)
    if value is None:
        return replace(trace, trouble=Problem.UNPARSABLE)
    trace = replace(trace, beat=_beat(before.beat, value, moment))
    faults = sysfs_text.components(components).faults
    return replace(trace, trouble=Problem.UNPARSABLE) if faults is None else replace(trace, faults=faults)


def judge(index: int, traces: Mapping[int, Trace], moment: Moment) -> Health:
    """What may be said of the device, given what all devices of the node did."""
    trace = traces[index]
    silence = _silence(trace, moment)
    if silence is None and trace.trouble is None and trace.beat and trace.beat.beating_since is not None:
        return Live(present=trace.faults, taken=trace.beat.alive)
    if trace.unreachable is not None:
        return Unreachable(reason=trace.unreachable)
    if silence is not None:
        reason, since, margin = silence
        if len(traces) == 1 or _has_witness(index, traces, since, margin):
            return Unreachable(reason=reason)
        return Unknown(reason=f"{reason}, and no other device was seen to beat meanwhile")
    return Unknown(reason=str(trace.trouble or "its heartbeat has not been seen to change yet"))


def after(trace: Trace, health: Health) -> Trace:
    """Remember the judgement: once unreachable, a device stays so until it gives a live reading."""
    match health:
        case Live():
            return replace(trace, unreachable=None)
        case Unreachable(reason=reason):
            return replace(trace, unreachable=reason)
        case Unknown():
            return trace


def _failing(before: Trace, trouble: Problem, moment: Moment) -> Trace:
    lost = moment.now if before.lost is None else before.lost
    return replace(before, trouble=trouble, lost=lost, failures=before.failures + 1)


def _beat(before: Beat | None, value: int, moment: Moment) -> Beat:
    fresh = Beat(value=value, changed=moment.now, read=moment.now)
    if before is None:
        return fresh
    paused = moment.now - before.read > moment.timeout / 2
    if value == before.value:
        # After a pause of ours (a stopped process, a slow disk) an equal value may be one lap of the counter.
        return fresh if paused else replace(before, read=moment.now)
    unbroken = not paused and moment.now - before.changed < moment.timeout / 2
    since = before.beating_since if unbroken and before.beating_since is not None else moment.now
    return replace(fresh, beating_since=since, alive=moment.wall)


def _silence(trace: Trace, moment: Moment) -> tuple[str, float, float] | None:
    """Why the device counts as silent, since when, and for how long a witness must have gone on beating."""
    if trace.lost is not None:
        # A device that has not shown itself yet may still be starting: the driver makes them one by one.
        starting = not trace.seen and moment.now - trace.lost < moment.timeout
        if trace.failures < _FAILED_READS or starting:
            return None
        gone = trace.trouble == Problem.DEVICE_GONE
        return ("its folder is gone" if gone else "its files cannot be read", trace.lost, 0)
    beat = trace.beat
    # At least three equal reads lie in between: two that are too far apart start the count anew.
    if beat and moment.now - beat.changed >= moment.timeout:
        return ("its heartbeat stands still", beat.changed, moment.timeout / 2)
    return None


def _has_witness(index: int, traces: Mapping[int, Trace], since: float, margin: float) -> bool:
    """Whether another device was beating, without a break, for more than the margin after ``since``."""
    return any(
        beat.changed - max(since, beat.beating_since) > margin
        for other, trace in traces.items()
        if other != index and (beat := trace.beat) and beat.beating_since is not None
    )
