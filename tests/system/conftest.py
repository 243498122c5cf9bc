"""Coroutines run as in ``tests/server``; everything here is marked as a system test."""

from __future__ import annotations

import pytest

from tests.server.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "system":
            item.add_marker(pytest.mark.system)
