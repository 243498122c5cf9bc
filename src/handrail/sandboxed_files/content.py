"""Content of files through a sandboxed helper, in pieces, so that no frame is long."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable

from handrail.filesystem.handles import MAX_BLOCK
from handrail.futures import retrieve_exception
from handrail.sandboxed_files.client import Reply
from handrail.sandboxed_files.pool import FileHelper

#: Blocks that are sent before the first of them is answered.
_MOST_SENT = 3
_numbers = itertools.count()


class Content:
    """A file that a helper has open for reading.  Iterate it to the end, or close it."""

    def __init__(self, helper: FileHelper, first: bytes, size: int, number: int) -> None:
        self._helper = helper
        self._first: bytes | None = first
        self._number = number
        self.size = size

    async def next_piece(self) -> bytes:
        """The next piece; empty at the end."""
        first, self._first = self._first, None
        if first is not None:
            return first
        if not self._number:
            return b""
        reply = await self._helper.call("readOn", self._number)
        reply.result()
        if not reply.body:
            self._number = 0
        return reply.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self.next_piece():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Let the helper close the file; harmless when repeated."""
        number, self._number = self._number, 0
        if number:
            self._helper.tell("readEnd", number)


async def read(helper: FileHelper, path: str, *, follow: bool = True) -> Content:
    """Open a regular file; raises FilesError."""
    reply = await helper.call("read", path, follow)
    size, number = reply.result()
    return Content(helper, reply.body, size, number)


async def write(
    helper: FileHelper,
    path: str,
    data: bytes,
    *,
    follow: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make ``data`` the content of a file, all of it or nothing; raises FilesError."""
    if len(data) <= MAX_BLOCK:
        (await helper.call("write", path, follow, body=data)).result()
    else:
        await _write_blocks(helper, path, memoryview(data), follow, progress)
    if progress is not None:
        progress(len(data), len(data))


async def _write_blocks(
    helper: FileHelper,
    path: str,
    view: memoryview,
    follow: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write block after block, renamed into place at the end."""
    handle = ["ours", str(next(_numbers))]
    (await helper.call("open", handle, path, "replace", follow)).result()
    #: Blocks that are on their way, while the helper writes the one before.
    sent: deque[asyncio.Future[Reply]] = deque()
    try:
        for start in range(0, len(view), MAX_BLOCK):
            if len(sent) == _MOST_SENT:
                (await sent[0]).result()
                sent.popleft()
                if progress is not None:
                    progress(start - len(sent) * MAX_BLOCK, len(view))
            block = view[start : start + MAX_BLOCK]
            call = helper.call("writeBlock", handle, start, body=block)
            sent.append(asyncio.ensure_future(call))
        while sent:
            (await sent[0]).result()
            sent.popleft()
        (await helper.call("close", handle)).result()
    except BaseException:
        for unanswered in sent:
            unanswered.cancel()
            unanswered.add_done_callback(retrieve_exception)
        helper.tell("forget", handle)
        raise
