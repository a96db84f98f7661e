"""Every change of every DeviceTaintRule, in the order in which the API server made them.

A look now and then shows what is; this shows that something never was.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from tests.stack.client import Client
from tests.stack.process import Startable

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.shapes import Object

_SECONDS = 15.0


class Seen(NamedTuple):
    """One event: ADDED, MODIFIED or DELETED, and the rule as it was then."""

    kind: str
    rule: Object

    @property
    def name(self) -> str:
        """The name of the rule."""
        return str(self.rule["metadata"]["name"])

    @property
    def place(self) -> tuple[str, str]:
        """The pool and the device that it taints."""
        selector = self.rule["spec"]["deviceSelector"]
        return selector["pool"], selector["device"]

    @property
    def effect(self) -> str:
        """The effect of its taint."""
        return str(self.rule["spec"]["taint"]["effect"])

    @property
    def state(self) -> str:
        """The state of the record that it is."""
        return str(self.rule["metadata"]["annotations"]["neuron-remediator/state"])


class RuleWatch(Startable):
    """Watches from `start` to `stop`; `seen` grows meanwhile, by rules that were there at first too.

    `disturbed` says how many devices had an effect after each of them. The API server lets go of who reads too slowly,
    so the watch goes on where it was; what goes wrong otherwise is raised by `standing`.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self.seen: list[Seen] = []
        self.disturbed: list[int] = []
        self._standing: dict[str, Seen] = {}
        self._effective: dict[str, tuple[str, str]] = {}
        self._address = urlsplit(control_plane.url).netloc
        self._context = ssl.create_default_context(cafile=control_plane.ca_file)
        self._token = control_plane.token("admin")
        self._rules = Client(control_plane)
        self._connection: http.client.HTTPSConnection | None = None
        self._newest = 0
        self._stopping = False
        self._failure: Exception | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Returns once the API server has taken up the watch."""
        first = self._watch()
        self._thread = Thread(target=self._run, args=(first,), name="rule watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; what was seen stays."""
        self._stopping = True
        if self._connection is not None:
            with contextlib.suppress(OSError, AttributeError):  # it is between two connections
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(_SECONDS)

    def standing(self) -> dict[str, Seen]:
        """The rules that are there now, by name. ``RuntimeError`` if the watch has failed."""
        if self._failure is not None:
            raise RuntimeError(f"watching rules: {self._failure!r}") from self._failure
        return dict(self._standing)

    def _watch(self) -> http.client.HTTPResponse:
        since = f"&resourceVersion={self._newest}" if self._newest else ""
        self._connection = http.client.HTTPSConnection(self._address, timeout=_SECONDS, context=self._context)
        path = f"{self._rules.path('DeviceTaintRule')}?watch=1{since}"
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        self._connection.sock.settimeout(None)
        answer = self._connection.getresponse()
        if answer.status != http.client.OK:
            raise RuntimeError(f"expected 200, got {answer.status}")
        return answer

    def _run(self, answer: http.client.HTTPResponse) -> None:
        try:
            while not self._stopping:
                for line in answer:
                    event = json.loads(line)
                    self._take(Seen(event["type"], event["object"]))
                self._close(answer)
                answer = self._watch()
        except Exception as error:  # noqa: BLE001 - told by `standing`
            if not self._stopping:  # which cuts it in the middle of anything
                self._failure = error
        finally:
            self._close(answer)

    def _close(self, answer: http.client.HTTPResponse) -> None:
        answer.close()
        if self._connection is not None:
            self._connection.close()

    def _take(self, one: Seen) -> None:
        if one.kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise RuntimeError(f"expected a change of a rule, got {one}")
        self._newest = max(self._newest, int(one.rule["metadata"]["resourceVersion"]))
        self._standing.pop(one.name, None)
        self._effective.pop(one.name, None)
        if one.kind != "DELETED":
            self._standing[one.name] = one
            if one.effect != "None":
                self._effective[one.name] = one.place
        self.disturbed.append(len(set(self._effective.values())))
        self.seen.append(one)
