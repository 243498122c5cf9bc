"""Workspaces without a sandbox in a directory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import Workspace
from handrail.workspace.synchronous import loop_thread
from tests.executor.places import executor_place

__all__ = ["executor_place"]


@pytest.fixture(autouse=True)
def loop() -> str:
    """Callers of a workspace have asyncio's own loop."""
    loop_thread.bridge()  # its thread and its descriptors stay, by design
    return "asyncio"


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path, sandbox="off") as workspace:
        yield workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    return path
