"""Watches the Leases in the cluster until it is known whether a remediator leads."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from remediator.cli.lease_watch import LeaseWatch
from remediator.cli.rendering import console, progress
from remediator.cli.strays import kubectl
from remediator.cli.words import joined, plain

if TYPE_CHECKING:
    from pathlib import Path

    from remediator.cli.lease_watch import LeaseObject
    from remediator.cli.reading import Cluster

_LOOK_SECONDS = 1.0
_LOOKS = 15  # in one duration of the Lease, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The Lease that replicas are told of, besides all that carry our mark; `duration` is in seconds.

    `kubeconfig` is the file that a command to copy must name, if any.
    """

    namespace: str
    name: str
    duration: int
    kubeconfig: Path | None


async def watch(cluster_: Cluster, which: Which) -> LeaseWatch:
    """Watch the Leases until it is known that nobody leads; raises `click.ClickException` if somebody does."""
    clock = asyncio.get_running_loop().time
    watched = LeaseWatch(which.duration, clock())
    await look(cluster_, which, watched)
    held = _held(watched)
    doing = f"Watching for {watched.seconds:.0f} s whether a remediator leads{f' (Lease {held})' if held else ''}"
    pause = min(_LOOK_SECONDS, which.duration / _LOOKS)
    with progress(console(sys.stderr), doing, watched.seconds) as advance:
        while not watched.over(clock()):
            await asyncio.sleep(pause)
            advance(pause)
            await look(cluster_, which, watched)
    return watched


async def look(cluster_: Cluster, which: Which, watched: LeaseWatch) -> None:
    """Look once more; raises `click.ClickException` if somebody leads by now."""
    if leader := watched.saw(await _leases(cluster_, which)):
        raise click.ClickException(_leads(which, leader))


async def may_lead(cluster_: Cluster, which: Which) -> str:
    """What a run that is no dry run would watch for, from one look; empty where nobody holds a Lease."""
    watched = LeaseWatch(which.duration, 0)
    watched.saw(await _leases(cluster_, which))
    if not watched.held:
        return ""
    return (
        f"a remediator may lead (Lease {_held(watched)}): without --dry-run, this watches for {watched.seconds:.0f} s "
        "whether one does, and then refuses"
    )


async def _leases(cluster_: Cluster, which: Which) -> list[LeaseObject]:
    leases = await cluster_.leases()
    named = await cluster_.lease(which.namespace, which.name)
    return leases if named is None or named.ours else [*leases, named]


def _held(watched: LeaseWatch) -> str:
    return joined(f"{lease.called} of {plain(lease.holder)}" for lease in watched.held)


def _leads(which: Which, lease: LeaseObject) -> str:
    stop = f"{kubectl(which.kubeconfig)} scale deployment neuron-remediator --replicas=0 -n {lease.metadata.namespace}"
    return (
        f"nothing was changed: a remediator leads, {plain(lease.holder)} renews Lease {lease.called}, and would make "
        f"again what is removed; stop it first: {stop}"
    )
