"""Taints with our key on Nodes that are not known to be ours, and the commands that take them off. Pure.

A Node's annotation says which of its taints are ours. Where a hand has removed or damaged it, a taint of ours stays, as
it may as well be somebody else's: that is for a person to judge. So nothing here is ever carried out.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remediator.cli.words import joined, plain, taint_text
from remediator.names import TAINT_KEY
from remediator.node_records import ANNOTATION, foreign_taints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from remediator.inventory import Node
    from remediator.node_records import NodeTaint
    from remediator.records import Record

_FEW = 20


def keys_of(records: Iterable[Record]) -> frozenset[str]:
    """The keys that taints of ours may have: that of the service's default, and those that records name."""
    return frozenset({TAINT_KEY, *(record.taint.key for record in records)} - {""})


def strays(node: Node, keys: Collection[str]) -> list[NodeTaint]:
    """The taints of a Node that have such a key and are not known to be ours."""
    return [taint for taint in foreign_taints(node) if taint.get("key") in keys]


def kubectl(kubeconfig: Path | str | None) -> str:
    """How the commands to copy begin; `kubeconfig` is the file that they must name, if any."""
    return f"kubectl --kubeconfig {shlex.quote(str(kubeconfig))}" if kubeconfig else "kubectl"


def without_annotation(node: str) -> str:
    """Arguments with which kubectl takes our annotation off a Node."""
    return f"annotate node {node} {ANNOTATION}-"


def without_keys(node: str, taints: Iterable[NodeTaint]) -> str:
    """Arguments with which kubectl takes all taints of those keys off a Node."""
    keys = sorted({str(taint["key"]) for taint in taints})
    return f"taint node {node} {' '.join(f'{key}-' for key in keys)}"


def of_strays(nodes: Iterable[Node], keys: Collection[str], kubeconfig: Path | None) -> Iterator[str]:
    """Say which such taints are left, and how they are taken off."""
    found = [(node.metadata.name, taints) for node in nodes if (taints := strays(node, keys))]
    for name, taints in found[:_FEW]:
        exactly = " ".join(f"{taint['key']}:{taint['effect']}-" for taint in taints)
        command = f"{kubectl(kubeconfig)} taint node {name} {exactly}"
        said = joined(map(taint_text, taints))
        yield f"left on Node {plain(name)}, as not known to be ours: {said}; if it is ours, take it off: {command}"
    if len(found) > _FEW:
        yield f"{len(found) - _FEW} more Nodes have taints with our key that are not known to be ours"
