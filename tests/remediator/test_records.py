"""Records ↔ DeviceTaintRules: nothing is lost on the way, and nothing foreign or damaged is read as more than it is."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alerts.faults import FAULTS, Effect
from remediator.records import Key, Record, State, Stored, episode_of
from remediator.rule_records import from_object, object_name, to_object
from remediator.rules import Rule
from remediator.targets import Target
from tests.remediator.samples import DRIVER, NODE, NOW, STARTED, TAINT_KEY, record, rfc3339
from tests.remediator.strategies import devices, faults, hostile_texts, instants, node_names, records

API_VERSION = "resource.k8s.io/v1"
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
PREFIX = "neuron-remediator/"
NEVER = datetime.min.replace(tzinfo=UTC)
TAINTED = NOW + timedelta(seconds=1)
"""When the server has seen the taint come."""


def stored_object(of: Record, **metadata: Any) -> dict[str, Any]:
    """The object as the API server hands it out."""
    written = to_object(of, API_VERSION)
    written["metadata"] |= {"uid": "rule-uid", "resourceVersion": "7"} | metadata
    written["spec"]["taint"]["timeAdded"] = rfc3339(TAINTED)
    written["status"] = {"conditions": []}
    return written


def read(object_: dict[str, Any]) -> Record | None:
    return from_object(msgspec.json.decode(json.dumps(object_).encode(), type=Rule))


# There and back


@given(records())
def test_a_record_survives_the_way_through_the_cluster(written: Record) -> None:
    stored = Stored(object_name(written.key), "rule-uid", "7")

    assert read(stored_object(written)) == replace(written, stored=stored, tainted_since=TAINTED)


@given(records(), instants, hostile_texts)
def test_a_release_survives_the_way_through_the_cluster(written: Record, until: datetime, by: str) -> None:
    """And its words stand on the rule no longer than the release does."""
    released = replace(written, state=State.RELEASED, released_until=until, released_by=by, reason=by)
    found = read(stored_object(released))

    assert found is not None
    assert (found.released_until, found.released_by, found.reason) == (until, by, by)
    annotations = to_object(replace(released, state=State.ACTIVE), API_VERSION)["metadata"]["annotations"]
    assert not {"neuron-remediator/released-until", "neuron-remediator/released-by"} & annotations.keys()


@pytest.mark.parametrize("text", [None, "", "now", 5])
def test_a_time_of_the_taint_that_cannot_be_read_is_long_ago(text: object) -> None:
    written = stored_object(record())
    if text is None:
        del written["spec"]["taint"]["timeAdded"]
    else:
        written["spec"]["taint"]["timeAdded"] = str(text)
    found = read(written)

    assert found is not None
    assert found.tainted_since == NEVER


def test_the_object_is_exactly_this() -> None:
    """What people see with kubectl; changing it means migrating what is there."""
    assert to_object(record(), API_VERSION) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"neuron-health.{NODE}.3.hbm",
            "labels": {
                "app.kubernetes.io/managed-by": "neuron-remediator",
                "neuron-remediator/device": "3",
                "neuron-remediator/fault": "hbm",
            },
            "annotations": {
                "neuron-remediator/node": NODE,
                "neuron-remediator/node-uid": "uid-1",
                "neuron-remediator/state": "active",
                "neuron-remediator/reason": "NeuronDeviceHBMUncorrectableError",
                "neuron-remediator/latched": "true",
                "neuron-remediator/placed": "true",
                "neuron-remediator/episode": episode_of(STARTED),
                "neuron-remediator/first-fired": "2026-11-30T11:59:55.000000Z",
                "neuron-remediator/last-fired": "2026-11-30T11:59:55.000000Z",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-1"}],
        },
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": NODE, "device": "neuron-device-3"},
            "taint": {"key": TAINT_KEY, "value": "hbm-uncorrectable-error", "effect": "NoExecute"},
        },
    }


@given(records(), st.none() | st.builds(Stored, st.just("name"), st.text(), st.text()))
def test_the_time_of_the_taint_is_never_sent(written: Record, stored: Stored | None) -> None:
    """Sending it again restarts every toleration's clock (kubernetes PR 137167)."""
    assert "timeAdded" not in json.dumps(to_object(replace(written, stored=stored), API_VERSION))


def test_a_stored_record_is_written_over_the_very_version_it_was_read_from() -> None:
    metadata = to_object(record(stored=Stored("the-name", "rule-uid", "7")), API_VERSION)["metadata"]

    assert (metadata["name"], metadata["uid"], metadata["resourceVersion"]) == ("the-name", "rule-uid", "7")


@given(instants, instants)
def test_spells_that_begin_at_different_times_have_different_names(one: datetime, other: datetime) -> None:
    assert (episode_of(one) == episode_of(other)) is (one == other)
    assert LABEL_VALUE.fullmatch(episode_of(one))


# Selectors


@given(st.tuples(*[hostile_texts] * 3))
def test_no_target_has_an_empty_part(parts: tuple[str, str, str]) -> None:
    """An empty selector means every device in the cluster, and evicts every pod (kubernetes#141422)."""
    if all(parts):
        Target(*parts)
    else:
        with pytest.raises(ValueError, match="is empty; expected driver, pool and device"):
            Target(*parts)


@given(hostile_texts, devices, faults, st.tuples(*[hostile_texts] * 3))
def test_no_object_selects_more_than_one_device(
    node: str, device: int, fault: str, parts: tuple[str, str, str]
) -> None:
    with suppress(ValueError):
        target = Target(*parts)
        hostile = replace(record(fault, target=target), key=Key(node, device, fault))
        selector = to_object(hostile, API_VERSION)["spec"]["deviceSelector"]

        assert selector == {"driver": parts[0], "pool": parts[1], "device": parts[2]}
        assert all(selector.values())


# Names


@given(node_names, devices, faults)
def test_names_are_valid_and_say_what_they_stand_for(node: str, device: int, fault: str) -> None:
    name = object_name(Key(node, device, fault))

    assert len(name) <= 253
    assert SUBDOMAIN.fullmatch(name)
    assert name.startswith("neuron-health.")


LONG_LABEL = "a" * 60 + "."
long_nodes = st.integers(200, 253).map(lambda length: (LONG_LABEL * 5)[:length].rstrip(".") + "b")
"""Around the length from which a name no longer holds the node in full."""
short_nodes = st.text("ab.-", min_size=1, max_size=6).filter(SUBDOMAIN.fullmatch)
similar_keys = st.builds(Key, short_nodes | long_nodes, st.integers(0, 12), faults)


@given(similar_keys, similar_keys)
def test_different_keys_have_different_names(key: Key, other: Key) -> None:
    assume(key != other)

    assert object_name(key) != object_name(other)


def test_all_faults_of_the_longest_nodes_have_names_of_their_own() -> None:
    nodes = [("a" * 62 + ".") * 3 + "a" * 63 + last for last in "ab"]
    assert all(len(node) == 253 for node in nodes)
    names = {object_name(Key(node, device, fault)) for node in nodes for device in range(16) for fault in FAULTS}

    assert len(names) == 2 * 16 * len(FAULTS)
    assert all(len(name) <= 253 and SUBDOMAIN.fullmatch(name) for name in names)


# What is not ours, or no longer says what it is


def changed(object_: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Set (or with None remove) one field; the path's parts are separated by a blank."""
    *parents, last = path.split(" ")
    at = object_
    for part in parents:
        at = at[part]
    if value is None:
        at.pop(last, None)
    else:
        at[last] = value
    return object_


LABELS = "metadata labels"
ANNOTATIONS = "metadata annotations"
SELECTOR = "spec deviceSelector"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{LABELS} app.kubernetes.io/managed-by", None),
        (f"{LABELS} app.kubernetes.io/managed-by", "helm"),
        (LABELS, None),
        ("metadata name", "somebodys-rule"),
    ],
)
def test_a_rule_that_is_not_ours_is_no_record(path: str, value: object) -> None:
    assert read(changed(stored_object(record()), path, value)) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (ANNOTATIONS, None),
        (f"{LABELS} {PREFIX}device", None),
        (f"{LABELS} {PREFIX}device", "4"),
        (f"{LABELS} {PREFIX}fault", "s-ram"),
        (SELECTOR, None),
        (SELECTOR, {}),
        (f"{SELECTOR} driver", None),
        (f"{SELECTOR} pool", ""),
        (f"{SELECTOR} device", None),
    ],
)
def test_a_damaged_rule_is_the_record_its_name_says_and_withheld(path: str, value: object) -> None:
    """Withheld is not held: the rules ask for a firing, which writes it anew. Its name cannot be altered."""
    survivor = read(changed(stored_object(record()), path, value))

    assert survivor is not None
    assert survivor.key == record().key
    assert survivor.state is State.WITHHELD
    assert survivor.latched


@pytest.mark.parametrize("damage", [f"{ANNOTATIONS} {PREFIX}node", f"{LABELS} {PREFIX}device"])
def test_a_shortened_name_needs_the_rest(damage: str) -> None:
    """A name that was cut says nothing; with what it lacks lost too, there is no telling which fault it stands for."""
    node = ".".join(["n" * 60] * 4)
    object_ = stored_object(replace(record(), key=Key(node, 3, "hbm")))

    survivor = read(object_)
    assert survivor is not None
    assert survivor.key.node == node
    assert read(changed(object_, damage, None)) is None


def test_a_shortened_name_gives_no_second_key_to_a_fault_spelled_otherwise() -> None:
    """Names write `_` as `-`: where the name holds no fault, a label with the `-` must not become one."""
    long_node = ("a" * 60 + ".") * 4 + "b"
    object_ = stored_object(replace(record("link_efa"), key=Key(long_node, 3, "link_efa")))

    assert read(object_) is not None
    assert read(changed(object_, f"{LABELS} {PREFIX}fault", "link-efa")) is None


def damaged(annotation: str, value: str | None, *, fault: str = "link_efa") -> Record:
    survivor = read(changed(stored_object(record(fault)), f"{ANNOTATIONS} {PREFIX}{annotation}", value))
    assert survivor is not None
    return survivor


@pytest.mark.parametrize("value", [None, "", "True", "no", "FALSE", "0"])
def test_a_damaged_sticky_mark_is_read_as_latched(value: str | None) -> None:
    assert damaged("latched", value).latched


@pytest.mark.parametrize("value", [None, "", "Active", "gone"])
def test_a_damaged_state_is_read_as_withheld(value: str | None) -> None:
    """A firing is heard in that state, and the rules ask for one; any other would stand above it."""
    assert damaged("state", value).state is State.WITHHELD


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "yesterday",
        "2026-11-30",
        "2026-11-30T12:00:00",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-05:00",
        "99999-01-01T00:00:00Z",
    ],
)
def test_a_damaged_time_is_read_as_long_ago(value: str | None) -> None:
    """So that any firing is newer and writes it anew."""
    assert damaged("last-fired", value).last_fired == NEVER
    assert damaged("first-fired", value).first_fired == NEVER


def test_a_time_in_another_zone_is_read_as_utc() -> None:
    assert damaged("last-fired", "2026-11-30T13:00:00+01:00").last_fired == NOW


@pytest.mark.parametrize("value", [None, ""])
def test_a_lost_episode_is_the_one_of_the_last_firing(value: str | None) -> None:
    """Without one, no clear alert could ever name it: Prometheus drops empty labels."""
    assert damaged("episode", value).episode == episode_of(STARTED)


@pytest.mark.parametrize("value", [None, ""])
def test_a_lost_node_uid_is_the_owners(value: str | None) -> None:
    """Else the record would look like one of another machine, and lose its sticky mark with the next firing."""
    assert damaged("node-uid", value).node_uid == "uid-1"


@pytest.mark.parametrize("value", [None, "", "yes", "True"])
def test_a_damaged_placement_is_read_as_a_guess(value: str | None) -> None:
    assert not damaged("placed", value).target.placed


@pytest.mark.parametrize("effect", ["", "noexecute", "PreferNoSchedule", "NoExecuteForever"])
def test_an_unknown_effect_is_read_as_none(effect: str) -> None:
    """As Kubernetes itself does; the next firing raises it."""
    survivor = read(changed(stored_object(record()), "spec taint effect", effect))

    assert survivor is not None
    assert survivor.taint.effect is Effect.NONE


@given(records(), st.sampled_from(["labels", "annotations"]), st.data(), hostile_texts)
def test_any_damage_to_the_marks_is_read_or_is_no_record(
    written: Record, where: str, data: st.DataObject, value: str
) -> None:
    object_ = stored_object(written)
    name = data.draw(st.sampled_from(sorted(object_["metadata"][where])))
    object_["metadata"][where][name] = value
    survivor = read(object_)

    assert survivor is None or survivor.key == written.key
