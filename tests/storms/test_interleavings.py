"""Another writer of a Node's taints and annotations, against ours: a thousand turns, and none is lost on either side.

The other one does as kube-controller-manager and Karpenter do: it reads the Node, changes what is its own, writes the
whole list of taints in a patch that names the version it has read, and begins anew on a conflict.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from alerts.faults import FAULTS
from remediator.records import Key, episode_of
from tests.stack.apisession import api_session
from tests.stack.pipeline import LIFTED, TOKEN
from tests.stack.sender import Sender
from tests.storms.on_nodes import ANNOTATION, KEY, node_writes, records, restarted_with, settled_node
from tests.storms.storm import USER, Fault, Written, shown
from tests.storms.versions import Version, Versions, watching

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.nodes import Taint
    from tests.stack.shapes import Object

pytestmark = pytest.mark.stack

NODE = "ip-10-8-0-1.ec2.internal"
PATH = f"/api/v1/nodes/{NODE}"
TURNS = 1000
"""How often a write of the one follows a write of the other."""

WITHIN_SECONDS = 200
PATIENCE_SECONDS = 0.05
KINDS = ("device_unreachable", "link_host", "link_efa")
"""Faults that clear, critical ones and others; each comes and goes on a device of its own."""


class Other:
    """Adds and removes taints and annotations of its own, and keeps a ledger of what must be there."""

    def __init__(self, session: aiohttp.ClientSession, node: Object) -> None:
        self.taints: list[Taint] = []
        self.notes: dict[str, str] = theirs(node)[1]
        self.writes = self.conflicts = 0
        self._session = session
        self._random = Random(1)  # noqa: S311 - to be repeatable

    async def step(self) -> None:
        """Look whether all of its own is there, and change something of it; again after a conflict."""
        async with self._session.get(PATH) as answer:
            answer.raise_for_status()
            node = await answer.json()
        assert theirs(node) == (self.taints, self.notes), "the other writer has lost something"
        taints, notes, change = self._changed(node)
        async with self._session.patch(
            PATH, data=json.dumps(change), headers={"Content-Type": "application/merge-patch+json"}
        ) as answer:
            if answer.status == HTTPStatus.CONFLICT:
                self.conflicts += 1
                return
            answer.raise_for_status()
        self.taints, self.notes = taints, notes
        self.writes += 1

    def _changed(self, node: Object) -> tuple[list[Taint], dict[str, str], Object]:
        """Its taints and annotations as they are to be, and the patch."""
        taints, notes = list(self.taints), dict(self.notes)
        written = list(node["spec"].get("taints", ()))
        change: Object = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}
        number, dice = self.writes, self._random.random()
        if dice < 0.4 or not taints:
            taint = {"key": f"example.com/{number}", "effect": self._random.choice(("NoSchedule", "NoExecute"))}
            if self._random.random() < 0.5:
                taint |= {"value": str(number), "timeAdded": "2026-01-02T03:04:05Z"}
            place = self._random.randint(0, len(written))
            written.insert(place, taint)
            taints = [one for one in written if one["key"] != KEY]
        elif dice < 0.7 or len(taints) > 6:
            gone = self._random.choice(taints)
            taints.remove(gone)
            written.remove(gone)
        else:
            name = f"example.com/note-{number % 5}"
            gone_note = notes.pop(name, None)
            if gone_note is None:
                notes[name] = str(number)
            change["metadata"]["annotations"] = {name: notes.get(name)}
        change["spec"] = {"taints": written or None}
        return taints, notes, change


def theirs(node: Object) -> tuple[list[Taint], dict[str, str]]:
    """What of a Node's taints and annotations is not ours."""
    notes = {name: text for name, text in node["metadata"].get("annotations", {}).items() if name != ANNOTATION}
    return [taint for taint in node["spec"].get("taints", ()) if taint["key"] != KEY], notes


def ours(node: Object) -> tuple[list[Taint], str]:
    """What of them is ours."""
    text = node["metadata"].get("annotations", {}).get(ANNOTATION, "")
    return [taint for taint in node["spec"].get("taints", ()) if taint["key"] == KEY], text


def turns(versions: list[Version]) -> list[str]:
    """Who has made each version after the first, each of which only one of the two may have changed."""
    made = []
    for before, after in pairwise(one.object for one in versions):
        we, they = ours(before) != ours(after), theirs(before) != theirs(after)
        assert not (we and they), f"one write has changed what belongs to both: {before} {after}"
        if we or they:
            made.append("ours" if we else "theirs")
    return made


def alternations(made: list[str]) -> int:
    """How often the one followed the other."""
    return sum(one != other for one, other in pairwise(made))


def is_sound(node: Object) -> None:
    """The Node's taint of ours is that of the gravest record that it bears, and there is none without a record."""
    standing = [kind for _, kind in records(node)]
    critical = [kind for kind in standing if FAULTS[kind].severity == "critical"]
    gravest = next((kind for kind in FAULTS if kind in (critical or standing)), None)
    shows = [(taint["value"], taint["effect"]) for taint in ours(node)[0]]
    assert shows == ([(FAULTS[gravest].value, "NoSchedule")] if gravest else [])


def enough(versions: Versions) -> bool:
    """Whether there were turns enough."""
    return len(versions.seen) > TURNS and alternations(turns(versions.in_order())) >= TURNS


class Game:
    """Says when it is over, and whose turn it is."""

    def __init__(self) -> None:
        self.over = False
        self._moved = asyncio.Event()

    def moved(self) -> None:
        """One of our writes is done."""
        self._moved.set()

    async def turn(self) -> None:
        """Wait until we have moved since the last turn, or have not been able to for a while: so they take turns."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), PATIENCE_SECONDS)
        self._moved.clear()


async def comes_and_goes(sender: Sender, fault: Fault, game: Game) -> list[Fault]:
    """Let a fault begin and end, anew each time, until it is over; returns the spells, of which the last stands."""
    spells = [fault]
    await sender.send(fault.firing())
    while not game.over:
        game.moved()
        await sender.send(spells[-1].over())
        game.moved()
        spells.append(fault.again())
        await sender.send(spells[-1].firing())
    return spells


async def test_a_thousand_turns_with_another_writer_and_none_is_lost(
    bare_plane: ControlPlane, bare_admin: Admin, tmp_path: Path
) -> None:
    """Whoever comes between, each write is there: ours by what stands at the end, theirs by a look before each step.

    The watch has every version of the Node: none changes what belongs to both, and our taint fits our records in all.
    """
    node = await asyncio.to_thread(settled_node, bare_admin, NODE)
    headers = {"Authorization": f"Bearer {bare_plane.token('admin')}"}
    game = Game()
    with restarted_with(bare_plane, tmp_path, *LIFTED) as service:
        written = Written(bare_plane)
        async with (
            Sender(service.url, token=TOKEN, deadline=WITHIN_SECONDS) as sender,
            api_session(bare_plane, headers=headers) as session,
            watching(bare_plane, Node=f"/api/v1/nodes?fieldSelector=metadata.name={NODE}") as versions,
            asyncio.timeout(WITHIN_SECONDS),
        ):
            other = Other(session, node)
            began = datetime.now(UTC)

            async def meddle() -> None:
                while not game.over:
                    await game.turn()
                    await other.step()
                    game.over = other.writes % 10 == 0 and enough(versions)

            async with asyncio.TaskGroup() as group:
                group.create_task(meddle())
                faults = [Fault(Key(NODE, device, kind), began) for device, kind in enumerate(KINDS)]
                tasks = [group.create_task(comes_and_goes(sender, one, game)) for one in faults]
            spells = [task.result() for task in tasks]
            took = (datetime.now(UTC) - began).total_seconds()
            last = await asyncio.to_thread(bare_admin.get, "Node", NODE)
            await versions.until({**last, "kind": "Node"})
            statuses = sender.statuses()
        conflicts = service.value(
            "neuron_remediator_actions_total", action="create", backend="node-taint", result="conflict"
        )
    await asyncio.to_thread(written.up_to_now, bare_admin)

    made = turns(versions.in_order())
    shown(
        "interleavings",
        alternations=alternations(made),
        ours=made.count("ours"),
        theirs=made.count("theirs"),
        our_conflicts_creating=conflicts,
        their_conflicts=other.conflicts,
        statuses=dict(statuses),
        seconds=took,
    )
    for version in versions.in_order():
        is_sound(version.object)
    assert theirs(last) == (other.taints, other.notes)
    assert made.count("theirs") == other.writes
    standing = {(one[-1].key.device, one[-1].key.fault): episode_of(one[-1].started) for one in spells}
    assert {key: one.episode for key, one in records(last).items()} == standing
    sent = sum(2 * len(one) - 1 for one in spells)
    assert made.count("ours") == sent
    assert node_writes(written) == ["patch"] * sent
    patches = bare_plane.audit(user=USER, resource="nodes")
    assert {(event["objectRef"]["name"], event["objectRef"].get("subresource")) for event in patches[-sent:]} == {
        (NODE, None)
    }
    assert alternations(made) >= TURNS
