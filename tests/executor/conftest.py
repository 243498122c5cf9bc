"""Executors of every kind, and nothing left behind afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.testing.fixtures import fake_executor
from tests.executor.places import Main, Place, executor_place, run_in

__all__ = ["executor_place", "fake_executor"]

Run = Callable[[Main], None]


@pytest.fixture
def everywhere(executor_place: Place, tmp_path: Path) -> Run:
    """Run a test in a room of each kind."""
    return lambda main: run_in(executor_place.name, tmp_path, main, server=executor_place.server)


@pytest.fixture(params=["uvloop", "asyncio"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a test with a local executor, on both kinds of loop."""
    return lambda main: run_in("local", tmp_path, main, request.param)


@pytest.fixture
def far(tmp_path: Path) -> Run:
    """Run a test with a remote executor over a WebSocket."""
    return lambda main: run_in("websocket", tmp_path, main)
