"""Reads the cluster for the commands, each collection once, with the credentials that kubectl would take.

It neither judges nor writes. Each request has a time limit of its own (`remediator.cluster.REQUEST_TIMEOUT`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from remediator.backends.device_taint_rule import collection
from remediator.caches import CLAIMS, SLICES
from remediator.claims import ClaimObject, ClaimReader, Claims
from remediator.cli.lease_watch import LEASES, LeaseObject, lease_path
from remediator.cli.picture import Held, sorted_out
from remediator.cluster import Api, connect, object_path
from remediator.discovery import rule_version
from remediator.errors import ExpiredError, NotServedError, Refusal, RemediatorError, UnavailableError
from remediator.inventory import Inventory, Node
from remediator.listwatch import Page
from remediator.node_cache import NODES
from remediator.records import MANAGED_BY, MANAGER
from remediator.rules import Rule
from remediator.slices import Compactor, SliceObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

T = TypeVar("T")

LOGIN_SECONDS = 120.0
"""How long a kubeconfig's login command may take: it may have to ask a person."""

_PAGE = "500"
_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_DEFAULT_FILE = Path("~/.kube/config")
_NOTHING = (
    f"no credentials: $KUBECONFIG is not set, {_DEFAULT_FILE} is not there, and this is no Pod; "
    "name a file with --kubeconfig"
)


class NoCredentialsError(RemediatorError):
    """There is nothing to log in with; the message says where it was looked for, and how to name it."""


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class _ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _UserInfo = _UserInfo()


class _ReviewMetadata(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: datetime | None = None


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()
    metadata: _ReviewMetadata = _ReviewMetadata()


class Caller(NamedTuple):
    """Who is asking, and what time it is: both as the API server sees it, where it says so."""

    name: str
    now: datetime


class Cluster:
    """One-shot reads. Raises `UnavailableError`, or `ExpiredError` where a list changed too fast to be read."""

    def __init__(self, api: Api, driver: str, version: str | None) -> None:
        self.api = api
        self.driver = driver
        self.version = version

    async def rules(self) -> list[Rule]:
        """Every DeviceTaintRule: a mark that a hand has removed is no reason not to show what taints."""
        return await self._list(collection(self.version), Rule) if self.version else []

    async def node(self, name: str) -> Node | None:
        """The Node; None when the API server says that it is not there."""
        return await self.api.get(object_path(NODES, name), Node)

    async def nodes(self) -> list[Node]:
        """Every Node, for the records that are kept there."""
        return await self._list(NODES, Node)

    async def leases(self) -> list[LeaseObject]:
        """Every Lease that carries our mark."""
        return await self._list(LEASES, LeaseObject, labelSelector=f"{MANAGED_BY}={MANAGER}")

    async def lease(self, namespace: str, name: str) -> LeaseObject | None:
        """One Lease, whoever has made it; None when it is not there."""
        return await self.api.get(lease_path(namespace, name), LeaseObject)

    def sorted_out(self, rules: Iterable[Rule], nodes: Iterable[Node]) -> Held:
        """Read the records out of rules and Nodes."""
        return sorted_out(rules, nodes, driver=self.driver, served=self.version is not None)

    async def inventory(self, node: str | None = None) -> Inventory:
        """The driver's devices, of one node or of all."""
        chosen = {"spec.driver": self.driver} | ({"spec.nodeName": node} if node else {})
        selector = ",".join(f"{field}={value}" for field, value in chosen.items())
        inventory, compact = Inventory(self.driver), Compactor()
        for wide in await self._list(SLICES, SliceObject, fieldSelector=selector):
            inventory.put(compact(wide))
        return inventory

    async def names(self, held: Held) -> frozenset[str]:
        """Names of Nodes, to correct a wrong one by: those that have slices or records; fewer where it may not look.

        Not every operator may list Nodes themselves.
        """
        known = frozenset(record.key.node for record in held.records)
        try:
            return known | (await self.inventory()).nodes()
        except RemediatorError:
            return known

    async def claims(self) -> Claims:
        """Who uses what: the ResourceClaims of every namespace."""
        claims, compact = Claims(), ClaimReader(self.driver)
        claims.replace([compact(wide) for wide in await self._list(CLAIMS, ClaimObject)], "")
        return claims

    async def caller(self) -> Caller:
        """Who the credentials belong to. An API server that does not tell leaves it to this machine's login."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            review = await self.api.create(_REVIEWS, body, _Review)
        except UnavailableError as error:
            if error.refusal not in (Refusal.FORBIDDEN, Refusal.NOT_SERVED):
                raise
            review = _Review()
        name = review.status.user_info.username or await asyncio.to_thread(_login)
        return Caller(name, review.metadata.creation_timestamp or datetime.now(UTC))

    async def _list(self, path: str, kind: type[T], **query: str) -> list[T]:
        try:
            return await self._pages(path, kind, query | {"limit": _PAGE})
        except ExpiredError:
            # It took longer to turn the pages than the API server remembers: all in one then.
            return await self._pages(path, kind, query)

    async def _pages(self, path: str, kind: type[T], query: dict[str, str]) -> list[T]:
        items: list[T] = []
        following = ""
        while True:
            more: dict[str, str] = {"continue": following} if following else {}
            page: Any = await self.api.get(path, Page[kind], **query, **more)  # type: ignore[valid-type]
            if page is None:
                raise UnavailableError(Refusal.NOT_SERVED, f"reading {path}: the API server does not serve it")
            items += page.items
            following = page.metadata.continue_
            if not following:
                return items


@asynccontextmanager
async def cluster(kubeconfig: Path | None, driver: str) -> AsyncIterator[Cluster]:
    """Connect, and find out whether rules are served, and in which version."""
    async with AsyncExitStack() as stack:
        api = await _login_to(_file(kubeconfig), stack)
        yield Cluster(api, driver, await _rule_version(api))


async def _rule_version(api: Api) -> str | None:
    try:
        return await rule_version(api)
    except NotServedError:
        return None


async def _login_to(kubeconfig: Path | None, stack: AsyncExitStack) -> Api:
    doing = f"logging in with {str(kubeconfig)!r}" if kubeconfig else "logging in as this Pod"
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            return await stack.enter_async_context(connect(kubeconfig))
    except UnavailableError as error:
        if kubeconfig is None:
            raise NoCredentialsError(_NOTHING) from error
        raise
    except TimeoutError as error:
        raise UnavailableError(Refusal.UNAUTHORIZED, f"{doing}: it took longer than {LOGIN_SECONDS:g} s") from error
    except Exception as error:
        # Files that are named in it and are not there, certificates that are none, addresses that are none.
        raise UnavailableError(Refusal.UNAUTHORIZED, f"{doing}: {type(error).__name__}: {error}") from error


def _file(named: Path | None) -> Path | None:
    """Which file to log in with, None for the Pod's own account; raises `NoCredentialsError` if it is not there."""
    file = named or _usual_file()
    # A list of files is what $KUBECONFIG may be; those of it that are not there are none to the loader.
    if file is None or any(Path(one).exists() for one in str(file).split(os.pathsep)):
        return file
    whose = "" if named else ", which $KUBECONFIG names"
    raise NoCredentialsError(
        f"no credentials: there is no such file as {str(file)!r}{whose}; name another one with --kubeconfig"
    )


def _usual_file() -> Path | None:
    """Where kubectl looks: $KUBECONFIG (which may be a list), then the home folder; None: only in a Pod."""
    if named := os.environ.get("KUBECONFIG", ""):
        return Path(named)
    try:
        file = _DEFAULT_FILE.expanduser()
    except RuntimeError:  # no home folder
        return None
    return file if file.exists() else None


def _login() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a UID without a name
        return f"uid {os.getuid()}"
