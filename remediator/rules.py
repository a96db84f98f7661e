"""DeviceTaintRules as the API server sends them: the few fields that are read, and nothing else. Pure data."""

from __future__ import annotations

import msgspec


class RuleOwner(msgspec.Struct, frozen=True):
    """The object a rule goes with: for ours, the Node."""

    uid: str = ""


class RuleMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of a DeviceTaintRule's metadata."""

    name: str
    uid: str
    resource_version: str
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[RuleOwner] = []


class RuleSelector(msgspec.Struct, frozen=True):
    """Which devices a rule taints; an absent field matches everything."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class RuleTaint(msgspec.Struct, frozen=True, rename="camel"):
    """The taint of a rule. The server sets `time_added`, anew with each change of the effect."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


class RuleSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A rule's content."""

    taint: RuleTaint
    device_selector: RuleSelector = RuleSelector()


class Rule(msgspec.Struct, frozen=True):
    """A DeviceTaintRule, as v1, v1beta2 and v1alpha3 (from 1.35) all write it."""

    metadata: RuleMetadata
    spec: RuleSpec
