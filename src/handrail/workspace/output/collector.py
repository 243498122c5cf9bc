"""Collects the output of a process, for a result: all of it, or both ends of each stream."""

from __future__ import annotations

import asyncio
from typing import Any

from handrail.executor.base import ExecSession, OutputEvent, OutputKind
from handrail.executor.output.buffer import Follower
from handrail.futures import retrieve_exception
from handrail.secret_masks import Secrets
from handrail.workspace.output.kept_output import KeptOutput

#: How many bytes of each stream a result of ``run`` has, unless its caller says otherwise.
MAX_OUTPUT = 64 * 1024 * 1024
#: How long output may still come after the exit when a descendant holds the streams open.
DRAIN_SECONDS = 0.25
#: The same after so much output that the connection may lag: the last output of the command itself,
#: no more than a pipe holds, then has sequence numbers after its exit.
_BACKLOG_SECONDS = 2.0
#: The bytes a server queues for one client before it stops reading pipes.
_BACKLOG_BYTES = 512 * 1024


class OutputCollector:
    """Collects the output of one process."""

    __slots__ = ("_missed", "_task", "stderr", "stdout")

    def __init__(self, session: ExecSession, most: int | None, secrets: Secrets) -> None:
        """``most``: how many bytes of each stream to keep."""
        self.stdout = KeptOutput(most, secrets)
        self.stderr = KeptOutput(most, secrets)
        self._missed = 0
        #: None: the output had ended before it was asked for.
        self._task: asyncio.Task[None] | None = None
        events = session.subscribe_output(paced=True)
        rest = events.rest(_BACKLOG_BYTES) if isinstance(events, Follower) else None
        if rest is None:
            self._task = asyncio.get_running_loop().create_task(self._run(events))
            self._task.add_done_callback(retrieve_exception)
            return
        events.close()
        for event in rest:
            self._take(event)

    async def _run(self, events: Any) -> None:
        try:
            async for event in events:
                self._take(event)
        finally:
            events.close()

    def _take(self, event: OutputEvent) -> None:
        if event.omitted:
            self._lost(event.omitted)
        stream = self.stdout if event.kind is OutputKind.STDOUT else self.stderr
        stream.add(event.data)

    def _lost(self, size: int) -> None:
        """Bytes are missing, as a rule before the first: the process waits for this reader."""
        self._missed += size
        for stream in (self.stdout, self.stderr):
            stream.begins_cut = stream.begins_cut or not stream.total

    @property
    def omitted(self) -> int:
        """Bytes that are not in the result."""
        return self._missed + self.stdout.omitted + self.stderr.omitted

    @property
    def done(self) -> bool:
        return self._task is None or self._task.done()

    @property
    def _size(self) -> int:
        return self.stdout.total + self.stderr.total

    async def drained(self, more: float = 0.0) -> bool:
        """Wait a little for the streams of an exited process to end; whether they have.

        A quarter of a second and ``more``, even if a descendant goes on writing.  If this is
        cancelled, the streams count as not ended.
        """
        if self._task is None:
            return True
        if not self._task.done():
            await asyncio.sleep(0)  # nearly always the streams have ended with the process
        loop = asyncio.get_running_loop()
        lagged = self._size >= _BACKLOG_BYTES
        last = loop.time() + more + (_BACKLOG_SECONDS if lagged else DRAIN_SECONDS)
        while not self._task.done() and (left := last - loop.time()) > 0:
            before = self._size
            await asyncio.wait((self._task,), timeout=min(left, DRAIN_SECONDS + more))
            if before == self._size:
                break  # no more output arrives
        if not self._task.done() or self._task.cancelled():
            return False
        self._task.result()
        return True

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
