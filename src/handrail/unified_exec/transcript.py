"""Everything a process printed, by offset: in memory while it is little, then on disk, bounded.

The first half of the bound holds the start, the second is a ring with the newest; what was between
is dropped and counted.  The file has no name: no other program can change it, and nothing is left
behind, however this process ends.  A full disk costs the transcript, not the command.
"""

from __future__ import annotations

import os
import tempfile

from handrail.unified_exec.tools import OutputRange

#: Bytes kept in memory before a file is made.
MEMORY = 64 * 1024
#: Gaps are noted one by one up to here; then neighbours become one.
_MOST_GAPS = 256
#: On disk rather than in a /tmp that is memory.
_PREFERRED = "/var/tmp"  # noqa: S108 (a file without a name)


class Transcript:
    """One process's output.  Offsets count every byte it wrote, lost ones included."""

    def __init__(self, limit: int, directory: str | None = None) -> None:
        self._head = max(limit // 2, 1)
        self._ring = max(limit - limit // 2, 1)
        self._memory = bytearray()
        self._file: int | None = None
        self._directory = directory
        self._gaps: list[tuple[int, int]] = []
        self._broken = False
        self.total = 0

    @property
    def size(self) -> int:
        """Bytes it takes on disk, at most."""
        return 0 if self._file is None else min(self.total, self._head + self._ring)

    def append(self, data: bytes) -> None:
        start = self.total
        self.total += len(data)
        if self._file is None and not self._broken:
            if start == len(self._memory) and self.total <= min(MEMORY, self._head):
                self._memory += data
                return
            self._spill()
        if self._file is None:
            self._note_gap(start, self.total)
            return
        try:
            self._store(self._file, start, data)
        except OSError:
            self._break()

    def skip(self, count: int) -> None:
        """Note bytes that were lost on their way here."""
        if count:
            self._note_gap(self.total, self.total + count)
            self.total += count

    def read(self, offset: int, max_bytes: int) -> OutputRange:
        """At most ``max_bytes`` from the first kept byte at or after ``offset``."""
        start = self._first_kept(offset)
        end = min(start + max_bytes, self.total)
        if start < self._head and self.total > self._head + self._ring:
            end = min(end, self._head)
        for gap, _ in self._gaps:
            if gap >= start:
                end = min(end, gap)
        data = self._fetch(start, end) if end > start else b""
        return OutputRange(start, data, self.total, missing=max(start - offset, 0))

    def close(self) -> None:
        """Release the memory and the file."""
        self._break()

    def _first_kept(self, offset: int) -> int:
        start = min(offset, self.total)
        while True:
            before = start
            if self._file is not None and start >= self._head:
                start = max(start, self.total - self._ring)
            for gap, end in self._gaps:
                if gap <= start < end:
                    start = end
            if start == before:
                return start

    def _fetch(self, start: int, end: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[start:end])
        parts = []
        while start < end:
            place, room = self._place(start)
            part = os.pread(self._file, min(end - start, room), place)
            if not part:
                break
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _store(self, file: int, start: int, data: bytes) -> None:
        view = memoryview(data)
        # More than the ring holds would only overwrite itself.
        useless = len(view) - self._ring
        if start >= self._head and useless > 0:
            start, view = start + useless, view[useless:]
        while view:
            place, room = self._place(start)
            done = os.pwrite(file, view[:room], place)
            start, view = start + done, view[done:]

    def _place(self, offset: int) -> tuple[int, int]:
        """The position of a byte in the file, and how many may follow it there."""
        if offset < self._head:
            return offset, self._head - offset
        within = (offset - self._head) % self._ring
        return self._head + within, self._ring - within

    def _spill(self) -> None:
        try:
            self._file = _nameless(self._directory)
            self._store(self._file, 0, bytes(self._memory))
        except OSError:
            self._break()
        else:
            self._memory = bytearray()

    def _break(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._broken = True
        self._memory = bytearray()
        self._gaps = [(0, self.total)]

    def _note_gap(self, start: int, end: int) -> None:
        gaps = self._gaps
        if gaps and gaps[-1][1] == start:
            gaps[-1] = (gaps[-1][0], end)
            return
        gaps.append((start, end))
        if len(gaps) > _MOST_GAPS:
            gaps[:2] = [(gaps[0][0], gaps[1][1])]


def _nameless(directory: str | None) -> int:
    folders = [directory] if directory else [_PREFERRED, tempfile.gettempdir()]
    for folder in folders[:-1]:
        try:
            return _nameless_in(folder)
        except OSError:
            continue
    return _nameless_in(folders[-1])


def _nameless_in(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        descriptor, path = tempfile.mkstemp(prefix=".handrail-", dir=folder)
        os.unlink(path)
        return descriptor
