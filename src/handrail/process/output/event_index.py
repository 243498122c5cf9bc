"""The sequence numbers of a process's bytes, in memory that outlives the server.

How it works.  A record of fixed size for each chunk, in a ring by its number, and a head with
what happens once: the exit, the close, that the process was terminated.  Everything is written
*before* a client is told, so a number a client has seen never stands for other bytes.  Bytes that
are in a spool and in no record were told to no client: they are the next chunk.

One system call writes one record, inside one page: a server that is killed leaves it whole or
not at all.  The index lies behind the ring of the first spool of its process (``spool.py``), or
in a memfd of its own when there was something to remember before any output.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from handrail.process.output.output_log import RETENTION_CHUNKS, Event

_HEAD = struct.Struct("<8sQQqQQd")  # magic, flags, exit number, status, wall ms, close number, at
_MAGIC = b"hrindex1"
_RECORDS_AT = 64
_RECORD = struct.Struct("<QQQII")  # number, start, bytes up to and including it, size, stream
#: More than are ever retained, so that no record a reader may need is overwritten.
_RING = 65_536
assert _RING > RETENTION_CHUNKS  # noqa: S101 (of two constants)

TERMINATED = 1
HELD_OPEN = 2  # closed while a descendant still had a stream
EVICTED = 8
#: Stands for an exit status that could not be learned.
LOST = 1 << 40


@dataclass(slots=True)
class Ends:
    """The events that happen once to a process; 0 where they have not."""

    flags: int = 0
    exit_seq: int = 0
    status: int = 0
    wall_ms: int = 0
    closed_seq: int = 0
    closed_at: float = 0.0  # monotonic


class EventIndex:
    """The records of one process."""

    __slots__ = ("_base", "_fd", "_records", "ends")

    def __init__(self, fd: int, base: int, ends: Ends | None = None) -> None:
        self._fd = fd
        self._base = base
        self._records = base + _RECORDS_AT
        self.ends = ends or Ends()
        if ends is None:
            self._write_head()

    @classmethod
    def find(cls, fd: int, base: int) -> EventIndex | None:
        """The index that a previous server left there, if any."""
        data = os.pread(fd, _HEAD.size, base)
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            return None
        return cls(fd, base, Ends(*_HEAD.unpack(data)[1:]))

    @property
    def own_fd(self) -> int | None:
        """The fd of the index's own memfd, when it is not in a spool's."""
        return self._fd if self._base == 0 else None

    def chunk(self, seq: int, stream: int, start: int, size: int, total: int) -> None:
        """Record a chunk; ``total``: bytes of the process up to and including it."""
        record = _RECORD.pack(seq, start, total, size, stream)
        os.pwrite(self._fd, record, self._records + seq % _RING * _RECORD.size)

    def mark(self, flag: int) -> None:
        if not self.ends.flags & flag:
            self.ends.flags |= flag
            self._write_head()

    def exited(self, seq: int, status: int, wall_ms: int) -> None:
        self.ends.exit_seq, self.ends.status, self.ends.wall_ms = seq, status, wall_ms
        self._write_head()

    def closed(self, seq: int, at: float) -> None:
        self.ends.closed_seq, self.ends.closed_at = seq, at
        self._write_head()

    def chunks(self) -> list[Event]:
        """The recorded chunks, in the order of their numbers."""
        size = os.fstat(self._fd).st_size - self._records
        if size <= 0:
            return []
        data = os.pread(self._fd, size - size % _RECORD.size, self._records)
        events = [
            Event(seq, stream, start, size, total)
            for seq, start, total, size, stream in _RECORD.iter_unpack(data)
            if seq
        ]
        events.sort()
        return events

    def close(self) -> None:
        """Close a memfd of its own; a spool's belongs to the spool."""
        if self._base == 0:
            os.close(self._fd)

    def _write_head(self) -> None:
        ends = self.ends
        head = _HEAD.pack(
            _MAGIC,
            ends.flags,
            ends.exit_seq,
            ends.status,
            ends.wall_ms,
            ends.closed_seq,
            ends.closed_at,
        )
        os.pwrite(self._fd, head, self._base)
