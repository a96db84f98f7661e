"""What an alert says, or why it says nothing: the one place where labels become an identity."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.faults import FAULTS
from remediator.decide import Cleared, Fired, Outcome, triage
from remediator.records import Key
from tests.remediator.samples import NODE, NOW, alert, fired
from tests.remediator.strategies import hostile_texts

if TYPE_CHECKING:
    from remediator.notification import Alert

KEY = Key(NODE, 3, "hbm")
RESOLVED = Outcome.IGNORED_RESOLVED
NO_IDENTITY = Outcome.IGNORED_NO_IDENTITY
UNKNOWN_ALERT = Outcome.IGNORED_UNKNOWN_ALERT
UNKNOWN_FAULT = Outcome.IGNORED_UNKNOWN_FAULT
OTHER_CLUSTER = Outcome.IGNORED_OTHER_CLUSTER


Status = Literal["firing", "resolved"]
STATUSES: tuple[Status, ...] = ("firing", "resolved")


def labelled(labels: dict[str, str], status: Status = "firing") -> Alert:
    """The sample alert with some labels overlaid."""
    return msgspec.structs.replace(alert(status=status), labels=alert().labels | labels)


@pytest.mark.parametrize(
    ("given_alert", "meaning"),
    [
        pytest.param(alert(), fired(), id="fault"),
        pytest.param(alert(alertname="Renamed"), fired(), id="the-name-is-no-identity"),
        pytest.param(alert(value="3.1", pod="p"), fired(), id="more-labels"),
        pytest.param(alert(remediation="latch"), fired(latched=True), id="latch"),
        pytest.param(alert(remediation="clear", episode="abc"), Cleared(KEY, "abc"), id="clear"),
        pytest.param(alert(remediation="clear"), NO_IDENTITY, id="clear-of-nothing"),
        pytest.param(alert(remediation="clear", episode=""), NO_IDENTITY, id="clear-of-empty"),
        pytest.param(alert(remediation="heartbeat", node=None, device=None), Outcome.HEARTBEAT, id="heartbeat"),
        pytest.param(alert(status="resolved"), RESOLVED, id="resolved"),
        pytest.param(alert(status="resolved", remediation="clear", episode="abc"), RESOLVED, id="resolved-clear"),
        pytest.param(alert(status="resolved", remediation="heartbeat"), RESOLVED, id="resolved-heartbeat"),
        pytest.param(alert(remediation=None), UNKNOWN_ALERT, id="not-for-us"),
        pytest.param(alert(remediation=""), UNKNOWN_ALERT, id="empty-remediation"),
        pytest.param(alert(remediation="Taint"), UNKNOWN_ALERT, id="other-case"),
        pytest.param(alert(remediation="reboot"), UNKNOWN_ALERT, id="unknown-remediation"),
        pytest.param(alert(fault="melted"), UNKNOWN_FAULT, id="unknown-fault"),
        pytest.param(alert(fault="HBM"), UNKNOWN_FAULT, id="fault-in-other-case"),
        pytest.param(alert(node=None, exported_node="ip-1"), NO_IDENTITY, id="exported-node"),
        pytest.param(alert(node=""), NO_IDENTITY, id="empty-node"),
        pytest.param(alert(node="10.0.0.5:9400"), NO_IDENTITY, id="address"),
        pytest.param(alert(node="Ip-1"), NO_IDENTITY, id="upper-case-node"),
        pytest.param(alert(node="ip-1\n"), NO_IDENTITY, id="node-with-line-end"),
        pytest.param(alert(node="-ip"), NO_IDENTITY, id="node-with-dash-in-front"),
        pytest.param(alert(node="../nodes"), NO_IDENTITY, id="path"),
        pytest.param(alert(node="a" * 254), NO_IDENTITY, id="node-too-long"),
        pytest.param(alert(node="ïp-1"), NO_IDENTITY, id="node-not-ascii"),
        *(
            pytest.param(alert(device=device), NO_IDENTITY, id=f"device={device}")
            for device in (None, "", "d0", "-1", "03", "99999", "3.0", " 3", "3\n", "٣", "neuron-device-3")
        ),
        pytest.param(alert(fault=None), NO_IDENTITY, id="no-fault"),
        pytest.param(alert(device="0"), fired(device=0), id="device-0"),
    ],
)
def test_what_an_alert_says(given_alert: Alert, meaning: Fired | Cleared | Outcome) -> None:
    assert triage(given_alert, cluster=None) == meaning


@pytest.mark.parametrize(
    ("configured", "named", "ignored"),
    [
        (None, None, False),
        (None, "c2", False),
        ("c1", "c1", False),
        ("c1", "c2", True),
        ("c1", None, True),
        ("c1", "", True),
        ("c1", "C1", True),
    ],
)
def test_alerts_of_another_cluster_say_nothing(configured: str | None, named: str | None, *, ignored: bool) -> None:
    """Node names repeat between clusters."""
    for remediation in ("taint", "latch", "heartbeat"):
        meaning = triage(alert(cluster=named, remediation=remediation), cluster=configured)
        assert (meaning is OTHER_CLUSTER) is ignored


def test_a_start_is_taken_as_it_was_sent() -> None:
    """Bounded by the time of receipt, each repeat of a sender whose clock is ahead would begin a new spell."""
    ahead = NOW + timedelta(hours=1)

    assert triage(alert(started=ahead), cluster=None) == Fired(KEY, ahead, latched=False)


@given(
    st.dictionaries(
        st.sampled_from(["node", "device", "fault", "remediation", "episode", "cluster"]), hostile_texts, max_size=6
    )
)
def test_hostile_labels_never_become_an_odd_identity(labels: dict[str, str]) -> None:
    meaning = triage(labelled(labels), cluster=None)

    if not isinstance(meaning, Outcome):
        assert meaning.key.fault in FAULTS
        assert 0 <= meaning.key.device <= 9999
        assert meaning.key.node.isascii()
        assert 0 < len(meaning.key.node) <= 253


@given(
    st.sampled_from(STATUSES),
    st.dictionaries(st.sampled_from(["remediation", "node", "fault", "episode", "cluster"]), hostile_texts),
)
def test_what_is_no_evidence_never_means_anything(status: Status, labels: dict[str, str]) -> None:
    """Only taint, latch and clear alerts that fire can lead to an action at all."""
    meaning = triage(labelled(labels, status), cluster=None)

    says_something = status == "firing" and labels.get("remediation", "taint") in ("taint", "latch", "clear")
    assert isinstance(meaning, Outcome) or says_something
