"""No test of the keeper leaves a process or a descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keeper.peer import Peer, embedded


@pytest.fixture
def server() -> Iterator[Peer]:
    """The server of a keeper of its own."""
    with embedded() as peer:
        yield peer
