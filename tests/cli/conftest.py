"""A home for command lines that start a server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.sshd import end_all


@pytest.fixture
def room() -> Iterator[Path]:
    """A home with a short path, for a socket; its servers are ended."""
    with tempfile.TemporaryDirectory(prefix="hr-") as name:
        try:
            yield Path(name)
        finally:
            asyncio.run(end_all(name))
