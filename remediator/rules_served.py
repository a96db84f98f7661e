"""Finds out how the cluster serves DeviceTaintRules, if it does, and keeps them current; anew whenever that changes.

A cluster is upgraded under us: v1beta2 goes and v1 comes, or rules that were not served are, or the other way round.
What is done about the records then is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from exporter.service.logs import Seldom
from remediator.backends.device_taint_rule import collection
from remediator.cluster import RESOURCE_API
from remediator.discovery import rule_version
from remediator.errors import NotServedError
from remediator.listwatch import ListWatch, as_it_came, patiently
from remediator.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.cluster import Api
    from remediator.listwatch import Sink

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""How soon a cluster that serves no rules is asked again."""

DOUBT_SECONDS = 30.0
"""How long rules that were served must be said not to be before that is believed.

While a control plane is upgraded, its servers differ, and the taints are in force all the same.
"""

_SOON_SECONDS = 1.0
_LOG_SECONDS = 60.0


class RulesServed:
    """Rules, as they are served. `elapsed` is a monotonic clock in seconds.

    `on_served(version)` is called with the API version that serves them from now on, empty for none, before they are
    listed; not for one that is as before.
    """

    def __init__(
        self, api: Api, sink: Sink[Rule], *, elapsed: Callable[[], float], on_served: Callable[[str], None]
    ) -> None:
        self._api = api
        self._elapsed = elapsed
        self._on_served = on_served
        self._seldom = Seldom(_LOG, _LOG_SECONDS, elapsed)
        self._watch: ListWatch[Any, Any] = ListWatch(
            api, "", Rule, as_it_came, sink, {}, elapsed, ends_when_not_served=True
        )
        # None until the API server has said it.
        self._version: str | None = None
        self._doubted: float | None = None

    def not_ready(self) -> str | None:
        """Why the rules are not known, or None; where none are served, there is nothing to know."""
        if self._version is None:
            return "waiting for the API server to say how it serves DeviceTaintRules"
        return "waiting for a list of devicetaintrules" if self._version and not self._watch.current else None

    def renew(self, *, older_than: float) -> None:
        """List them anew, unless that was done within so many seconds."""
        self._watch.renew(older_than=older_than)

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            version = await self._asked()
            if self._believed(version):
                self._take(version)
            if version:
                try:
                    await self._watch.run()
                except NotServedError as error:
                    self._seldom.warning("rules are not served as they were", extra={"error": str(error)})
            pause = AGAIN_SECONDS if self._version == "" else _SOON_SECONDS
            await asyncio.sleep(random.uniform(pause / 5, pause))  # noqa: S311 - spreads load, keeps no secret

    async def _asked(self) -> str:
        """The version that serves rules, empty for none. Whoever cannot be asked is asked again."""
        asking = patiently("discovering DeviceTaintRule", longest=5, path=RESOURCE_API, given_up_on=NotServedError)
        try:
            version: str = await asking(rule_version, self._api)
        except NotServedError as error:
            if self._version != "":
                self._seldom.warning("no DeviceTaintRules here", extra={"error": str(error)})
            return ""
        return version

    def _believed(self, version: str) -> bool:
        if version or not self._version:
            self._doubted = None
            return True
        self._doubted = self._elapsed() if self._doubted is None else self._doubted
        return self._elapsed() - self._doubted >= DOUBT_SECONDS

    def _take(self, version: str) -> None:
        if version == self._version:
            return
        _LOG.info("DeviceTaintRules", extra={"served_as": version or "not at all"})
        self._version = version
        self._watch.path = collection(version)
        self._on_served(version)
