"""A whole pipeline on the real control plane, one for each story."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stack.binaries import require
from tests.stack.pipeline import LIFTED, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

NODE = "ip-10-1-1-200.us-west-2.compute.internal"


@pytest.fixture
def pipeline(control_plane: ControlPlane, admin: Admin, tmp_path: Path) -> Iterator[Pipeline]:
    """Start a node of 16 devices and everything that watches over it; its first scrape has been seen."""
    require("prometheus", "alertmanager")
    admin.node(NODE)
    # The one node is the whole fleet, and some stories break most of it.
    with Pipeline(tmp_path, node=NODE, control_plane=control_plane, remediator_flags=LIFTED) as running:
        yield running
