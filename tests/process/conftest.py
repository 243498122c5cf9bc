"""A launcher with a keeper of its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.process.workshop import Workshop, workshop


@pytest.fixture
def shop() -> AbstractAsyncContextManager[Workshop]:
    return workshop()
