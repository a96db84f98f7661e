"""ResourceClaims → who uses which device of our driver. Pure.

Only claims that hold devices of ours are kept, and of those only the names. Nothing here reads the cluster, decides,
or changes a claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from remediator.targets import Place

_REMEMBERED = 50_000
"""Texts and lists of devices to share at most; names of claims that come and go must not fill the memory."""


class ClaimMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of a claim's metadata."""

    name: str
    namespace: str
    resource_version: str = ""


class Result(msgspec.Struct, frozen=True):
    """One device that the scheduler has given to the claim."""

    driver: str
    pool: str
    device: str


class Results(msgspec.Struct, frozen=True):
    """All of them."""

    results: list[Result] | None = None


class Allocation(msgspec.Struct, frozen=True):
    """What the claim has been given."""

    devices: Results = Results()


class Reservation(msgspec.Struct, frozen=True, rename="camel"):
    """Who may use it."""

    resource: str
    name: str
    api_group: str = ""


class ClaimStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What has become of the claim."""

    allocation: Allocation | None = None
    reserved_for: list[Reservation] | None = None


class ClaimObject(msgspec.Struct, frozen=True):
    """A ResourceClaim (resource.k8s.io/v1)."""

    metadata: ClaimMetadata
    status: ClaimStatus = ClaimStatus()


class Holding(msgspec.Struct, frozen=True, gc=False):
    """The devices of one pool that a claim holds."""

    pool: str
    devices: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A claim as it is kept. `pods` are those it is reserved for; without `holdings` it is no concern of ours."""

    namespace: str
    name: str
    holdings: tuple[Holding, ...]
    pods: tuple[str, ...]


class Consumer(NamedTuple):
    """Who uses a device. `pod` is empty where the claim holds it and no pod is to use it (yet, or any more)."""

    namespace: str
    claim: str
    pod: str


class ClaimReader:
    """Makes claims compact: only what is held of `driver` stays, and what many of them say is there once."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._texts: dict[str, str] = {}
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}

    def __call__(self, wide: ClaimObject) -> Claim:
        """The compact form of one claim."""
        metadata, status = wide.metadata, wide.status
        results = (status.allocation and status.allocation.devices.results) or ()
        held: dict[str, set[str]] = {}
        for result in results:
            if result.driver == self._driver:
                held.setdefault(result.pool, set()).add(result.device)
        return Claim(
            namespace=self._text(metadata.namespace),
            name=metadata.name,
            holdings=tuple(Holding(self._text(pool), self._list(held[pool])) for pool in sorted(held)),
            pods=tuple(sorted({one.name for one in status.reserved_for or () if _is_pod(one)})) if held else (),
        )

    def _text(self, text: str) -> str:
        if len(self._texts) >= _REMEMBERED:
            self._texts.clear()
        return self._texts.setdefault(text, text)

    def _list(self, devices: set[str]) -> tuple[str, ...]:
        if len(self._lists) >= _REMEMBERED:
            self._lists.clear()
        listed = tuple(sorted(devices))
        return self._lists.setdefault(listed, listed)


class Claims:
    """The claims that hold devices of ours; kept current by whoever watches them.

    `on_change(pool, devices)` is told of the devices of a pool that a claim holds now and none held before, or the
    other way round: once for each pool, so in bursts. It must not block.
    """

    def __init__(self, *, on_change: Callable[[str, AbstractSet[str]], None] = lambda _pool, _devices: None) -> None:
        self._on_change = on_change
        # By namespace and name, and by pool: a pool has few claims, so that looking through them is cheap.
        self._claims: dict[str, dict[str, Claim]] = {}
        self._by_pool: dict[str, tuple[Claim, ...]] = {}

    def replace(self, objects: list[Claim], resource_version: str) -> None:  # noqa: ARG002 - the sink protocol
        """Take the whole list."""
        before, gathered = self._by_pool, dict[str, list[Claim]]()
        self._claims = {}
        for claim in objects:
            if claim.holdings:
                self._claims.setdefault(claim.namespace, {})[claim.name] = claim
            for holding in claim.holdings:
                gathered.setdefault(holding.pool, []).append(claim)
        self._by_pool = {pool: tuple(claims) for pool, claims in gathered.items()}
        for pool in before.keys() | self._by_pool.keys():
            self._tell(pool, before.get(pool, ()))

    def put(self, object_: Claim) -> None:
        """Take one claim that was added or changed."""
        before = self._claims.get(object_.namespace, {}).get(object_.name)
        after = object_ if object_.holdings else None
        if before == after:
            return
        if after is not None:
            self._claims.setdefault(after.namespace, {})[after.name] = after
        else:
            del self._claims[object_.namespace][object_.name]
            if not self._claims[object_.namespace]:
                del self._claims[object_.namespace]
        self._file(before, after)

    def remove(self, object_: Claim) -> None:
        """Drop one claim."""
        # Its last state may be one in which it held something.
        self.put(msgspec.structs.replace(object_, holdings=()))

    def consumers(self, place: Place) -> tuple[Consumer, ...]:
        """Who uses the device there: each pod of each claim that holds it, or the claim alone if it has no pod."""
        return tuple(
            Consumer(claim.namespace, claim.name, pod)
            for claim in self._by_pool.get(place.pool, ())
            if any(holding.pool == place.pool and place.device in holding.devices for holding in claim.holdings)
            for pod in claim.pods or ("",)
        )

    def devices_of(self, pool: str) -> frozenset[str]:
        """Names of the pool's devices that claims hold."""
        return _held(pool, self._by_pool.get(pool, ()))

    def _file(self, before: Claim | None, after: Claim | None) -> None:
        """Put the one claim in the other's place, in every pool of either."""
        for pool in {holding.pool for claim in (before, after) if claim for holding in claim.holdings}:
            filed = self._by_pool.pop(pool, ())
            claims = [claim for claim in filed if claim is not before]
            if after is not None and any(holding.pool == pool for holding in after.holdings):
                claims.append(after)
            if claims:
                self._by_pool[pool] = tuple(claims)
            self._tell(pool, filed)

    def _tell(self, pool: str, before: tuple[Claim, ...]) -> None:
        after = self._by_pool.get(pool, ())
        if before != after and (differing := _held(pool, before) ^ _held(pool, after)):
            self._on_change(pool, differing)


def _is_pod(reservation: Reservation) -> bool:
    return reservation.resource == "pods" and not reservation.api_group


def _held(pool: str, claims: tuple[Claim, ...]) -> frozenset[str]:
    return frozenset(
        device for claim in claims for holding in claim.holdings if holding.pool == pool for device in holding.devices
    )
