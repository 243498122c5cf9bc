"""Fixtures for pytest: ``pytest_plugins = ["handrail.testing.fixtures"]``."""

from __future__ import annotations

import pytest

from handrail.executor.fake import FakeExecutor


@pytest.fixture
def fake_executor() -> FakeExecutor:
    """A scripted executor without scripts; add them with ``replies`` and ``on``."""
    return FakeExecutor()
