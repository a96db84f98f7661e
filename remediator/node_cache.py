"""The Nodes of the cluster in memory, and the live look at one that memory does not know (yet).

A Node that is new may be milliseconds ahead of its watch event, so only the API server's own word makes one unknown.
That word holds for a second and is asked for once, however many alerts speak of the Node; what the watch tells always
stands above it. Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from remediator.cluster import Api, object_path
from remediator.errors import UnavailableError
from remediator.inventory import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NODES = "/api/v1/nodes"

ANSWER_SECONDS = 1.0
"""How long a live answer is as good as a new one."""

_ANSWERS = 1000  # remembered at most: names come from alerts, which may say anything


class Answer(NamedTuple):
    """What a live read said, and until when that counts."""

    until: float
    node: Node | None


def ignore(name: str, node: Node | None) -> None:
    """Tell nobody of a Node."""


class NodeCache:
    """Nodes by name. `elapsed` is a monotonic clock in seconds.

    `on_change` is called when a Node came, went, or differs in what decisions depend on; not for its heartbeats. Before
    that, `on_node` is told of the Node as it is now, None when it went.
    """

    def __init__(self, api: Api, *, elapsed: Callable[[], float], on_change: Callable[[], None]) -> None:
        self.on_node: Callable[[str, Node | None], None] = ignore
        self._api = api
        self._elapsed = elapsed
        self._on_change = on_change
        self._nodes: dict[str, Node] = {}
        # The newest version that a list or an event has told: all that happened until then is known.
        self._told = 0
        self._answers: dict[str, Answer] = {}
        self._reading: dict[str, asyncio.Future[Node | None]] = {}
        self._spoken_of: set[str] = set()

    def replace(self, objects: list[Node], resource_version: str) -> None:
        """Take the whole list; what we wrote after it was made stays.

        A list older than what was told before is of a cluster whose history went back (etcd from a backup).
        """
        listed_at = int(resource_version)
        rewound, self._told = listed_at < self._told, listed_at
        before, nodes = self._nodes, {node.metadata.name: node for node in objects}
        if not rewound:
            nodes |= {name: held for name, held in before.items() if _version(held) > listed_at}
        self._nodes = nodes
        self._spoken_of &= nodes.keys()
        self._answers.clear()
        changed = [name for name in before.keys() | nodes.keys() if _differs(before.get(name), nodes.get(name))]
        for name in changed:
            self.on_node(name, nodes.get(name))
        if changed:
            self._on_change()

    def put(self, object_: Node) -> None:
        """Take one node that was added or changed; most events are heartbeats, and change but its version."""
        self._told = max(self._told, _version(object_))
        self._take(object_)

    def answered(self, node: Node) -> None:
        """Take one node as a write or a live read of ours was answered.

        An answer that comes after the watch has told as much is old news: the Node may be gone by now.
        """
        if _version(node) > self._told:
            self._take(node)

    def _take(self, node: Node) -> None:
        name = node.metadata.name
        held = self._nodes.get(name)
        if held is not None and _version(held) >= _version(node):
            return
        self._nodes[name] = node
        if _differs(held, node):
            self._answers.pop(name, None)
            self.on_node(name, node)
            self._on_change()

    def remove(self, object_: Node) -> None:
        """Drop one node; its successor of the same name stays."""
        name = object_.metadata.name
        self._told = max(self._told, _version(object_))
        held = self._nodes.get(name)
        if held is not None and _version(held) > _version(object_):
            return
        self._answers.pop(name, None)
        self._spoken_of.discard(name)
        if self._nodes.pop(name, None) is not None:
            self.on_node(name, None)
            self._on_change()

    def get(self, name: str) -> Node | None:
        """The node of that name as memory has it, or None."""
        return self._nodes.get(name)

    def all(self) -> Iterable[Node]:
        """Every node that memory has."""
        return self._nodes.values()

    def spoken_of(self, name: str) -> bool:
        """Whether an alert has spoken of that node since it is there."""
        return name in self._spoken_of

    async def find(self, name: str) -> Node | None:
        """The node, from memory or by a live read; None only when the API server says that it is not there.

        Raises `UnavailableError` when it cannot be asked.
        """
        found = self._nodes.get(name)
        if found is None:
            answer = self._answers.get(name)
            fresh = answer is not None and self._elapsed() < answer.until
            told = answer.node if answer is not None and fresh else await self._read_once(name)
            # Events that came meanwhile know better than an answer that was under way.
            found = self._nodes.get(name) or told
        return self._noted(found)

    async def read(self, name: str) -> Node | None:
        """The node as the API server has it now. Raises `UnavailableError` when it cannot be asked."""
        node = await self._api.get(object_path(NODES, name), Node)
        if node is not None:
            self.answered(node)
        return self._noted(node)

    def _noted(self, node: Node | None) -> Node | None:
        if node is not None:
            self._spoken_of.add(node.metadata.name)
        return node

    async def _read_once(self, name: str) -> Node | None:
        """Ask, or wait for the answer or the failure of whoever is asking for the same node."""
        while (under_way := self._reading.get(name)) is not None:
            await asyncio.wait([under_way])
            if not under_way.cancelled():  # else whoever asked was cancelled, and the next one asks
                return under_way.result()
        answer = self._reading[name] = asyncio.get_running_loop().create_future()
        try:
            told = await self._api.get(object_path(NODES, name), Node)
            self._remember(name, told)
            answer.set_result(told)
        except UnavailableError as error:
            answer.set_exception(error)
            answer.exception()  # it may be that nobody waits for it
            raise
        finally:
            del self._reading[name]
            answer.cancel()
        return told

    def _remember(self, name: str, told: Node | None) -> None:
        if len(self._answers) >= _ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[name] = Answer(self._elapsed() + ANSWER_SECONDS, told)


def _differs(one: Node | None, other: Node | None) -> bool:
    return _substance(one) != _substance(other)


def _substance(node: Node | None) -> object:
    """What a decision may depend on."""
    if node is None:
        return None
    metadata = node.metadata
    return metadata.uid, metadata.labels, metadata.annotations, node.spec.taints


def _version(node: Node) -> int:
    return int(node.metadata.resource_version or 0)
