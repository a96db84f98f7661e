"""A small fleet for each storm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stack.kube import Admin


@pytest.fixture
def fleet(admin: Admin) -> Callable[[int], list[str]]:
    """Give a way to make that many nodes of sixteen devices; returns their names."""

    def make(count: int) -> list[str]:
        names = [f"ip-10-7-0-{number}.ec2.internal" for number in range(1, count + 1)]
        for name in names:
            admin.node(name)
        return names

    return make
