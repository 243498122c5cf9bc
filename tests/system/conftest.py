"""Everything here is marked as a system test."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "system":
            item.add_marker(pytest.mark.system)
