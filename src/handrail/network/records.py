"""Decisions of the porter, in a ring of shared memory that survives porter and server.

The porter writes a decision before the first byte leaves; the server reads it, sends it on and
stores in the ring how far it came, so that the next server goes on there.  The keeper holds the
memfd too.  A record that the ring has lost before a server came is counted, not invented.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, fields
from typing import cast

from handrail import memory_file

SLOTS = 4096
SLOT_SIZE = 2048
#: Magic, how many records were written, how many of them a server has taken.
_HEAD_SIZE = 64
_WRITTEN_AT, _TAKEN_AT = 8, 16
_NUMBER = struct.Struct("<Q")
_SLOT = struct.Struct("<QI")
_MAGIC = b"hrnet\0\0\1"
#: Texts of the command or a client are cut to this, so that a record fits into its slot.
_LONGEST = {"reason": 512, "process": 256, "host": 256, "method": 64, "rule": 300, "comm": 32}
_LONGEST_OUTCOME = 96
#: Fields that differ between the records of a decision, and room for them.
_DIFFERENT = frozenset(("kind", "connection", "time"))
_RESERVED = 768

DECISION, END = "decision", "end"


@dataclass(frozen=True, slots=True)
class Record:
    """One decision, or how an allowed connection ended (``kind`` ``end``).

    No path, query, header field or credential is in it.
    """

    kind: str
    process: str
    connection: int
    #: Seconds since the epoch.
    time: float
    decision: str
    source: str
    reason: str
    protocol: str
    #: ``connect``, ``request`` (plain HTTP) or ``resolve`` (a name, port 0).
    op: str
    host: str
    port: int
    method: str | None = None
    override: bool = False
    rule: str | None = None
    address: str | None = None
    pid: int | None = None
    comm: str | None = None
    # Of an end:
    sent: int = 0
    received: int = 0
    milliseconds: int = 0
    outcome: str | None = None
    #: Seconds that connecting took; None: an open connection was used again.
    dialled: float | None = None


#: Name and default of each field; what has its default is not written.
_FIELDS = tuple((one.name, one.default) for one in fields(Record))
_encode_json = json.JSONEncoder(separators=(",", ":")).encode


class RecordedDecision:
    """A decision as its records have it: what they share is encoded once."""

    __slots__ = ("_shared",)

    def __init__(self, shared: Record) -> None:
        """``shared``: a record of it, whose kind, connection and time do not count."""
        self._shared = _encoded(shared, _RESERVED, _DIFFERENT).removesuffix(b"}")

    def begun(self, connection: int) -> bytes:
        """The record of the decision itself, for one connection."""
        return b'%b,"kind":"decision","connection":%d,"time":%.6f}' % (
            self._shared,
            connection,
            time.time(),
        )

    def ended(
        self,
        connection: int,
        sent: int,
        received: int,
        milliseconds: int,
        outcome: str,
        dialled: float | None,
    ) -> bytes:
        """The record of how it ended."""
        return (
            b'%b,"kind":"end","connection":%d,"time":%.6f,"sent":%d,"received":%d,'
            b'"milliseconds":%d,"outcome":%b,"dialled":%b}'
        ) % (
            self._shared,
            connection,
            time.time(),
            sent,
            received,
            milliseconds,
            _encode_json(outcome[:_LONGEST_OUTCOME]).encode(),
            b"null" if dialled is None else b"%.6f" % dialled,
        )


def from_json(body: bytes) -> Record:
    """A record as it is in the ring; raises ValueError."""
    try:
        return Record(**json.loads(body))
    except TypeError as error:
        raise ValueError(str(error)) from None


class Ring:
    """The records in a memfd; one writer, one reader."""

    def __init__(self, fd: int) -> None:
        """Use an existing ring; the descriptor is then this object's.  Raises ValueError."""
        self.fd = fd
        if os.pread(fd, len(_MAGIC), 0) != _MAGIC:
            raise ValueError("this descriptor holds no ring of network records")
        # The head alone is mapped: a mapped slot would count as memory of each process.
        self._head = mmap.mmap(fd, _HEAD_SIZE)
        self.written = self.count()

    @classmethod
    def create(cls) -> Ring:
        """Make an empty ring."""
        fd = memory_file.create("handrail-network")
        os.ftruncate(fd, _HEAD_SIZE + SLOTS * SLOT_SIZE)
        os.pwrite(fd, _MAGIC, 0)
        return cls(fd)

    def close(self) -> None:
        """Close the descriptor."""
        self._head.close()
        os.close(self.fd)

    def append(self, record: Record) -> int:
        """Write one record; its number, counted from 1."""
        return self.write(_encoded(record))

    def write(self, body: bytes) -> int:
        """Write one record that is encoded; its number."""
        number = self.written + 1
        place = _HEAD_SIZE + (number - 1) % SLOTS * SLOT_SIZE
        os.pwrite(self.fd, _SLOT.pack(number, len(body)) + body, place)
        _NUMBER.pack_into(self._head, _WRITTEN_AT, number)
        self.written = number
        return number

    def count(self) -> int:
        """How many records were ever written, by any porter."""
        return cast("int", _NUMBER.unpack_from(self._head, _WRITTEN_AT)[0])

    @property
    def taken(self) -> int:
        """How many records a server has taken."""
        return cast("int", _NUMBER.unpack_from(self._head, _TAKEN_AT)[0])

    @taken.setter
    def taken(self, number: int) -> None:
        _NUMBER.pack_into(self._head, _TAKEN_AT, number)

    def read(
        self, after: int, most: int = SLOTS, decode: Callable[[bytes], Record] = from_json
    ) -> list[tuple[int, Record]]:
        """Records behind number ``after``, oldest first; the ring may have lost the first ones.

        ``decode`` reads the JSON of one, and raises ValueError.
        """
        found: list[tuple[int, Record]] = []
        last = self.count()
        for number in range(max(after, last - SLOTS) + 1, last + 1):
            try:
                body = self._slot(number)
                if body is not None:
                    found.append((number, decode(body)))
            except ValueError:
                pass  # half of it was overwritten
            if len(found) >= most:
                break
        return found

    def _slot(self, number: int) -> bytes | None:
        raw = os.pread(self.fd, SLOT_SIZE, _HEAD_SIZE + (number - 1) % SLOTS * SLOT_SIZE)
        stored, size = _SLOT.unpack_from(raw)
        if stored != number:
            return None  # overwritten while we read
        return raw[_SLOT.size : _SLOT.size + size]


def _encoded(record: Record, reserved: int = 0, without: Container[str] = ()) -> bytes:
    """A record, without some of its fields, that fits into a slot beside so many other bytes."""
    body = _encode(record, _LONGEST, without)
    if len(body) > SLOT_SIZE - _SLOT.size - reserved:
        body = _encode(record, dict.fromkeys(_LONGEST, 32), without)
    return body


def _encode(record: Record, longest: dict[str, int], without: Container[str]) -> bytes:
    values = {}
    for name, default in _FIELDS:
        value = getattr(record, name)
        if value is not default and value != default and name not in without:
            values[name] = value
    for name, most in longest.items():
        value = values.get(name)
        if value is not None and len(value) > most:
            values[name] = value[:most]
    return _encode_json(values).encode()
