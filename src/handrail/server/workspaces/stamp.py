"""The stamp of a supervised server: while its supervisor lives, it is touched again and again.

A server outlives the supervisor that started it, so that the next one finds it.  When none comes,
the stamp grows old, or is gone with the directory's owner; then the server ends everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

log = logging.getLogger(__name__)

#: The longest pause between two looks, and the shortest.
_MOST_SECONDS = 1.0
_LEAST_SECONDS = 0.1


def begin(path: str) -> None:
    """Make the stamp if its supervisor has not: the time runs from now."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


async def until_old(path: str, seconds: float) -> str:
    """Wait until the stamp is that old or missing; says which."""
    pause = min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds / 4))
    while True:
        await asyncio.sleep(pause)
        age = await asyncio.to_thread(_age, path)
        if age is None:
            return f"the stamp {path} is missing"
        if age > seconds:
            return f"the stamp {path} was not touched for {age:.0f} s"


def _age(path: str) -> float | None:
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("the stamp %s cannot be read: %s", path, error.strerror)
        return 0.0
