"""Any history of one fault, decided and carried out on the memory backend, against a model of a few lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alerts.faults import FAULTS, Effect
from remediator.backends.memory import MemoryBackend
from remediator.decide import (
    YOUNG_NODE,
    Cleared,
    Create,
    Delete,
    Fired,
    Outcome,
    Replace,
    Update,
    decide_cleared,
    decide_fired,
    triage,
)
from remediator.records import Key, State, episode_of
from remediator.rule_records import from_object, to_object
from remediator.rules import Rule
from tests.remediator.samples import NODE, alert, node, view

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from remediator.decide import Action
    from remediator.notification import Alert
    from remediator.records import Record

BEGINNING = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Expected:
    """What must be true of the record while there is one."""

    machine: str
    newest: datetime
    latched: bool
    effect: Effect


class Lifecycle(RuleBasedStateMachine):
    """One fault on one device of a node whose machine may be replaced, over simulated days."""

    @initialize(fault=st.sampled_from(["hbm", "link_efa", "device_unreachable"]))
    def begin(self, fault: str) -> None:
        """Start with a machine that is long there and healthy."""
        self.fault = FAULTS[fault]
        self.key = Key(NODE, 3, fault)
        self.now = BEGINNING
        self.machine = node(uid="uid-0", created=BEGINNING - timedelta(days=30))
        self.backend = MemoryBackend(lambda: self.now)
        self.expected: Expected | None = None
        self.sent: list[Alert] = []

    @rule(ago=st.integers(0, 120))
    def fire(self, ago: int) -> None:
        """Deliver an alert that began a little while ago."""
        self._send("taint", self.now - timedelta(seconds=ago))

    @precondition(lambda self: len(self.sent) > 5)
    @rule()
    def latch(self) -> None:
        """Let the source say that it will not clear by itself; late, since little can happen after."""
        self._send("latch", self.now)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def fire_again(self, data: st.DataObject) -> None:
        """Repeat, retry, or deliver a late copy from another Alertmanager."""
        self._deliver(data.draw(st.sampled_from(self.sent)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        """Deliver the end of an alert, which says nothing."""
        ended = msgspec.structs.replace(data.draw(st.sampled_from(self.sent)), status="resolved")
        assert triage(ended, cluster=None) is Outcome.IGNORED_RESOLVED

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        """Deliver the clear of any spell there ever was, the newest included."""
        spell = data.draw(st.sampled_from(self.sent)).starts_at
        cleared = alert(fault=self.fault.name, remediation="clear", episode=episode_of(spell))
        meaning = triage(cleared, cluster=None)
        assert isinstance(meaning, Cleared)
        self._carry_out(decide_cleared(meaning, record=self._record()))
        if self.expected is not None and not self.expected.latched and spell == self.expected.newest:
            self.expected = None

    @rule(seconds=st.integers(1, 3600))
    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    @rule()
    def restart(self) -> None:
        """Forget everything but what the objects in the cluster say."""
        self.backend._records = {
            key: read
            for key, record in self.backend._records.items()
            if (read := from_object(msgspec.convert(to_object(record, "resource.k8s.io/v1"), Rule)))
        }

    @precondition(lambda self: self.expected)
    @rule()
    def weaken_by_hand(self) -> None:
        """Edit the rule, as somebody with kubectl may."""
        held = self._record()
        assert held is not None
        weak = replace(held.taint, effect=Effect.NONE)
        finish(self.backend.update(replace(held, taint=weak, state=State.WITHHELD)))
        assert self.expected is not None
        self.expected = replace(self.expected, effect=Effect.NONE)

    @rule()
    def recycle(self) -> None:
        """Replace the machine; the garbage collector has not come by yet."""
        self.now += timedelta(hours=1)
        self.machine = node(uid=f"uid-{self.now}", created=self.now)

    @invariant()
    def the_record_is_the_expected_one(self) -> None:
        """Compare the backend with the model."""
        held = self._record()
        if held is None or self.expected is None:
            assert held is None
            assert self.expected is None
            return
        assert held.node_uid == self.expected.machine
        assert held.last_fired == self.expected.newest
        assert held.episode == episode_of(self.expected.newest)
        assert held.latched is self.expected.latched
        assert held.taint.effect is self.expected.effect

    def _record(self) -> Record | None:
        return self.backend.record(self.key)

    def _send(self, remediation: str, started: datetime) -> None:
        self.sent.append(alert(fault=self.fault.name, remediation=remediation, started=started))
        self._deliver(self.sent[-1])

    def _deliver(self, fired: Alert) -> None:
        meaning = triage(fired, cluster=None)
        assert isinstance(meaning, Fired)
        held = self._record()
        self._carry_out(decide_fired(meaning, node=self.machine, record=held, view=view(now=self.now)))
        self.expected = self._after(fired)

    def _after(self, fired: Alert) -> Expected | None:
        machine = self.machine.metadata
        if fired.starts_at < machine.creation_timestamp and self.now - machine.creation_timestamp < YOUNG_NODE:
            return self.expected
        latched = self.fault.latched or fired.labels["remediation"] == "latch"
        fresh = Expected(machine.uid, fired.starts_at, latched, self.fault.effect)
        held = self.expected
        if held is None or held.machine != machine.uid:
            return fresh
        return replace(fresh, newest=max(held.newest, fresh.newest), latched=held.latched or fresh.latched)

    def _carry_out(self, decided: Action | Outcome) -> None:
        match decided:
            case Create(made):
                finish(self.backend.create(made))
            case Update(made):
                finish(self.backend.update(made))
            case Replace(void, made):
                finish(self.backend.delete(void))
                finish(self.backend.create(made))
            case Delete(gone):
                finish(self.backend.delete(gone))
            case Outcome():
                pass


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a write of the memory backend, which never waits, so that no loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the memory backend waited for something")


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(stateful_step_count=30, max_examples=200, deadline=None)
