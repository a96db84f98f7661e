"""The webhook's contract with its sender, over real HTTP: what each answer means, and what is never told.

200 done or not our business · 503 ask again, on another connection · 4xx asking again cannot help.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS
from remediator.app import BODY_LIMIT, WEBHOOK
from remediator.records import episode_of
from tests.remediator.conftest import TOKEN, MakeService, Service
from tests.remediator.samples import NODE, NOW, STARTED, Json, alert_json, body, node

if TYPE_CHECKING:
    from collections.abc import Callable


# What is accepted


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_firing_alert_becomes_the_record_of_its_fault(service: Service, fault: str) -> None:
    assert await service.post(alert_json(fault=fault)) == 200

    record = service.record(fault)
    assert record is not None
    assert (record.taint.value, record.taint.effect) == (FAULTS[fault].value, FAULTS[fault].effect)
    assert service.counts("alerts", "outcome") == {"applied": 1}
    assert service.counts("notifications", "result") == {"accepted": 1}
    assert service.count("actions", action="create", backend="memory", result="ok") == 1


async def test_an_empty_notification_is_fine(service: Service) -> None:
    assert await service.post() == 200
    assert service.backend.writes == []


async def test_a_clear_removes_the_very_spell(service: Service) -> None:
    """A latch clears by its reading alone: a resolved may never come (alertmanager#2570, #226, #2805)."""
    await service.post(alert_json(fault="link_efa"))
    cleared = alert_json(fault="link_efa", remediation="clear", episode=episode_of(STARTED))

    assert await service.post(cleared) == 200
    assert service.record("link_efa") is None
    assert await service.post(cleared) == 200
    assert service.counts("alerts", "outcome") == {"applied": 1, "cleared": 1, "ignored_no_record": 1}


async def test_a_forged_clear_of_a_latched_fault_changes_nothing(service: Service) -> None:
    await service.post(alert_json())

    assert await service.post(alert_json(remediation="clear", episode=episode_of(STARTED))) == 200
    assert service.record() is not None
    assert service.count("alerts", outcome="ignored_latched") == 1


async def test_no_passing_of_time_clears(service: Service) -> None:
    """Without evidence a fault stays until its node is recycled (node-problem-detector#936, #215)."""
    await service.post(alert_json(fault="link_efa"))
    service.clock.now += timedelta(days=400)

    assert await service.post() == 200
    assert service.record("link_efa") is not None


async def test_the_heartbeat_is_noted(service: Service) -> None:
    assert await service.post(alert_json(remediation="heartbeat", node=None, device=None, fault=None)) == 200

    gauge = service.metrics.registry.get_sample_value("neuron_remediator_heartbeat_timestamp_seconds")
    assert gauge == NOW.timestamp()
    assert service.backend.writes == []


@pytest.mark.parametrize(
    ("outcome", "ignored"),
    [
        ("ignored_resolved", alert_json(status="resolved")),
        ("ignored_unknown_alert", alert_json(remediation=None)),
        ("ignored_unknown_alert", alert_json(remediation="reboot")),
        ("ignored_unknown_fault", alert_json(fault="melted")),
        ("ignored_no_identity", alert_json(node=None)),
        ("ignored_no_identity", alert_json(node=None, exported_node=NODE)),
        ("ignored_no_identity", alert_json(node="")),
        ("ignored_no_identity", alert_json(node="10.0.0.5:9400")),
        *(("ignored_no_identity", alert_json(device=device)) for device in (None, "", "d0", "-1", "03", "99999")),
        ("ignored_no_identity", alert_json(fault=None)),
        ("ignored_no_identity", alert_json(remediation="clear")),
        ("ignored_unknown_node", alert_json(node="ip-10-9-9-9.ec2.internal")),
        ("ignored_no_record", alert_json(remediation="clear", episode="abc")),
        ("heartbeat", alert_json(remediation="heartbeat")),
    ],
)
async def test_what_is_not_our_business_is_counted_and_changes_nothing(
    service: Service, outcome: str, ignored: Json
) -> None:
    """Never a guess: relabelling turns `node` into `exported_node` or an address (gpu-operator#811)."""
    assert await service.post(ignored) == 200

    assert service.counts("alerts", "outcome") == {outcome: 1}
    assert service.counts("notifications", "result") == {"accepted": 1}
    assert service.backend.writes == []


async def test_an_alert_older_than_its_young_node_is_not_heard(service: Service) -> None:
    service.cluster.known[NODE] = node(uid="uid-2", created=NOW - timedelta(minutes=1))

    assert await service.post(alert_json(started=NOW - timedelta(minutes=2))) == 200
    assert service.counts("alerts", "outcome") == {"ignored_before_node": 1}
    assert service.backend.writes == []


async def test_a_record_of_the_machine_before_is_deleted_and_made_anew(service: Service) -> None:
    await service.post(alert_json())
    before = service.record()
    service.cluster.known[NODE] = node(uid="uid-2", created=STARTED)
    assert await service.post(alert_json(started=STARTED + timedelta(seconds=1))) == 200

    after = service.record()
    assert before is not None
    assert before.stored is not None
    assert after is not None
    assert after.stored is not None
    assert after.node_uid == "uid-2"
    assert after.stored.uid != before.stored.uid
    assert [step for step, _ in service.backend.writes] == ["create", "delete", "create"]


# What is refused


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} x",
        "Bearer \u00e9\u00ff",
    ],
)
async def test_without_the_token_nothing_is_read(service: Service, authorization: str | None) -> None:
    answer = await service.send(body(alert_json()), authorization)

    assert (answer.status, answer.closes) == (401, True)
    assert service.counts("notifications", "result") == {"unauthorized": 1}
    assert service.backend.writes == []


async def test_a_token_that_is_not_even_text_is_a_wrong_one(service: Service) -> None:
    """Header bytes outside UTF-8 reach us as lone surrogates, which do not encode."""
    server = service.client.server
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(
        b"POST "
        + WEBHOOK.encode()
        + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\nContent-Length: 0\r\n\r\n"
    )

    assert await asyncio.wait_for(reader.readline(), 5) == b"HTTP/1.1 401 Unauthorized\r\n"
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN}"])
async def test_the_scheme_is_written_in_any_case(service: Service, authorization: str) -> None:
    assert (await service.send(body(alert_json()), authorization)).status == 200


async def test_without_a_token_set_everybody_may_send(make_service: MakeService) -> None:
    service = await make_service(token=None)

    assert (await service.send(body(alert_json()), None)).status == 200
    assert service.record() is not None


async def test_a_body_beyond_the_limit(service: Service) -> None:
    answer = await service.send(body(alert_json()).rstrip() + b" " * BODY_LIMIT)

    assert (answer.status, answer.closes) == (413, True)
    assert str(BODY_LIMIT) in answer.text
    assert service.counts("notifications", "result") == {"too_large": 1}
    assert service.backend.writes == []


async def test_a_group_of_2500_alerts_is_taken(service: Service) -> None:
    """1.5 MB, above the HTTP server's own default limit, which would lose it for good."""
    annotations = {"description": "x" * 400}
    alerts = [alert_json(device=str(number)) | {"annotations": annotations} for number in range(2500)]
    assert len(body(*alerts)) > 1024 * 1024

    assert await service.post(*alerts) == 200
    assert len(service.backend.writes) == 2500


# Clusters


async def test_a_node_that_memory_is_behind_on_does_not_cost_a_valid_record(service: Service) -> None:
    """The record is of the new machine, and memory still shows the old one: which is gone must be read live."""
    service.cluster.known[NODE] = node(uid="uid-2")
    await service.post(alert_json())
    service.cluster.known[NODE], service.cluster.really = node(uid="uid-1"), {NODE: node(uid="uid-2")}

    assert await service.post(alert_json()) == 200
    record = service.record()
    assert record is not None
    assert record.node_uid == "uid-2"
    assert [step for step, _ in service.backend.writes] == ["create"]


async def test_alerts_of_another_cluster_are_ignored(make_service: MakeService) -> None:
    service = await make_service(cluster="c1")
    for named in ("c2", None, ""):
        assert await service.post(alert_json(cluster=named)) == 200
    assert service.counts("alerts", "outcome") == {"ignored_other_cluster": 3}

    assert await service.post(alert_json(cluster="c1")) == 200
    assert service.record() is not None


async def test_without_a_name_the_first_cluster_that_speaks_is_ours(service: Service) -> None:
    """Node names repeat between clusters, so a second one is refused."""
    await service.post(alert_json(cluster="c1"))
    await service.post(alert_json(cluster="c2", device="4"))
    await service.post(alert_json(device="5"))

    assert [key.device for _, key in service.backend.writes] == [3, 5]
    assert service.count("alerts", outcome="ignored_other_cluster") == 1


@pytest.mark.parametrize(
    "meaningless",
    [
        alert_json(cluster="c2", status="resolved"),
        alert_json(cluster="c2", remediation=None),
        alert_json(cluster="c2", fault="melted"),
        alert_json(cluster="c2", node=None),
        alert_json(cluster="c2", node="not-here"),
        alert_json(cluster="c2", remediation="clear", episode="nothing"),
    ],
)
async def test_an_alert_that_says_nothing_does_not_choose_the_cluster(service: Service, meaningless: Json) -> None:
    """Else one stray notification locks our own cluster out until a restart."""
    await service.post(meaningless)

    assert await service.post(alert_json(cluster="c1")) == 200
    assert service.record() is not None


# What is never told


async def test_no_secret_and_nothing_of_a_refused_body_reaches_the_log(
    service: Service, logged: Callable[[], str]
) -> None:
    secret = "S3CRET-0123456789"
    await service.send(body(alert_json()))
    await service.send(body(alert_json()), f"Bearer {secret}")
    for misplaced in (
        f'{{"text":"{secret}"}}'.encode(),
        body(alert_json() | {"status": secret}),
        body(alert_json(), version=secret),
        body(alert_json() | {"startsAt": secret}),
        secret.encode(),
    ):
        answer = await service.send(misplaced)
        assert answer.status == 400
        assert secret not in answer.text

    everything = logged()
    assert "notification refused" in everything
    assert secret[:8] not in everything
    assert TOKEN[:8] not in everything


async def test_each_change_leaves_one_audit_line(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "remediator.audit")
    await service.post(alert_json(fault="link_efa"))
    await service.post(alert_json(fault="link_efa"))
    await service.post(alert_json(fault="link_efa", remediation="clear", episode=episode_of(STARTED)))

    lines = [record for record in caplog.records if record.name == "remediator.audit"]
    assert [line.getMessage() for line in lines] == ["create", "delete"]
    assert (
        vars(lines[0]).items()
        >= {
            "node": NODE,
            "device": 3,
            "fault": "link_efa",
            "target": f"neuron.aws.com/{NODE}/neuron-device-3",
            "effect": "NoSchedule",
            "state": "active",
            "latched": False,
            "episode": episode_of(STARTED),
        }.items()
    )


# Health and the rest of the surface


async def test_readiness_follows_the_caches_and_liveness_does_not(service: Service) -> None:
    service.cluster.waiting_for = "waiting for the first list of nodes"
    for path, status in (("/readyz", 503), ("/-/ready", 503), ("/livez", 200), ("/-/healthy", 200)):
        async with service.client.get(path) as response:
            assert response.status == status
    service.cluster.waiting_for = None
    async with service.client.get("/readyz") as response:
        assert response.status == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", WEBHOOK, 405), ("POST", "/api/v1/alerts/", 404)])
async def test_nothing_redirects(service: Service, method: str, path: str, status: int) -> None:
    """Alertmanager turns a redirected post into a GET and takes its 200 for a delivery."""
    async with service.client.request(method, path, allow_redirects=False) as response:
        assert response.status == status
