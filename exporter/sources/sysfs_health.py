"""Is the device alive? Decides from the files of a device, now and before, what may be said of it (pure).

The driver prints cached values and keeps them silently when it cannot read the device any more, so a clean
text proves nothing: only a heartbeat that is seen to move does. A device that was silent before anybody looked,
or that could not be read meanwhile, is therefore unknown until it is, never healthy.

And silence, whatever its kind (a heartbeat that stands still, a folder that is gone, reads that fail), is laid at
the device's door only with a *witness*: a device that has gone on beating for half the timeout since the node
last lost a device or got one. While the driver is unloaded it takes the devices away one by one, and when it
hangs they fall silent together: then the driver is at fault, and sixteen evictions would be wrong.
It must not read files or clocks. Times are monotonic seconds, apart from ``wall``, seconds since the epoch.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.readings import Health, Live, Problem, Unknown, Unreachable
from exporter.sources import sysfs_text
from exporter.sources.sysfs_files import Failed, Files

HEARTBEAT: Final = "healthcheck_heartbeat"
COMPONENTS: Final = "unhealthy_components"

# What the kernel answers for a device that does not. Other errors (no permission, no descriptors left) are the
# exporter's own and say nothing of the device.
_DEVICE_ERRORS: Final = frozenset({errno.EIO, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EREMOTEIO})

_OWN_ERRORS: Final = {
    errno.EACCES: Problem.NOT_PERMITTED,
    errno.EPERM: Problem.NOT_PERMITTED,
    errno.EFBIG: Problem.UNPARSABLE,
    errno.ENOTUNIQ: Problem.AMBIGUOUS_FILE,
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

    ``shown``: when its folder was first there since the driver was loaded. ``lost``: time of the first of the
    observations in a row without an answer. ``unreachable``: why, from the moment it was declared so until a
    live reading. ``trouble``: what stood in the way in the newest observation. ``faults``: what it said.
    """

    shown: float | None = None
    beat: Beat | None = None
    lost: float | None = None
    trouble: Problem | None = None
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
        return _failing(before, Problem.DEVICE_GONE, moment)
    before = replace(before, shown=moment.now if before.shown is None else before.shown)
    heartbeat, components = files.get(HEARTBEAT), files.get(COMPONENTS)
    errors = [content.errno for content in (heartbeat, components) if isinstance(content, Failed)]
    if not _DEVICE_ERRORS.isdisjoint(errors):
        return _failing(before, Problem.DEVICE_ERROR, moment)
    trace = replace(before, lost=None, trouble=None)
    if heartbeat is None or components is None:
        return replace(trace, trouble=Problem.NO_HEALTH_FILE)
    if isinstance(heartbeat, Failed) or isinstance(components, Failed):
        return replace(trace, trouble=_OWN_ERRORS.get(errors[0], Problem.READ_FAILED))
    value = sysfs_text.heartbeat(heartbeat)
    if value is None:
        return replace(trace, trouble=Problem.UNPARSABLE)
    trace = replace(trace, beat=_beat(before.beat, value, moment))
    faults = sysfs_text.components(components).faults
    return replace(trace, trouble=Problem.UNPARSABLE) if faults is None else replace(trace, faults=faults)


def has_witness(traces: Mapping[int, Trace], moment: Moment) -> bool:
    """Whether a device has gone on beating, unbroken, for half the timeout since the node last lost or got one.

    A device that is silent itself cannot have. On a node with one device there is nobody to ask.
    """
    if len(traces) == 1:
        return True
    changes = (time for trace in traces.values() for time in (trace.shown, _silent_since(trace, moment)))
    settled = max(time for time in changes if time is not None)
    return any(
        beat.changed - max(settled, beat.beating_since) >= moment.timeout / 2
        for trace in traces.values()
        if (beat := trace.beat) and beat.beating_since is not None
    )


def judge(trace: Trace, moment: Moment, *, witnessed: bool) -> Health:
    """What may be said of the device; ``witnessed`` as `has_witness` says of all devices of the node."""
    silence = _silence(trace, moment)
    if silence is None and trace.trouble is None and trace.beat and trace.beat.beating_since is not None:
        return Live(present=trace.faults, taken=trace.beat.alive)
    if trace.unreachable is not None:
        return Unreachable(reason=trace.unreachable)
    if silence is None:
        return Unknown(reason=str(trace.trouble or "its heartbeat has not been seen to move yet"))
    if witnessed:
        return Unreachable(reason=silence)
    return Unknown(reason=f"{silence}, and no other device has gone on beating for long enough since")


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
    # The heartbeat has to be seen to move anew: what it did up to now says nothing of what it does afterwards.
    return replace(before, trouble=trouble, beat=None, lost=moment.now if before.lost is None else before.lost)


def _beat(before: Beat | None, value: int, moment: Moment) -> Beat:
    fresh = Beat(value=value, changed=moment.now, read=moment.now)
    # After a pause of ours (a stopped process, a slow disk) an equal value may be one lap of the counter, and
    # another one may have stood there for almost as long as the pause.
    if before is None or moment.now - before.read > moment.timeout / 2:
        return fresh
    if value == before.value:
        return replace(before, read=moment.now)
    unbroken = moment.now - before.changed < moment.timeout / 2
    since = before.beating_since if unbroken and before.beating_since is not None else moment.now
    return replace(fresh, beating_since=since, alive=moment.wall)


def _silence(trace: Trace, moment: Moment) -> str | None:
    """Why the device counts as silent, if it does."""
    if trace.lost is not None:
        # One failure alone may be chance, and a device that was never shown may still be starting.
        waited = moment.now - trace.lost
        if waited <= 0 or (trace.shown is None and waited < moment.timeout):
            return None
        return "its folder is gone" if trace.trouble == Problem.DEVICE_GONE else "its files cannot be read"
    if trace.beat and _stood_still(trace.beat) >= moment.timeout:
        return "its heartbeat stands still"
    return None


def _silent_since(trace: Trace, moment: Moment) -> float | None:
    """When the device fell silent, if it did: a heartbeat counts long before the timeout, as it must not witness.

    A quarter of the timeout, half of what a witness needs: so hearts that stop one by one put off the verdict on
    the first of them until none is left, as folders that vanish one by one do.
    """
    if trace.lost is not None:
        return trace.lost
    if trace.beat and _stood_still(trace.beat) >= moment.timeout / 4:
        return trace.beat.changed
    return None


def _stood_still(beat: Beat) -> float:
    # Up to the newest read, not up to now: what could not be read was not seen to stand still.
    return beat.read - beat.changed
