"""Nothing is left behind: no process, no descriptor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keeper.watching import nothing_left


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with nothing_left():
        yield
