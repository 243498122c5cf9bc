"""A launcher with a keeper of its own, and nothing left behind afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keeper.watching import nothing_left
from tests.process.workshop import Run, run_in


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def run(_tidy: None) -> Run:
    """Run a coroutine function that is given a Workshop, on uvloop."""
    return run_in("uvloop")


@pytest.fixture(params=["uvloop", "asyncio"])
def run_everywhere(_tidy: None, request: pytest.FixtureRequest) -> Run:
    """The same on both loops, for what depends on how they watch descriptors."""
    return run_in(request.param)
