"""Waiting until something is so: every wait has a limit, none takes a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Long enough for a machine that does three other things; nothing is measured by it.
LIMIT = 30.0
#: Times to try, one after the other, for a command that has to get somewhere before its time is
#: over: the first is enough unless the machine is busy.
PATIENCE = (0.3, 3.0, 20.0)
_PAUSE = 0.004


def eventually(check: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + limit
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not: {what or check}"
        time.sleep(_PAUSE)
    return value


async def eventually_so(
    check: Callable[[], T], what: str | Callable[[], str] = "", limit: float = LIMIT
) -> T:
    """Ask until the answer is true while the loop goes on, and return it.

    ``what`` may be a function, which is called if the limit passes: it can say what is there then.
    """
    deadline = time.monotonic() + limit
    while not (value := check()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"still not: {(what() if callable(what) else what) or check}")
        await asyncio.sleep(_PAUSE)
    return value


async def spin(condition: Callable[[], Any]) -> None:
    """Turn the loop until something is so: for what a server does without telling its clients."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (that is what it is for)
            await asyncio.sleep(0)
