"""What an operator names: a node, a device of it, a fault on that device. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remediator.inventory import NEURON_DEVICE, NEURON_NODE
from remediator.names import is_subdomain

if TYPE_CHECKING:
    from remediator.records import Key

# The second spelling is how slices and targets call it, so that what is on the screen can be pasted.
_DEVICE = re.compile(rf"(?:{NEURON_DEVICE}-)?(0|[1-9][0-9]{{0,3}})")
FAULT = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""How a fault may be called."""

_SHOWN = 60
_PARTS = 3


@dataclass(frozen=True, slots=True)
class Address:
    """NODE, NODE/DEVICE or NODE/DEVICE/FAULT."""

    node: str
    device: int | None = None
    fault: str | None = None

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.node, self.device, self.fault) if part is not None)

    def names(self, key: Key) -> bool:
        """Whether that record is one of those meant."""
        return key.node == self.node and self.device in (None, key.device) and self.fault in (None, key.fault)


def parse_address(text: str) -> Address:
    """Read an address; raises ValueError for what no record could have."""
    parts = text.split("/")
    if len(parts) > _PARTS:
        raise ValueError(f"expected NODE, NODE/DEVICE or NODE/DEVICE/FAULT, got {shortened(text)}")
    node, device, fault = (*parts, None, None)[:_PARTS]
    if node is None or not is_subdomain(node):
        raise ValueError(f"expected the name of a Node, got {shortened(str(node))}")
    if device is None:
        return Address(node)
    number = _DEVICE.fullmatch(device)
    if number is None:
        whole = f"; for the whole node write {node} alone (release: with --all-devices)"
        hint = whole if device == NEURON_NODE else ""
        raise ValueError(f"expected a device number such as '3', got {shortened(device)}{hint}")
    if fault is not None and not FAULT.fullmatch(fault):
        raise ValueError(f"expected a fault such as 'hbm', got {shortened(fault)}")
    return Address(node, int(number[1]), fault)


def shortened(text: str) -> str:
    """The text in quotes, without what could move a terminal's cursor, and not longer than a line."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
