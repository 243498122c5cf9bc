"""The timeout of a command that its executor does not keep, and where the others are kept.

Children of a keeper are ended by the keeper's clock, whether or not a server is there then:
``keeper/timeout_and_grace.py``, for every executor with ``features.timeouts``.  ``handrail run`` in
the foreground has no keeper and its own clock: ``process/foreground/run.py``.  Here is the clock of
the caller, for executors without the feature, for a server that has fallen silent, and for commands
that are run to their end (``orchestrator/one_shot.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from handrail.executor.base import ExecSession
from handrail.process.exit_status import ExitInfo


async def exit_or_end(
    session: ExecSession,
    timeout: float | None,
    grace: float = 0.0,
    over: Callable[[], None] | None = None,
) -> ExitInfo | None:
    """Wait for its exit; when the time is over, call ``over``, end the tree and return None."""
    try:
        async with asyncio.timeout(timeout):
            return await session.wait()
    except TimeoutError:
        if over is not None:
            over()
        await session.terminate(grace)
        return None
