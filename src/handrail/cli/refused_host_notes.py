"""Tells the user of an interactive shell which hosts were refused, behind the command that tried.

Such a shell does not say where a command ends: its silence is taken for that.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from handrail.workspace.process import on_refused_host, refused_to_command

if TYPE_CHECKING:
    from handrail.workspace.process import AsyncProcess

#: Without output for so long, the command is taken to have said what it has to say.
QUIET_SECONDS = 0.3


class RefusedHostNotes:
    """The refused hosts of one process, told as they come."""

    def __init__(self, process: AsyncProcess, *, raw: bool) -> None:
        self._process = process
        self._end = "\r\n" if raw else "\n"
        self._refused = asyncio.Event()
        on_refused_host(process, self._refused.set)
        self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Tell what is left."""
        self._telling.cancel()
        await asyncio.gather(self._telling, return_exceptions=True)
        await self._say()

    async def _tell(self) -> None:
        while True:
            await self._refused.wait()
            self._refused.clear()
            await self._process.wait_for(idle=QUIET_SECONDS, timeout=60)
            await self._say()

    async def _say(self) -> None:
        for note in (await refused_to_command(self._process)).notes:
            text = f"{self._end}handrail: {note}{self._end}"
            try:
                os.write(2, text.encode("utf-8", "replace"))
            except OSError:
                return  # the terminal is gone
