"""Keeping all the output of a process, for a result."""

from __future__ import annotations

import asyncio

from handrail.executor.base import ExecSession, OutputKind

#: How long output may still come after the exit when a descendant holds the streams open.
DRAIN_SECONDS = 0.25


class Collected:
    """Output that is being kept."""

    __slots__ = ("_task", "omitted", "stderr", "stdout")

    def __init__(self, session: ExecSession) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.omitted = 0
        self._task = asyncio.get_running_loop().create_task(self._run(session))
        self._task.add_done_callback(_noticed)

    async def _run(self, session: ExecSession) -> None:
        async for event in session.subscribe_output():
            self.omitted += event.omitted
            if event.kind is OutputKind.STDOUT:
                self.stdout += event.data
            else:
                self.stderr += event.data

    @property
    def done(self) -> bool:
        return self._task.done()

    async def drained(self) -> bool:
        """Wait for the end of the streams as long as output comes; whether they have ended.

        They have not, as far as is known, when somebody has stopped this.
        """
        while not self._task.done():
            before = len(self.stdout) + len(self.stderr)
            await asyncio.wait((self._task,), timeout=DRAIN_SECONDS)
            if not self._task.done() and before == len(self.stdout) + len(self.stderr):
                return False
        if self._task.cancelled():
            return False
        self._task.result()
        return True

    def stop(self) -> None:
        self._task.cancel()


def _noticed(task: asyncio.Task[None]) -> None:
    """Whoever asks for the result is told; nobody may ask."""
    if not task.cancelled():
        task.exception()
