"""One stream of output in the memory of this program: no server comes after it.

A local executor ends its processes when it ends, and copies each chunk at once.  Two system calls
and a memfd for a next server (``spool.py``) would be for nothing.
"""

from __future__ import annotations

import errno
import os
from collections import deque

from handrail import fault_points
from handrail.process.output.output_log import RETENTION_BYTES, RETENTION_CHUNKS
from handrail.process.output.spool import STEP

#: A terminal hands out about 4 KiB at a time; so many are gathered.
_TERMINAL_READS = 16


class MemorySpool:
    """The last bytes of one stream, by the chunks that ``OutputLog`` retains at most."""

    __slots__ = ("_chunks", "_retained", "_starts", "_terminal", "position")

    def __init__(self, *, terminal: bool) -> None:
        self._chunks: dict[int, bytes] = {}  # by their position in the stream
        self._starts: deque[int] = deque()  # of those, the oldest first
        self._retained = 0
        self._terminal = terminal
        #: Bytes of the stream so far.
        self.position = 0

    def fill(self, source: int) -> int:
        """Read one chunk; 0 at the end of the stream, raises BlockingIOError when it is empty."""
        want = STEP
        if fault_points.armed:
            want = fault_points.at_most("spool.fill", want)
            fault_points.point("spool.fill")
        data = self._gather(source, want) if self._terminal else os.read(source, want)
        size = len(data)
        if size:
            self._chunks[self.position] = data
            self._starts.append(self.position)
            self.position += size
            self._retained += size
            while self._retained > RETENTION_BYTES + STEP or len(self._starts) > RETENTION_CHUNKS:
                self._retained -= len(self._chunks.pop(self._starts.popleft()))
        return size

    def _gather(self, terminal: int, want: int) -> bytes:
        parts: list[bytes] = []
        try:
            while len(parts) < _TERMINAL_READS and want > 0:
                data = os.read(terminal, want)
                if not data:
                    break
                parts.append(data)
                want -= len(data)
        except BlockingIOError:
            if not parts:
                raise
        except OSError as error:
            if error.errno != errno.EIO:  # no process has the terminal open any more
                raise
        return b"".join(parts)

    def read(self, start: int, size: int) -> bytes:
        """The bytes of one chunk, as it was read."""
        return self._chunks[start]

    def close(self) -> None:
        """Release the bytes."""
        self._chunks.clear()
        self._starts.clear()
