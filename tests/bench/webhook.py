"""From the webhook request to the acknowledged rule, next to what the API server itself needs for such a rule.

The floor is a bare create of the very same object through aiohttp on one connection, taken alternately with the
webhook so that both meet the same noise; a bare server-side apply stands beside it. The relay is the least that any
webhook in Python could do: what is above the relay is this product's own doing.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from datetime import UTC, datetime
from itertools import islice, product, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from alerts.faults import FAULTS
from remediator.records import Key
from tests.bench.audit_tail import AuditTail
from tests.bench.faults import DEVICES, RULES, alert, bare, node_names, notification, record
from tests.bench.measurement import Measurement, percentile
from tests.stack.http import is_ok
from tests.stack.kube import Admin
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.process import Process, free_port, wait_until
from tests.stack.progress import progress
from tests.stack.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane


class Size(NamedTuple):
    """How much."""

    faults: int
    warm_up: int


FULL = Size(faults=300, warm_up=20)
SMALL = Size(faults=20, warm_up=2)

_GOAL = 1.5


def _keys(faults: int) -> Iterator[Key]:
    nodes = node_names(-(-faults // (DEVICES * len(FAULTS))))
    return islice(starmap(Key, product(nodes, range(DEVICES), FAULTS)), faults)


async def _timed(request: Callable[[], Awaitable[aiohttp.ClientResponse]], expected: int) -> float:
    began = time.perf_counter()
    response = await request()
    await response.read()
    seconds = time.perf_counter() - began
    if response.status != expected:
        raise RuntimeError(f"measuring {response.url.path}: got {response.status}; expected {expected}")
    return seconds


class _Clients:
    """One session with one connection to each server."""

    def __init__(self, control_plane: ControlPlane, webhook: str, relay: str) -> None:
        context = ssl.create_default_context(cafile=control_plane.ca_file)
        self._api = aiohttp.ClientSession(
            control_plane.url,
            headers={"Authorization": f"Bearer {control_plane.token('admin')}"},
            connector=aiohttp.TCPConnector(ssl=context, limit=1),
        )
        self._hook = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            connector=aiohttp.TCPConnector(limit_per_host=1),
        )
        self._webhook = webhook
        self._relay = relay

    async def create(self, body: dict[str, Any]) -> float:
        return await _timed(lambda: self._api.post(RULES, json=body), 201)

    async def apply(self, body: dict[str, Any]) -> float:
        path = f"{RULES}/{body['metadata']['name']}?fieldManager=bench&force=true"
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return await _timed(lambda: self._api.patch(path, data=json.dumps(body), headers=headers), 201)

    async def notify(self, body: bytes) -> float:
        return await _timed(lambda: self._hook.post(self._webhook, data=body), 200)

    async def relay(self, body: dict[str, Any]) -> float:
        return await _timed(lambda: self._hook.post(self._relay, json=body), 201)

    async def close(self) -> None:
        await self._api.close()
        await self._hook.close()


async def _measure(clients: _Clients, uids: dict[str, str], size: Size) -> dict[str, list[float]]:
    """Seconds of each kind of request, taken in turns."""
    seconds: dict[str, list[float]] = {"create": [], "apply": [], "relay": [], "webhook": []}
    try:
        for count, key in enumerate(_keys(size.warm_up + size.faults)):
            started = datetime.now(UTC)
            fault = record(key, uids[key.node], started)
            taken = {
                "create": await clients.create(bare(fault, "create")),
                "apply": await clients.apply(bare(fault, "apply")),
                "relay": await clients.relay(bare(fault, "relay")),
                "webhook": await clients.notify(notification([alert(key, started)])),
            }
            for name, value in taken.items() if count >= size.warm_up else ():
                seconds[name].append(value)
    finally:
        await clients.close()
    return seconds


def _relay(control_plane: ControlPlane, directory: Path) -> tuple[Process, str]:
    port = free_port()
    environment = {
        "RELAY_SERVER": control_plane.url,
        "RELAY_CA_FILE": str(control_plane.ca_file),
        "RELAY_TOKEN": control_plane.token("admin"),
        "RELAY_PORT": str(port),
    }
    process = Process("relay", (sys.executable, "-m", "tests.bench.relay"), directory, environment)
    return process, f"http://127.0.0.1:{port}/"


def run(control_plane: ControlPlane, directory: Path, size: Size) -> list[Measurement]:
    """Measure on a running control plane; rules and nodes are left there."""
    admin = Admin(control_plane)
    total = size.warm_up + size.faults
    uids = {name: admin.node(name)["metadata"]["uid"] for name in dict.fromkeys(key.node for key in _keys(total))}
    relay, relay_url = _relay(control_plane, directory)
    tail = AuditTail(control_plane.audit_log)
    with relay, Replicas(directory, control_plane, count=1, lease_seconds=15, flags=LIFTED) as replicas:
        relay.wait_ready(lambda: is_ok(f"{relay_url}readyz"))
        replicas.wait_for_leader()
        webhook = f"{replicas.url(0)}/api/v1/alerts"

        async def measure() -> dict[str, list[float]]:
            return await _measure(_Clients(control_plane, webhook, relay_url), uids, size)

        with progress(f"{total} faults, four ways each"):
            seconds = asyncio.run(measure())
        wait_until(
            lambda: len(tail.writes("devicetaintrules")) >= total, timeout=10, what="every write in the audit log"
        )
    return _report(seconds, len(tail.writes("devicetaintrules")) / total)


def _report(seconds: dict[str, list[float]], writes_a_fault: float) -> list[Measurement]:
    samples = len(seconds["webhook"])
    rows = [
        Measurement(name=f"{what} P{percent}", value=percentile(values, percent) * 1000, unit="ms", samples=len(values))
        for what, values in seconds.items()
        for percent in (50, 99)
    ]
    for floor in ("create", "apply", "relay"):
        for percent in (50, 99):
            ratio = percentile(seconds["webhook"], percent) / percentile(seconds[floor], percent)
            goal = _GOAL if (floor, percent) == ("create", 50) else None
            rows.append(
                Measurement(name=f"webhook / {floor} P{percent}", value=ratio, unit="x", samples=samples, target=goal)
            )
    if writes_a_fault < 1:
        raise RuntimeError(f"counting writes: got {writes_a_fault:g} a fault; expected one for each")
    rows.append(
        Measurement(name="rule writes a fault (audit log)", value=writes_a_fault, unit="", samples=samples, target=1.0)
    )
    return rows
