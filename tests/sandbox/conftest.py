"""Servers of each user, with sandboxes that wait and without, for cases that attack them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.sandbox.arena import Wire, serving, users


@pytest.fixture(scope="session")
def base() -> Iterator[str]:
    base = tempfile.mkdtemp(prefix="handrail-attack-", dir="/var/tmp")
    os.chmod(base, 0o755)
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def wires(base: str) -> Iterator[dict[tuple[int, str], Wire]]:
    """A client of two servers of each user, with sandboxes that wait and without."""
    found: dict[tuple[int, str], Wire] = {}
    with ExitStack() as stack:
        for uid in users():
            for warm in ("on", "off"):
                url, home = stack.enter_context(serving(base, uid, warm=warm))
                found[uid, warm] = Wire(url, home=home)
                stack.callback(found[uid, warm].close)
        yield found
