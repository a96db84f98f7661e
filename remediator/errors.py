"""What can go wrong in the remediator, as the few verdicts its callers act on.

Foreign errors (HTTP client, Kubernetes, JSON) are translated into these once, at the edge where they
arise, and chained as the cause. Nothing here knows about HTTP status codes of our own answers.
"""

from __future__ import annotations

from enum import StrEnum


class RemediatorError(Exception):
    """Base of all errors raised on purpose in this package."""


class NotificationError(RemediatorError):
    """The body is not an Alertmanager notification; the message names the field. A retry cannot help."""


class ConflictError(RemediatorError):
    """The object changed since it was read: read it again, decide again."""


class ExpiredError(RemediatorError):
    """The resource version is too old to watch from (HTTP 410): list again."""


class Refusal(StrEnum):
    """Why the API server did not do what was asked: what the sender is told, as it may be told no more."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    INVALID = "invalid"
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    NOT_SERVED = "not_served"
    CONFLICT = "conflict"
    NOT_LEADING = "not_leading"
    UNREADABLE = "unreadable"
    INTERNAL = "internal"


class UnavailableError(RemediatorError):
    """The cluster cannot take the change now; whoever asked should ask again."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class NotServedError(UnavailableError):
    """The API server does not serve such objects, or not in that version, or no such collection (any more)."""

    def __init__(self, message: str) -> None:
        super().__init__(Refusal.NOT_SERVED, message)
