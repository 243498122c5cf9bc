"""Changes of files as events: ``AsyncFileWatch``, and ``FileWatch`` that blocks."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from handrail.errors import FilesError, HandrailError, UsageError
from handrail.futures import retrieve_exception
from handrail.name_hints import AttributesChecked, NamesChecked

if TYPE_CHECKING:
    from handrail.filesystem.trees.loop_watch import Watch

#: Seconds of one call; what happens in between is told at once.
_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class FileChange(AttributesChecked):
    """One change; ``path`` is relative to what is watched, empty for that itself.

    ``gap``: changes were missed, by a lost connection or because there were too many at once; look
    at the files again.
    """

    kind: Literal["created", "changed", "removed", "gap"]
    path: str = ""


class AsyncFileWatch(NamesChecked):
    """Changes as they come, until what is watched is gone or the watch is closed.

    Made by ``files.watch``.  Everything that happens from then on is told, or a ``gap`` is.
    """

    def __init__(self, watch: Watch, again: Callable[[], Awaitable[Watch]]) -> None:
        self._watch = watch
        self._again = again
        self._changes: deque[FileChange] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def next(self, timeout: float | None = None) -> FileChange | None:
        """The next change; None at the end, and when there is none within ``timeout`` seconds.

        Raises UsageError for a time that is none, FilesError when watching cannot go on, and
        ExecutorTransportFailed when the connection is lost for good.
        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise UsageError(f"timeout is seconds, 0 or more, or None; not {timeout!r}")
        try:
            async with asyncio.timeout(timeout):
                while not self._changes and not self._ended:
                    # A task: what was read is not lost when the caller stops to wait.
                    if self._reading is None or self._reading.done():
                        self._reading = asyncio.create_task(self._read())
                        self._reading.add_done_callback(retrieve_exception)
                    await asyncio.shield(self._reading)
        except TimeoutError:
            return None
        return self._changes.popleft() if self._changes else None

    async def _read(self) -> None:
        try:
            happened = await self._watch.read(_WAIT)
        except FilesError as error:
            if error.kind != "not_found":
                raise
            await self._renew()
            return
        if happened.gap:
            self._changes.append(FileChange("gap"))
        for kind, path in happened.events:
            self._changes.append(FileChange(kind, os.fsdecode(path)))  # type: ignore[arg-type]
        self._ended = happened.ended

    async def _renew(self) -> None:
        """Watch again after the connection was lost, and report the gap."""
        self._changes.append(FileChange("gap"))
        try:
            self._watch = await self._again()
        except FilesError as error:
            if error.kind != "not_found":
                raise
            self._changes.append(FileChange("removed"))
            self._ended = True

    async def close(self) -> None:
        """Stop watching; changes that were not read are dropped.  Never raises."""
        self._ended = True
        self._changes.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(HandrailError):
            await self._watch.close()


class FileWatch(NamesChecked):
    """Blocking version of ``AsyncFileWatch``."""

    def __init__(
        self, twin: AsyncFileWatch, call: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._twin = twin
        self._call = call

    def __iter__(self) -> Iterator[FileChange]:
        while (found := self.next()) is not None:
            yield found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self, timeout: float | None = None) -> FileChange | None:
        """The next change; None at the end, and when there is none within ``timeout`` seconds.

        Raises UsageError for a time that is none, FilesError when watching cannot go on, and
        ExecutorTransportFailed when the connection is lost for good.
        """
        found: FileChange | None = self._call(self._twin.next(timeout))
        return found

    def close(self) -> None:
        """Stop watching; changes that were not read are dropped.  Never raises."""
        self._call(self._twin.close())
