"""The comparison behind `test_rbac_is_real`, on paper: it names each verb that is missing, idle, or given elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.storms.rights import EVERYWHERE, Account, Asked, Right, asked, differences, granted, shipped

if TYPE_CHECKING:
    from tests.stack.shapes import Object

HERE = Right("here", "", "pods", "list")


def test_the_shipped_roles_differ_in_nothing_from_themselves() -> None:
    assert differences(shipped(), Asked(shipped(), set())) == []


@pytest.mark.parametrize("right", sorted(shipped()), ids=lambda right: "-".join(filter(None, right)))
def test_one_verb_too_few_and_one_too_many_are_named(right: Right) -> None:
    rest, whole = shipped() - {right}, shipped()

    assert differences(rest, Asked(rest, {right})) == [f"missing: {right}"]
    assert differences(whole, Asked(rest, set())) == [f"unused: {right}"]
    assert differences(rest, Asked(whole, set())) == [f"allowed by another role: {right}"]


def test_a_right_that_is_wider_than_its_use_is_named() -> None:
    wide = HERE._replace(scope=EVERYWHERE)

    assert differences({wide}, Asked({HERE}, set())) == [
        f"allowed by another role: {HERE}",
        f"unused: {wide}",
    ]


def test_an_audit_line_is_read_by_what_was_decided() -> None:
    def line(code: int, decision: str, **about: str) -> Object:
        annotations = {"authorization.k8s.io/decision": decision}
        return {"verb": "patch", "objectRef": about, "responseStatus": {"code": code}, "annotations": annotations}

    said = asked(
        [
            line(409, "allow", resource="nodes"),
            line(403, "forbid", resource="leases", apiGroup="coordination.k8s.io", namespace="here"),
            # Let through by the roles, and held up by what comes after them.
            line(403, "allow", resource="nodes", subresource="status"),
            {"verb": "get", "requestURI": "/apis", "responseStatus": {"code": 200}},
        ]
    )

    assert said.used == {Right("", "", "nodes", "patch")}
    assert said.forbidden == {
        Right("here", "coordination.k8s.io", "leases", "patch"),
        Right("", "", "nodes/status", "patch"),
    }


@pytest.mark.parametrize(
    ("account", "rights"),
    [
        (Account("here", "agent"), {HERE}),
        # A role that nobody has bound to it, or in another namespace, gives nothing.
        (Account("there", "agent"), set()),
        (Account("here", "another"), set()),
    ],
)
def test_a_right_is_given_by_a_binding_where_that_is(account: Account, rights: set[Right]) -> None:
    role = {"kind": "Role", "metadata": {"name": "reader", "namespace": "here"}}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "any", "namespace": "here"},
        "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "here"}],
    }

    assert granted([{**role, "rules": rules}, binding], account) == rights
