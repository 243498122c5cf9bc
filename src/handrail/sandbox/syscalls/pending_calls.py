"""The calls that were taken from a listener and have not been answered yet.

The kernel gives a call out once.  A server that dies with one in its hands would leave its caller
waiting for ever, so each is written into memory that the keeper holds as well, before anything is
done about it, and struck out when it is answered.

Memory: the number of the last call and how many there were, then slots; a slot is free while the
field of its caller is 0, which is therefore written last.
"""

from __future__ import annotations

import mmap
import os
import struct

from handrail import unnamed_file
from handrail.sandbox.syscalls import notify

#: Calls that are looked after at the same time; the next ones wait for them.
MOST_CALLS = 32

_HEAD = struct.Struct("=QQ")
_CALLER = struct.Struct("=I")
_CALLER_AT = 8
_SIZE = _HEAD.size + (MOST_CALLS + 1) * notify.SIZE


class PendingCalls:
    """One sandbox's; takes the descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        if os.fstat(fd).st_size < _SIZE:
            os.ftruncate(fd, _SIZE)
        self._memory = mmap.mmap(fd, _SIZE)

    @classmethod
    def make(cls) -> PendingCalls:
        """An empty one; raises OSError."""
        return cls(unnamed_file.create("handrail-calls"))

    def enter(self, notice: notify.Notification) -> int:
        """Its slot, to be struck out."""
        slot = next(n for n in range(MOST_CALLS + 1) if not self._caller(n))
        at = _HEAD.size + slot * notify.SIZE
        raw = notice._replace(pid=0).raw()
        self._memory[at : at + notify.SIZE] = raw
        _CALLER.pack_into(self._memory, at + _CALLER_AT, notice.pid)
        _, count = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, notice.number, count + 1)
        return slot

    def strike(self, slot: int) -> None:
        """It has been answered."""
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
        """The call after the last: taken and not entered, if there is one.

        Numbers are given in sequence, and one call is taken at a time.
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
