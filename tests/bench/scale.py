"""A large fleet really in the API: first sync, memory, and what it costs to do nothing there.

Nodes and slices are as big as real ones (`tests.bench.fleet`). A kubelet writes its Node's status every five minutes
when nothing changes, which is 33 updates a second for 10,000. No claims, no faults: those cost by their own number.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import fleet
from tests.bench.audit_tail import AuditTail, Line
from tests.bench.client import at_once, connect_api
from tests.bench.faults import DEVICES, node_names
from tests.bench.measurement import Measurement
from tests.bench.process_figures import cpu_seconds, memory
from tests.stack.http import is_ok, request
from tests.stack.process import wait_for, wait_until
from tests.stack.progress import progress
from tests.stack.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.bench.client import Api
    from tests.stack.controlplane import ControlPlane
    from tests.stack.pipeline import Service

HEARTBEAT_SECONDS = 300
"""How often a kubelet writes a status that says nothing new (nodeStatusReportFrequency)."""

SCRAPE_SECONDS = 15.0
MOST_MEMORY = 250.0
MOST_CPU = 2.0

_SYNC_SECONDS = 120.0
_SETTLE_SECONDS = 600.0
_QUIET_SECONDS = 5.0
_SCRAPES = 5
_SENDERS = 8
_MIBI = 1024 * 1024


class Size(NamedTuple):
    """How much."""

    nodes: int
    seconds: int


FULL = Size(nodes=10_000, seconds=60)
SMALL = Size(nodes=100, seconds=6)


@dataclass(slots=True)
class _Scale:
    control_plane: ControlPlane
    size: Size
    service: Service

    @property
    def what(self) -> str:
        return f"{self.size.nodes} nodes, {self.size.nodes * DEVICES} devices"

    def row(self, name: str, value: float, unit: str, *, samples: int = 1, target: float | None = None) -> Measurement:
        return Measurement(name=f"{self.what}: {name}", value=value, unit=unit, samples=samples, target=target)

    def resident(self, when: str) -> Measurement:
        return self.row(f"resident {when}", memory(self.service.process.pid).resident, "MiB", target=MOST_MEMORY)

    def scrapes(self) -> Measurement:
        taken = [_scrape(self.service.url) for _ in range(_SCRAPES)]
        return self.row("scrape of /metrics", median(taken) * 1000, "ms", samples=_SCRAPES)

    def idle(self, names: Sequence[str], *, scraped: bool) -> list[Measurement]:
        """Processor time while nodes say that all is as it was. It includes all that the process does by itself."""
        tail = AuditTail(self.control_plane.audit_log)
        pid = self.service.process.pid
        began, used = time.perf_counter(), cpu_seconds(pid)
        with progress(f"node-status updates for {self.size.seconds} s{' with scrapes' if scraped else ''}"):
            asyncio.run(self._updates(names, scraped=scraped))
        seconds = time.perf_counter() - began
        share = (cpu_seconds(pid) - used) / seconds * 100
        writes = sum(map(_changes_node, tail.lines()))
        kind = f"and a scrape every {SCRAPE_SECONDS:g} s" if scraped else "alone"
        return [
            self.row(f"node updates (audit log), {kind}", writes / seconds, "1/s", samples=writes),
            self.row(
                f"share of a core, updates {kind}", share, "%", samples=writes, target=None if scraped else MOST_CPU
            ),
        ]

    async def _updates(self, names: Sequence[str], *, scraped: bool) -> None:
        # Evenly in time, whatever one takes.
        interval = HEARTBEAT_SECONDS / self.size.nodes
        total = max(1, min(len(names), round(self.size.seconds / interval)))
        began = time.monotonic()

        async def update(numbered: tuple[int, str]) -> None:
            number, name = numbered
            await asyncio.sleep(max(0.0, began + number * interval - time.monotonic()))
            await api.patch(f"{fleet.NODES}/{name}/status", json.dumps(fleet.heartbeat(_now())).encode())

        async def scrape() -> None:
            for at in range(int(self.size.seconds / SCRAPE_SECONDS)):
                await asyncio.sleep(max(0.0, began + (at + 0.5) * SCRAPE_SECONDS - time.monotonic()))
                await asyncio.to_thread(_scrape, self.service.url)

        async with connect_api(self.control_plane, _SENDERS) as api, asyncio.TaskGroup() as group:
            group.create_task(at_once(enumerate(names[:total]), update, _SENDERS))
            if scraped:
                group.create_task(scrape())
            await asyncio.sleep(self.size.seconds)

    def listed_again(self) -> Measurement:
        """The memory after everything was listed anew, as after an outage: two of it might be there at once."""
        tail = AuditTail(self.control_plane.audit_log)
        pages = -(-self.size.nodes // 500)
        with progress("the API server's restart and a second list"):
            self.control_plane.stop_apiserver()
            self.control_plane.start_apiserver()
            wait_until(
                lambda: (
                    all(len(tail.reads("list", kind)) >= pages for kind in ("nodes", "resourceslices"))
                    and is_ok(f"{self.service.url}/readyz")
                ),
                timeout=_SYNC_SECONDS,
                what="a second list of everything",
            )
        return self.resident("after a second list")


def run(control_plane: ControlPlane, directory: Path, size: Size) -> list[Measurement]:
    """Measure on a running control plane; the fleet is left there."""
    names = node_names(size.nodes)
    with progress(f"{size.nodes} nodes and their slices"):
        asyncio.run(_populate(control_plane, names))
    # The controller manager still has something to write on the first ones, once they change.
    newest, before = names[::-1], names[: size.nodes // 2][::-1]
    replicas = Replicas(directory, control_plane, count=1, lease_seconds=15)
    try:
        scale = _Scale(control_plane, size, replicas.service(0))
        rows = _stored(control_plane, scale, newest[0])
        replicas.start(wait=False)
        rows += _synced(scale)
        replicas.wait_for_leader()
        rows += [scale.resident("after the first sync"), scale.scrapes()]
        rows += [*scale.idle(newest, scraped=False), *scale.idle(before, scraped=True)]
        rows += [scale.resident("after these updates"), scale.listed_again()]
        peak = memory(scale.service.process.pid).peak
        return [*rows, scale.row("most ever resident", peak, "MiB", target=MOST_MEMORY)]
    finally:
        replicas.stop()


def _synced(scale: _Scale) -> list[Measurement]:
    """Time and processor time from the start of the process to the first 200 of /readyz."""
    process = scale.service.process
    began = time.perf_counter()
    with progress("the first sync"):
        process.wait_ready(lambda: is_ok(f"{scale.service.url}/readyz"), timeout=_SYNC_SECONDS)
    seconds, used = time.perf_counter() - began, cpu_seconds(process.pid)
    return [scale.row("first sync", seconds, "s"), scale.row("processor time of it", used, "s")]


def _stored(control_plane: ControlPlane, scale: _Scale, name: str) -> list[Measurement]:
    """How big it all is."""
    database = control_plane.audit_log.parent / "etcd/member/snap/db"
    sizes = {
        "a Node as JSON": f"{fleet.NODES}/{name}",
        "a slice as JSON": f"{fleet.SLICES}?fieldSelector=spec.nodeName={name}",
    }

    async def read() -> list[Measurement]:
        async with connect_api(control_plane, 1) as api:
            return [scale.row(what, len(await api.get(path)) / 1000, "kB") for what, path in sizes.items()]

    return [*asyncio.run(read()), scale.row("etcd's file", database.stat().st_size / _MIBI, "MiB")]


async def _populate(control_plane: ControlPlane, names: Sequence[str]) -> None:
    async with connect_api(control_plane, fleet.CONNECTIONS) as api:
        await fleet.make(api, names, _now())
        await _quiet(api)


async def _quiet(api: Api) -> None:
    """Wait until the controllers have written what they write about new nodes."""
    last = await _revision(api)

    async def unchanged() -> bool:
        nonlocal last
        await asyncio.sleep(_QUIET_SECONDS)
        before, last = last, await _revision(api)
        return last - before < _QUIET_SECONDS

    await wait_for(unchanged, timeout=_SETTLE_SECONDS, what="the controllers to have done with the new nodes")


async def _revision(api: Api) -> int:
    """How many changes there were in the whole cluster."""
    return int(json.loads(await api.get("/api/v1/namespaces?limit=1"))["metadata"]["resourceVersion"])


def _scrape(url: str) -> float:
    began = time.perf_counter()
    request("GET", f"{url}/metrics")
    return time.perf_counter() - began


def _changes_node(line: Line) -> bool:
    return line["verb"] in ("patch", "update") and line.get("objectRef", {}).get("resource") == "nodes"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
