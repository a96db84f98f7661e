"""Fixtures of the exporter's tests."""

from pathlib import Path

import pytest

from tests.exporter.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """Four healthy devices, every one of them read."""
    return await Rig(tmp_path).started()
