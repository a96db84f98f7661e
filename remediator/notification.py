"""Webhook body → alerts: lenient on extra keys, strict on the needed ones. Pure.

The format is Alertmanager's webhook version "4"; Grafana-managed alerting sends the same core fields
under version "1". Only an alert's own status counts: the group-level status mixes firing and resolved,
and `groupKey` and `fingerprint` are not identities (two routes may share one, a replica label changes the
other), so none of them is even decoded. Nothing here knows what a fault is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from remediator.errors import NotificationError

ACCEPTED_VERSIONS = ("4", "1")

# The one message of the decoder that repeats what was sent; it ends in a log, so it must not.
_QUOTING = re.compile("Invalid enum value .*(?= - at `)", re.DOTALL)


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert as Alertmanager sends it; `starts_at` is UTC, rounded to microseconds.

    `endsAt` is left out on purpose: it is year 1 while firing, and a resolved alert never changes
    anything here.
    """

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: datetime


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    """One webhook body. `truncated_alerts` > 0 means the sender dropped some (its `max_alerts` is set)."""

    version: str
    alerts: list[Alert]
    truncated_alerts: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


_decoder = msgspec.json.Decoder(Notification)


def parse(body: bytes) -> Notification:
    """Decode a webhook body.

    Raises `NotificationError` with one sentence naming the field that is missing or wrong.
    """
    try:
        notification = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotificationError(f"reading the notification: {_sentence(error)}") from error
    except RecursionError as error:
        raise NotificationError("reading the notification: the JSON is nested too deeply") from error
    if notification.version not in ACCEPTED_VERSIONS:
        raise NotificationError('reading the notification: `version` is not one that can be read; expected "4" or "1"')
    return Notification(
        version=notification.version,
        alerts=[_in_utc(index, alert) for index, alert in enumerate(notification.alerts)],
        truncated_alerts=notification.truncated_alerts,
    )


def _sentence(error: Exception) -> str:
    """Put the decoder's words into ours: `$.alerts[0]` reads as `alerts[0]`, the body itself as such."""
    text = _QUOTING.sub('neither "firing" nor "resolved"', str(error))[:256]
    if isinstance(error, msgspec.ValidationError) and "$" not in text:
        return f"the body: {text}"
    return text.replace("`$.", "`")


def _in_utc(index: int, alert: Alert) -> Alert:
    if alert.starts_at.tzinfo is None:
        raise NotificationError(
            f"reading the notification: `alerts[{index}].startsAt` has no time zone; expected RFC 3339"
        )
    try:
        starts_at = alert.starts_at.astimezone(UTC)
    except OverflowError as error:
        # Year 1 with a positive offset lies before the first instant that a datetime can hold.
        raise NotificationError(f"reading the notification: `alerts[{index}].startsAt` is out of range") from error
    return Alert(status=alert.status, labels=alert.labels, starts_at=starts_at)
