"""Placeholders in a directory of their own, with records of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan.placeholders import PlaceholderRegistry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[PlaceholderRegistry]:
    registry = PlaceholderRegistry(str(tmp_path / "registry"))
    yield registry
    registry.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    return place
