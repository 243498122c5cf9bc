"""End the command of a shell session: what ignores the interrupt gets SIGTERM, then SIGKILL.

That is after a timeout, and when its call is cancelled.  The shell itself is to go on, so the last
two are sent by the monitor in it (``shell_script.py``), to the shell's children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from handrail.errors import UsageError
from handrail.workspace.process import AsyncProcess
from handrail.workspace.sessions import shell_script

#: Seconds between an interrupt and SIGTERM, and between that and SIGKILL.
_STEP_SECONDS = 1.0


async def end_command(
    shell: AsyncProcess, done: asyncio.Future[None], interrupt: Callable[[], Awaitable[None]]
) -> None:
    """End the command of a shell: interrupt, SIGTERM, SIGKILL, and at last the shell.

    ``done`` is set when the command has ended, or the shell.
    """
    await interrupt()
    for signal in (shell_script.TERM_CHILDREN, shell_script.KILL_CHILDREN):
        if await done_within(done, _STEP_SECONDS):
            return
        try:
            await shell.signal(signal)
        except UsageError:
            break  # this server passes on an interrupt alone
    if not await done_within(done, _STEP_SECONDS):
        await shell.terminate(0.0)
        await done


async def done_within(future: asyncio.Future[None], limit: float | None) -> bool:
    """Wait for the future; whether it is done within ``limit`` seconds."""
    if limit is None:
        await asyncio.shield(future)
        return True
    return bool((await asyncio.wait((future,), timeout=limit))[0])
