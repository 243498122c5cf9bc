"""Ledger of the syscalls that were taken from a listener and not answered yet.

The kernel hands out each notification once.  If a server died with one, its caller would wait for
ever, so the kernel writes each straight into memory that the keeper holds too, and we erase it when
it is answered: there is no moment at which a killed server could take a call along.

Layout: 16 bytes that older versions use, then slots, each as the kernel writes a notification; a
slot is free while its pid field is 0.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from handrail import memory_file
from handrail.sandbox.syscalls import notify

#: Calls that are handled at the same time; further ones wait.
MOST_CALLS = 32

_HEAD_SIZE = 16
_CALLER = struct.Struct("=I")
_CALLER_AT = 8
_SIZE = _HEAD_SIZE + (MOST_CALLS + 1) * notify.SIZE
_ZEROS = bytes(notify.SIZE)


class PendingCalls:
    """The ledger of one sandbox; owns the fd it is given.  -1: memory of this process alone."""

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd
        if fd >= 0 and os.fstat(fd).st_size < _SIZE:
            os.ftruncate(fd, _SIZE)
        self._memory = mmap.mmap(fd, _SIZE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @classmethod
    def make(cls) -> PendingCalls:
        """Make an empty ledger that can be shared; raises OSError."""
        return cls(memory_file.create("handrail-calls"))

    def take(self, listener: int) -> tuple[int, notify.Notification] | None:
        """Take the next call, after a poll has reported it, into a free slot; None: it has gone.

        `strike` frees the slot.
        """
        slot = next(n for n in range(MOST_CALLS + 1) if not self._caller(n))
        at = _at(slot)
        self._memory[at : at + notify.SIZE] = _ZEROS  # the kernel insists on it
        if not notify.receive(listener, self._address + at):
            return None
        return slot, self._call(slot)

    def strike(self, slot: int) -> None:
        """Free the slot of an answered call."""
        _CALLER.pack_into(self._memory, _at(slot) + _CALLER_AT, 0)

    def left(self) -> list[tuple[int, notify.Notification]]:
        """Slots and calls that were never answered."""
        return [(slot, self._call(slot)) for slot in range(MOST_CALLS + 1) if self._caller(slot)]

    def close(self) -> None:
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)

    def _call(self, slot: int) -> notify.Notification:
        return notify.from_raw(self._memory, _at(slot))

    def _caller(self, slot: int) -> int:
        return int(_CALLER.unpack_from(self._memory, _at(slot) + _CALLER_AT)[0])


def _at(slot: int) -> int:
    return _HEAD_SIZE + slot * notify.SIZE
