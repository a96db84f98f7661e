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
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import aiohttp

from alerts.faults import FAULTS
from remediator.inventory import Target
from remediator.records import Key, Record, Taint, episode_of, to_object
from tests.bench.measurement import Measurement, percentile
from tests.stack.http import is_ok
from tests.stack.pipeline import TOKEN, Service, install
from tests.stack.process import Process, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

FAULTS_MEASURED = 300
WARM_UP = 20
_NODES = 3
_DEVICES = 16
_RULES = "/apis/resource.k8s.io/v1/devicetaintrules"
_TAINT_KEY = "neuron.aws.com/device-unhealthy"
_GOAL = 1.5


def _keys() -> Iterator[Key]:
    for node in range(_NODES):
        for device in range(_DEVICES):
            for fault in FAULTS:
                yield Key(f"bench-{node}", device, fault)


def _record(key: Key, node_uid: str, started: datetime) -> Record:
    fault = FAULTS[key.fault]
    return Record(
        key=key,
        node_uid=node_uid,
        target=Target("neuron.aws.com", key.node, f"neuron-device-{key.device}"),
        taint=Taint(_TAINT_KEY, fault.value, fault.effect),
        latched=fault.latched,
        episode=episode_of(started),
        first_fired=started,
        last_fired=started,
        reason=fault.alert,
    )


def _notification(key: Key, started: datetime) -> bytes:
    labels = {
        "alertname": FAULTS[key.fault].alert,
        "node": key.node,
        "device": str(key.device),
        "fault": key.fault,
        "remediation": "taint",
        "severity": "critical",
    }
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": FAULTS[key.fault].summary},
        "startsAt": started.isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "0" * 16,
    }
    return json.dumps({"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "alerts": [alert]}).encode()


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
        return await _timed(lambda: self._api.post(_RULES, json=body), 201)

    async def apply(self, body: dict[str, Any]) -> float:
        path = f"{_RULES}/{body['metadata']['name']}?fieldManager=bench&force=true"
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return await _timed(lambda: self._api.patch(path, data=json.dumps(body), headers=headers), 201)

    async def notify(self, body: bytes) -> float:
        return await _timed(lambda: self._hook.post(self._webhook, data=body), 200)

    async def relay(self, body: dict[str, Any]) -> float:
        return await _timed(lambda: self._hook.post(self._relay, json=body), 201)

    async def close(self) -> None:
        await self._api.close()
        await self._hook.close()


def _bare(record: Record, prefix: str) -> dict[str, Any]:
    """The same object under a name of its own, and without our mark: nobody but the API server looks at it."""
    body = to_object(replace(record), "resource.k8s.io/v1")
    body["metadata"]["name"] = f"{prefix}.{body['metadata']['name']}"
    del body["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    return body


async def _measure(clients: _Clients, uids: dict[str, str]) -> dict[str, list[float]]:
    """Seconds of each kind of request, taken in turns."""
    seconds: dict[str, list[float]] = {"create": [], "apply": [], "relay": [], "webhook": []}
    try:
        for count, key in enumerate(islice(_keys(), WARM_UP + FAULTS_MEASURED)):
            started = datetime.now(UTC)
            record = _record(key, uids[key.node], started)
            taken = {
                "create": await clients.create(_bare(record, "create")),
                "apply": await clients.apply(_bare(record, "apply")),
                "relay": await clients.relay(_bare(record, "relay")),
                "webhook": await clients.notify(_notification(key, started)),
            }
            for name, value in taken.items() if count >= WARM_UP else ():
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


def run(control_plane: ControlPlane, admin: Admin, directory: Path) -> list[Measurement]:
    """Measure on a running control plane; leaves nothing behind."""
    install(control_plane)
    uids = {name: admin.node(name)["metadata"]["uid"] for name in (f"bench-{number}" for number in range(_NODES))}
    token_file = directory / "token"
    token_file.write_text(TOKEN, encoding="utf-8")
    kubeconfig = control_plane.kubeconfig("neuron-remediator")
    remediator = Service("remediator", directory, (f"--webhook.token-file={token_file}", f"--kubeconfig={kubeconfig}"))
    before = len(control_plane.audit(user="neuron-remediator"))
    with ExitStack() as running:
        running.callback(admin.clean)
        running.callback(remediator.process.stop)
        remediator.start()
        relay, relay_url = _relay(control_plane, directory)
        running.callback(relay.stop)
        relay.start()
        relay.wait_ready(lambda: is_ok(f"{relay_url}readyz"))

        async def measure() -> dict[str, list[float]]:
            return await _measure(_Clients(control_plane, f"{remediator.url}/api/v1/alerts", relay_url), uids)

        seconds = asyncio.run(measure())
        total = WARM_UP + FAULTS_MEASURED
        wait_until(
            lambda: len(control_plane.audit(user="neuron-remediator")) - before >= total,
            timeout=10,
            what="every write in the audit log",
        )
        writes = len(control_plane.audit(user="neuron-remediator")) - before
    return _report(seconds, writes / total)


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
        Measurement(name="writes a fault (audit log)", value=writes_a_fault, unit="", samples=samples, target=1.0)
    )
    return rows
