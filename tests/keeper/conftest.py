"""No test of the keeper leaves a process or a descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keeper.peer import Peer, embedded
from tests.keeper.watching import nothing_left


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def server(_tidy: None) -> Iterator[Peer]:
    """The server of a keeper of its own."""
    with embedded() as peer:
        yield peer
