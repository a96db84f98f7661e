"""What the API server's audit log says from one moment on, without reading again what was read."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.stack.controlplane import NAMESPACE, WRITES

if TYPE_CHECKING:
    from pathlib import Path

Line = dict[str, Any]

REMEDIATOR = f"system:serviceaccount:{NAMESPACE}:neuron-remediator"


class AuditTail:
    """The lines since it was made. A line is written just after its answer was sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """All complete lines so far, oldest first."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(complete) + len(newline)
            self._lines += [json.loads(line) for line in complete.splitlines()]
        return self._lines

    def writes(self, resource: str | None = None, *, since: int = 0) -> list[Line]:
        """Changes that the remediator asked for: of one resource, or of all but Leases; after `since` lines."""
        return [
            line
            for line in self.lines()[since:]
            if line["user"]["username"] == REMEDIATOR
            and line["verb"] in WRITES
            and (_resource(line) == resource if resource else _resource(line) != "leases")
        ]

    def reads(self, verb: str, resource: str) -> list[Line]:
        """Reads by the remediator: `verb` is get, list or watch."""
        return [
            line
            for line in self.lines()
            if line["user"]["username"] == REMEDIATOR and line["verb"] == verb and _resource(line) == resource
        ]


def created(lines: list[Line]) -> set[str]:
    """Names of the objects that were made."""
    return {
        line["objectRef"]["name"]
        for line in lines
        if line["verb"] == "create" and line["responseStatus"]["code"] == 201
    }


def ended(line: Line) -> float:
    """When the answer was ready, as seconds since the epoch."""
    return datetime.fromisoformat(line["stageTimestamp"]).timestamp()


def _resource(line: Line) -> str:
    return str(line.get("objectRef", {}).get("resource", ""))
