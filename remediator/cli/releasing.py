"""Carries a planned release out, record by record, and keeps account of what was done and what was not.

Each write is guarded by the version that the plan was made from; what has changed meanwhile is read and planned anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from remediator.cli.plan import Intent, Step, step
from remediator.cli.stores import Stores
from remediator.cli.words import NODE_RIGHTS
from remediator.errors import ConflictError, Refusal, RemediatorError, UnavailableError
from remediator.targets import NodeTarget

if TYPE_CHECKING:
    from remediator.cli.reading import Cluster
    from remediator.decide import Update
    from remediator.records import Key, Record

_ATTEMPTS = 8
_NOT_CARRIED_OUT = frozenset(
    {Refusal.UNAUTHORIZED, Refusal.FORBIDDEN, Refusal.INVALID, Refusal.THROTTLED, Refusal.NOT_SERVED}
)
"""Refusals after which the write has certainly not reached the cluster."""

_MAYBE = "it is not known whether it was carried out"


class Fate(StrEnum):
    """What became of one record."""

    DONE = "done"
    GONE = "gone"
    NEEDLESS = "needless"
    REFUSED = "refused"
    FAILED = "failed"
    UNSURE = "unsure"
    NOT_TRIED = "not tried"


@dataclass(slots=True)
class Account:
    """One record's line in the account; `says` is why, or empty. Not tried until it is."""

    key: Key
    fate: Fate = Fate.NOT_TRIED
    says: str = ""

    @property
    def well(self) -> bool:
        """Whether the record is as the operator wants it, or cleared meanwhile."""
        return self.fate in (Fate.DONE, Fate.GONE, Fate.NEEDLESS)

    def close(self, fate: Fate, says: str = "") -> None:
        """Say how it ended."""
        self.fate, self.says = fate, says


async def carry_out(cluster: Cluster, steps: list[Step], intent: Intent, accounts: list[Account]) -> None:
    """Carry the steps out in order, and fill the accounts (one a step) as it goes, so that they are right at any time.

    What one record alone is to blame for concerns no other; when the API server fails, the rest is not tried.
    """
    stores = Stores(cluster, intent.now)
    for planned, account in zip(steps, accounts, strict=True):
        if planned.update is None:
            account.close(_refusal(planned), planned.says)
            continue
        account.close(Fate.UNSURE, f"it was interrupted, and {_MAYBE}")
        try:
            await _settle(cluster, stores, planned, intent, account)
        except RemediatorError as error:
            certain = isinstance(error, UnavailableError) and error.refusal in _NOT_CARRIED_OUT
            if not certain and await _landed(stores, planned.update):
                account.close(Fate.DONE)
                continue
            account.close(Fate.FAILED if certain else Fate.UNSURE, f"{error}{_next(error, planned, certain=certain)}")
            return


def _next(error: RemediatorError, planned: Step, *, certain: bool) -> str:
    if not certain:
        return f"; {_MAYBE}"
    forbidden = isinstance(error, UnavailableError) and error.refusal is Refusal.FORBIDDEN
    return f"; {NODE_RIGHTS}" if forbidden and isinstance(planned.record.target, NodeTarget) else ""


async def _landed(stores: Stores, update: Update) -> bool:
    """Whether a write whose answer was lost is seen to have been carried out. If not, it may still be on its way."""
    try:
        current = await stores.of(update.record).read(update.record.key)
    except RemediatorError:
        return False
    return current is not None and _is_as_asked(current, update)


async def _settle(cluster: Cluster, stores: Stores, planned: Step, intent: Intent, account: Account) -> None:
    record = planned.record
    store = stores.of(record)
    for _ in range(_ATTEMPTS):
        if planned.update is None:
            return account.close(_refusal(planned), planned.says)
        try:
            await store.update(planned.record, planned.update.record)
        except ConflictError:
            current = await store.read(record.key)
            if current is None and await stores.other(record).read(record.key) is not None:
                return account.close(Fate.REFUSED, "it was moved meanwhile; look at it again")
            if current is None:
                return account.close(Fate.GONE, "its fault was cleared meanwhile")
            if not _is_same(current, record):
                return account.close(Fate.REFUSED, "it was removed and has fired anew meanwhile; look at it again")
            if _is_as_asked(current, planned.update):
                return account.close(Fate.DONE)
            planned = step(current, intent, await cluster.node(record.key.node))
        else:
            return account.close(Fate.DONE)
    return account.close(Fate.FAILED, f"it was changed by others {_ATTEMPTS} times in a row; try again")


def _refusal(planned: Step) -> Fate:
    return Fate.NEEDLESS if planned.needless else Fate.REFUSED


def _is_same(one: Record, other: Record) -> bool:
    if one.stored is None or other.stored is None or one.stored.uid != other.stored.uid:
        return False
    # On a Node, the UID is the Node's. A record's first firing stays what it was as long as there is the record.
    return not isinstance(one.target, NodeTarget) or one.first_fired == other.first_fired


def _is_as_asked(current: Record, update: Update) -> bool:
    """Whether a write whose answer was lost has been carried out after all."""
    wanted = update.record
    return (
        (current.state, current.latched) == (wanted.state, wanted.latched)
        and current.taint.effect is wanted.taint.effect
        and (current.released_until, current.released_by) == (wanted.released_until, wanted.released_by)
        and current.reason == wanted.reason
    )
