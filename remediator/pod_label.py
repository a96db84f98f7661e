"""The label that says which Pod leads, for the Service to select: `neuron-remediator/role: leader`.

It steers traffic and decides nothing: a replica that does not lead refuses whatever reaches it, so a label that is late
or wrong costs time only. Hence nothing here ever holds up the Lease or keeps a replica from leading.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from remediator.cluster import object_path
from remediator.errors import Refusal, RemediatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.cluster import Api

_LOG = logging.getLogger(__name__)

ROLE = "neuron-remediator/role"
LEADER = "leader"

LOOK_SECONDS = 6.0
"""How often a leader looks whether the labels still are as they should be."""

_ATTEMPT_SECONDS = 8.0


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _Pods(msgspec.Struct, frozen=True):
    items: list[_Pod]


class PodLabel:
    """Keeps the label on the Pod `pod` while `leads()`, and then on no other Pod of the namespace.

    While this replica does not lead, only its own label is its business: that goes at the start, as an earlier
    process of the same Pod may have left it, and on demotion.
    """

    def __init__(
        self, api: Api, *, namespace: str, pod: str, leads: Callable[[], bool], look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._pod = pod
        self._leads = leads
        self._look_seconds = look_seconds
        self._wake = asyncio.Event()
        self._trouble = ""

    def look(self) -> None:
        """Look now: leadership has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the labels right until cancelled."""
        while True:
            self._wake.clear()
            right = await self._attempt()
            # Who does not lead, and has no label, has nothing to look after.
            patience = None if right and not self._leads() else self._look_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._wake.wait()

    async def _attempt(self) -> bool:
        """Look once; False when that failed, for whatever reason."""
        kind, reason = "", ""
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                await self._look()
        except RemediatorError as error:
            kind = str(error.refusal) if isinstance(error, UnavailableError) else type(error).__name__
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look is the answer to it
            kind, reason = type(error).__name__, f"{type(error).__name__}: {error}"
        # A Pod that is not there, or may not be changed, will stay so: said once, not at each look.
        if kind and kind != self._trouble:
            extra = {"pod": self._pod, "error": reason}
            _LOG.warning("labelling the Pod that leads: failed, the Service may not find it", extra=extra)
        self._trouble = kind
        return not kind

    async def _look(self) -> None:
        pods = await self._api.get(self._pods, _Pods, labelSelector=f"{ROLE}={LEADER}")
        if pods is None:
            raise UnavailableError(Refusal.NOT_SERVED, f"listing {self._pods}: not served")
        labelled = {pod.metadata.name for pod in pods.items}
        leads = self._leads()
        there = True
        if leads and self._pod not in labelled:
            there = await self._label(self._pod, LEADER)
        for pod in labelled - {self._pod} if leads else labelled & {self._pod}:
            await self._label(pod, None)
        if not there:
            told = f'labelling Pod "{self._pod}": it is not there; expected --lease.pod to name the Pod this runs in'
            raise UnavailableError(Refusal.NOT_SERVED, told)

    async def _label(self, pod: str, value: str | None) -> bool:
        """Set or remove the label; False when there is no such Pod."""
        change = {"metadata": {"labels": {ROLE: value}}}
        return await self._api.merge(object_path(self._pods, pod), change, _Pod) is not None
