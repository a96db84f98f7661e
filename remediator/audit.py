"""The audit line of each change, and the fan-out of changes to all who are told of them.

How a line is written is `exporter.service.logs`'s: the process names `LOGGER` there as an audit trail.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remediator.traces import audit_of

if TYPE_CHECKING:
    from remediator.traces import Change, Traces

LOGGER = "remediator.audit"
"""Name of the logger whose lines are the audit trail."""

_LOG = logging.getLogger(__name__)
_AUDIT = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Audit:
    """Writes one line for each change; `dry_run` marks those that were only imagined."""

    dry_run: bool = False

    def changed(self, change: Change) -> None:
        """Write on the loop's next turn, which is after the answer: the sender waits for the rule, not for the log."""
        asyncio.get_running_loop().call_soon(self._write, change)

    def _write(self, change: Change) -> None:
        fields = audit_of(change)
        if self.dry_run:
            fields["dry_run"] = True
        _AUDIT.info(change.action, extra=fields)


@dataclass(frozen=True, slots=True)
class AllTraces:
    """Tells each of `traces`, whatever becomes of the others: a change that was made must not fail for its telling."""

    traces: tuple[Traces, ...]

    def changed(self, change: Change) -> None:
        """Pass the change on."""
        for trace in self.traces:
            try:
                trace.changed(change)
            except Exception:  # noqa: BLE001 - a bug that one trace has must cost neither the others nor the change
                _LOG.exception("telling of a change: unexpected error", extra={"record": str(change.record.key)})
