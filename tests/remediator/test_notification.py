"""Webhook bodies → notifications: what is taken, and the one sentence that refuses the rest."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.errors import NotificationError
from remediator.notification import Notification, parse
from tests.remediator.samples import Json, alert_json, body, body_json

PAYLOADS = Path(__file__).parent / "payloads"
DEEP = 200_000
"""More nesting than any parser's stack holds."""


@pytest.mark.parametrize(
    ("name", "status", "started"),
    [
        ("payload-firing-old", "firing", datetime(2026, 11, 30, 11, 1, 36, 773000, tzinfo=UTC)),
        ("payload-firing-new", "firing", datetime(2026, 11, 30, 11, 3, 28, 159000, tzinfo=UTC)),
        ("payload-resolved-old", "resolved", datetime(2026, 11, 30, 11, 1, 36, 773000, tzinfo=UTC)),
        ("payload-resolved-new", "resolved", datetime(2026, 11, 30, 11, 3, 28, 159000, tzinfo=UTC)),
    ],
)
def test_bodies_captured_from_alertmanager_are_read(name: str, status: str, started: datetime) -> None:
    """An old release, and a new one that adds `notification_reason`."""
    notification = parse((PAYLOADS / f"{name}.json").read_bytes())

    assert (notification.version, notification.truncated_alerts) == ("4", 0)
    (alert,) = notification.alerts
    assert (alert.status, alert.starts_at) == (status, started)
    assert alert.labels["node"] == "node-a"
    assert alert.labels["device"] == "d0"


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n  ", b"\t\n\n"])
def test_white_space_after_the_body_is_no_error(tail: bytes) -> None:
    """A strict consumer called the newline at Alertmanager's end of body invalid JSON (alertmanager#2418)."""
    assert len(parse(body(alert_json()).rstrip() + tail).alerts) == 1


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"version": "1", "orgId": 1, "title": "x", "state": "alerting"}, id="grafana"),
        pytest.param({"commonLabels": {}, "commonAnnotations": {}, "externalURL": ""}, id="empty"),
        pytest.param({"routeLabels": {"a": "b"}, "notification_reason": "repeat interval elapsed"}, id="newer"),
        pytest.param({"groupKey": None, "receiver": 5, "groupLabels": [1]}, id="fields-nobody-needs"),
        pytest.param({"Version": "9", "ALERTS": None, "truncatedalerts": "x"}, id="keys-in-other-case"),
        pytest.param({"truncatedAlerts": 3}, id="truncated"),
    ],
)
def test_extra_and_odd_fields_do_not_matter(fields: Json) -> None:
    """One receiver answered 400 to every post for a format detail, and nothing worked (alerta/prometheus-config#24)."""
    notification = parse(body(alert_json(), **fields))

    assert len(notification.alerts) == 1
    assert notification.truncated_alerts == fields.get("truncatedAlerts", 0)


def test_keys_count_in_their_exact_spelling_only() -> None:
    """A field was looked for in another case than the real one (alertmanager-zabbix-webhook PR 3)."""
    odd = {"endsat": "x", "EndsAt": 3, "startsat": "x", "STATUS": "resolved", "Labels": None}
    notification = parse(body(alert_json() | odd))

    assert notification == parse(body(alert_json()))


def test_truncated_alerts_may_be_missing() -> None:
    whole = body_json(alert_json())
    del whole["truncatedAlerts"]

    assert parse(json.dumps(whole).encode()).truncated_alerts == 0


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("2026-11-30T11:01:36Z", datetime(2026, 11, 30, 11, 1, 36, tzinfo=UTC)),
        ("2026-11-30T11:01:36.5Z", datetime(2026, 11, 30, 11, 1, 36, 500000, tzinfo=UTC)),
        ("2026-11-30T11:01:36.123456Z", datetime(2026, 11, 30, 11, 1, 36, 123456, tzinfo=UTC)),
        ("2026-11-30T11:01:36.123456123Z", datetime(2026, 11, 30, 11, 1, 36, 123456, tzinfo=UTC)),
        ("2026-11-30T12:01:36+01:00", datetime(2026, 11, 30, 11, 1, 36, tzinfo=UTC)),
        ("2026-11-30T05:31:36-05:30", datetime(2026, 11, 30, 11, 1, 36, tzinfo=UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_utc(written: str, expected: datetime) -> None:
    (alert,) = parse(body(alert_json() | {"startsAt": written})).alerts

    assert alert.starts_at == expected
    assert alert.starts_at.tzinfo is UTC


NO_ZONE = "`alerts[0].startsAt` has no time zone; expected RFC 3339"
BAD_TIME = "Invalid RFC3339 encoded datetime - at `alerts[0].startsAt`"
OUT_OF_RANGE = "`alerts[0].startsAt` is out of range"


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("2026-11-30T11:01:36", NO_ZONE),
        ("2026-11-30", BAD_TIME),
        ("2026-11-30T23:59:60Z", BAD_TIME),
        ("2026-11-30T11:01:36+24:00", BAD_TIME),
        ("0000-01-01T00:00:00Z", BAD_TIME),
        ("yesterday", BAD_TIME),
        ("", BAD_TIME),
        (1764500496, "Expected `datetime`, got `int` - at `alerts[0].startsAt`"),
        (None, "Expected `datetime`, got `null` - at `alerts[0].startsAt`"),
        ("0001-01-01T00:00:00+05:00", OUT_OF_RANGE),
        ("9999-12-31T23:59:59-05:00", OUT_OF_RANGE),
    ],
)
def test_a_time_that_is_none_is_refused(written: object, sentence: str) -> None:
    assert refusal(body(alert_json() | {"startsAt": written})) == f"reading the notification: {sentence}"


def without(field: str) -> Json:
    return {name: value for name, value in alert_json().items() if name != field}


def second(alert: object) -> bytes:
    """A body whose first alert is fine."""
    return json.dumps(body_json() | {"alerts": [alert_json(), alert]}).encode()


@pytest.mark.parametrize(
    ("given_body", "sentence"),
    [
        (b'{"text":"hbm on n1"}', "the body: Object missing required field `version`"),
        (b'{"version":"4"}', "the body: Object missing required field `alerts`"),
        (b"[]", "the body: Expected `object`, got `array`"),
        (b'"x"', "the body: Expected `object`, got `str`"),
        (b"null", "the body: Expected `object`, got `null`"),
        (b"7", "the body: Expected `object`, got `int`"),
        (b"", "Input data was truncated"),
        (b'{"version":"4","alerts":[', "Input data was truncated"),
        (b'{"version":"4","alerts":[]}{}', "JSON is malformed: trailing characters (byte 28)"),
        (b"\xef\xbb\xbf" + body(alert_json()), "JSON is malformed: invalid character (byte 0)"),
        (b'{"alerts":{}}', "Expected `array`, got `object` - at `alerts`"),
        (b'{"alerts":[null]}', "Expected `object`, got `null` - at `alerts[0]`"),
        (b'{"version":4,"alerts":[]}', "Expected `str`, got `int` - at `version`"),
        (body(version="5"), '`version` is not one that can be read; expected "4" or "1"'),
        (body(version=""), '`version` is not one that can be read; expected "4" or "1"'),
        (body(truncatedAlerts="3"), "Expected `int`, got `str` - at `truncatedAlerts`"),
        (body(truncatedAlerts=1.5), "Expected `int`, got `float` - at `truncatedAlerts`"),
        (body(truncatedAlerts=-1), "Expected `int` >= 0 - at `truncatedAlerts`"),
        (body(truncatedAlerts=10**400), "Expected `int` <= 9223372036854775807 - at `truncatedAlerts`"),
        (second(without("status")), "Object missing required field `status` - at `alerts[1]`"),
        (second(without("labels")), "Object missing required field `labels` - at `alerts[1]`"),
        (second(without("startsAt")), "Object missing required field `startsAt` - at `alerts[1]`"),
        (second(alert_json(status="pending")), 'neither "firing" nor "resolved" - at `alerts[1].status`'),
        (second(alert_json() | {"status": None}), "Expected `str`, got `null` - at `alerts[1].status`"),
        (second(alert_json() | {"labels": []}), "Expected `object`, got `array` - at `alerts[1].labels`"),
        (second(alert_json() | {"labels": {"node": 3}}), "Expected `str`, got `int` - at `alerts[1].labels[...]`"),
        (second([]), "Expected `object`, got `array` - at `alerts[1]`"),
        (b'{"version":"\xff"}', "Invalid UTF-8 encoded string"),
        (b'{"version":"4","alerts":[{"labels":{"a":"\xc3\x28"}}]}', "Invalid UTF-8 encoded string"),
        (
            b'{"version":"\\ud800","alerts":[]}',
            "JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte 18)",
        ),
    ],
)
def test_a_body_that_is_no_notification_is_refused_in_one_sentence(given_body: bytes, sentence: str) -> None:
    """A custom `payload:` makes the body anything at all (prometheus-operator#8527, alertmanager#2865)."""
    assert refusal(given_body) == f"reading the notification: {sentence}"


@pytest.mark.parametrize(
    "given_body",
    [
        pytest.param(b'{"version":"4","alerts":[],"x":' + b"[" * DEEP + b"]" * DEEP + b"}", id="unknown-field"),
        pytest.param(b'{"version":"4","alerts":' + b"[" * DEEP + b"]" * DEEP + b"}", id="known-field"),
        pytest.param(b'{"a":' * DEEP + b"1" + b"}" * DEEP, id="objects"),
        pytest.param(b"[" * DEEP, id="unclosed"),
    ],
)
def test_deep_nesting_is_refused(given_body: bytes) -> None:
    sentence = refusal(given_body)

    assert sentence.startswith("reading the notification: ")
    assert len(sentence) < 120


@pytest.mark.parametrize("secret", ["S3CRET", "S3CRET\nlevel=error", "x" * 500])
def test_a_refusal_repeats_nothing_of_the_body(secret: str) -> None:
    """The sentence goes to the log and back to the sender; what was sent by mistake must not."""
    misplaced: list[Json] = [
        body_json(alert_json(), version=secret),
        body_json(alert_json() | {"status": secret}),
        body_json(alert_json() | {"startsAt": secret}),
        body_json(alert_json() | {"labels": secret}),
        body_json(alert_json() | {"labels": {secret: 1}}),
        body_json(truncatedAlerts=secret),
        {secret: secret},
    ]
    for given_body in misplaced:
        assert secret[:6] not in refusal(json.dumps(given_body).encode())


def refusal(given_body: bytes) -> str:
    with pytest.raises(NotificationError) as caught:
        parse(given_body)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def parsed_or_refused(given_body: bytes) -> Notification | None:
    try:
        return parse(given_body)
    except NotificationError:
        return None


@given(st.binary())
def test_any_bytes_are_read_or_refused(given_body: bytes) -> None:
    assert parsed_or_refused(given_body) is None or given_body.strip()[:1] == b"{"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(["version", "alerts", "truncatedAlerts", "status", "labels", "startsAt", "endsAt"])


def with_change(document: Any, field: str, value: Any) -> Any:
    """Put `value` wherever a field of that name is; put it in where it is not."""
    if isinstance(document, dict):
        return {key: with_change(inner, field, value) for key, inner in document.items()} | {field: value}
    if isinstance(document, list):
        return [with_change(inner, field, value) for inner in document]
    return document


@given(FIELDS, JSON_VALUES)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    changed = with_change(body_json(alert_json(), alert_json(status="resolved")), field, value)
    notification = parsed_or_refused(json.dumps(changed).encode())

    assert notification is None or notification.version in ("4", "1")


@given(st.data())
def test_any_damage_to_a_good_body_is_read_or_refused(data: st.DataObject) -> None:
    good = body(alert_json(), alert_json(status="resolved"))
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(start + 20, len(good))))
    notification = parsed_or_refused(good[:start] + data.draw(st.binary(max_size=20)) + good[end:])

    assert notification is None or all(one.starts_at.tzinfo is UTC for one in notification.alerts)


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.datetimes(timezones=st.just(UTC)))
def test_labels_and_time_arrive_as_they_were_sent(labels: dict[str, str], started: datetime) -> None:
    sent = alert_json(started=started) | {"labels": labels}
    (alert,) = parse(body(sent)).alerts

    assert (alert.labels, alert.starts_at) == (labels, started)
