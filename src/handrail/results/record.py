"""Stored output: records of a head of fixed size and the bytes of one stream.  Pure.

``first`` is the sequence number of the chunk.  ``last`` is larger when a secret may lie across
chunks: the records up to that number belong together, because bytes that the mask of one of them
covers came with another.  A reader that continues with live output does so behind ``last``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

#: first, last, bytes as the process wrote them, bytes lost before, time, stored bytes, stream.
_HEAD = struct.Struct("<QQQQdIB3x")
#: More stored bytes than any chunk has: what claims more is no record.
_MOST = 1 << 28


class Record(NamedTuple):
    """One piece of output; secrets in ``data`` are masked."""

    first: int
    last: int
    #: Bytes before the masks.
    size: int
    #: Bytes before it that were not stored.
    omitted: int
    #: When it was stored, in seconds since the epoch.
    at: float
    #: As in ``process.output.stream``: 0 stdout, 1 stderr, 2 terminal.
    stream: int
    data: bytes


def stored_size(data: int) -> int:
    """Bytes of a record on disk; a process may write single bytes, each with a head."""
    return _HEAD.size + data


def encode(record: Record) -> bytes:
    """The stored form."""
    *head, stream, data = record
    return _HEAD.pack(*head, len(data), stream) + data


class Decoder:
    """Reads records from consecutive pieces of a file."""

    __slots__ = ("_rest", "position")

    def __init__(self) -> None:
        self._rest = b""
        #: Where the first record that is not complete begins.
        self.position = 0

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are complete now; raises ValueError for what is no record."""
        data = self._rest + data
        at = 0
        while len(data) - at >= _HEAD.size:
            first, last, size, omitted, when, stored, stream = _HEAD.unpack_from(data, at)
            if stored > _MOST or stream > 2 or last < first:
                raise ValueError(f"no record at byte {self.position}")
            end = at + _HEAD.size + stored
            if end > len(data):
                break
            self.position += end - at
            yield Record(first, last, size, omitted, when, stream, data[at + _HEAD.size : end])
            at = end
        self._rest = data[at:]
