"""Ledger of the syscalls that were taken from a listener and not answered yet.

The kernel hands out each notification once.  If a server died with one, its caller would wait for
ever, so each is first written into memory that the keeper holds too, and erased when it is
answered.

Layout: id of the last call and count of calls, then slots; a slot is free while its pid field is 0,
so that field is written last.
"""

from __future__ import annotations

import mmap
import os
import struct

from handrail import memory_file
from handrail.sandbox.syscalls import notify

#: Calls that are handled at the same time; further ones wait.
MOST_CALLS = 32

_HEAD = struct.Struct("=QQ")
_CALLER = struct.Struct("=I")
_CALLER_AT = 8
_SIZE = _HEAD.size + (MOST_CALLS + 1) * notify.SIZE


class PendingCalls:
    """The ledger of one sandbox; owns the fd it is given."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        if os.fstat(fd).st_size < _SIZE:
            os.ftruncate(fd, _SIZE)
        self._memory = mmap.mmap(fd, _SIZE)

    @classmethod
    def make(cls) -> PendingCalls:
        """Make an empty ledger; raises OSError."""
        return cls(memory_file.create("handrail-calls"))

    def enter(self, notice: notify.Notification) -> int:
        """Write a call into a free slot and return the slot, for `strike`."""
        slot = next(n for n in range(MOST_CALLS + 1) if not self._caller(n))
        at = _HEAD.size + slot * notify.SIZE
        raw = notice._replace(pid=0).raw()
        self._memory[at : at + notify.SIZE] = raw
        _CALLER.pack_into(self._memory, at + _CALLER_AT, notice.pid)
        _, count = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, notice.number, count + 1)
        return slot

    def strike(self, slot: int) -> None:
        """Free the slot of an answered call."""
        _CALLER.pack_into(self._memory, _HEAD.size + slot * notify.SIZE + _CALLER_AT, 0)

    def left(self) -> list[tuple[int, notify.Notification]]:
        """Slots and calls that were never answered."""
        found = []
        for slot in range(MOST_CALLS + 1):
            if self._caller(slot):
                at = _HEAD.size + slot * notify.SIZE
                found.append((slot, notify.from_raw(self._memory[at : at + notify.SIZE])))
        return found

    def lost(self) -> notify.Notification | None:
        """The call after the last one entered: a server may have died between taking and entering
        it.

        Ids are sequential, and calls are taken one at a time.
        """
        last, count = _HEAD.unpack_from(self._memory)
        if not count:
            return None
        return notify.Notification((last + 1) & 0xFFFFFFFFFFFFFFFF, 0, 0, (0,) * 6)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def _caller(self, slot: int) -> int:
        return int(
            _CALLER.unpack_from(self._memory, _HEAD.size + slot * notify.SIZE + _CALLER_AT)[0]
        )
