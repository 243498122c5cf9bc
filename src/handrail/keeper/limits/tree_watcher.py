"""Limits of a whole tree where no control group can hold it: looks at /proc, and ends it.

A tree that has taken more than its limit for a moment between two looks is not noticed, and one
that is ended may have taken more than its limit by then; a control group has neither weakness.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from handrail.keeper.proc_children import stat_fields

#: Milliseconds between two looks.
PAUSE = 50
#: Marks a wait status, as ``cgroups.OUT_OF_MEMORY``: the tree had too many processes.
TOO_MANY = 0x40000
#: What can be looked for, by the names in ``rlimits.py``.
NAMES = frozenset((b"memory", b"pids"))

_PAGE = os.sysconf("SC_PAGE_SIZE")
_THREADS, _RESIDENT = 15, 19  # fields of /proc/PID/stat, from the fifth on


class Watcher:
    """The trees that are looked at, by the name of their child."""

    def __init__(
        self,
        members: Callable[[bytes], set[int] | None],
        exceeded: Callable[[bytes, bytes], None],
    ) -> None:
        #: The processes of a child's tree; None: it has ended, and no descendant is left.
        self._members = members
        #: Called with a child and the name of the limit that its tree exceeds.
        self._exceeded = exceeded
        self.limits: dict[bytes, dict[bytes, int]] = {}
        #: When the next look is due, in monotonic milliseconds; None: there is nothing to see.
        self.next: int | None = None

    def add(self, child: bytes, limits: dict[bytes, int]) -> None:
        """Look at this child from now on, if one of the limits is for a whole tree."""
        if limits:
            self.limits[child] = limits
            self.next = self.next or 1  # at once

    def drop(self, child: bytes) -> None:
        """Look at it no more."""
        if self.limits.pop(child, None) is not None and not self.limits:
            self.next = None

    def run(self, now: int) -> None:
        """Look at all of them, if that is due."""
        if self.next is None or now < self.next:
            return
        self.next = now + PAUSE
        for child, limits in list(self.limits.items()):
            found = self._members(child)
            name = None if found is None else _exceeded(found, limits)
            if found is None or name is not None:
                self.drop(child)
            if name is not None:
                self._exceeded(child, name)


def _exceeded(pids: Iterable[int], limits: dict[bytes, int]) -> bytes | None:
    """The name of the limit that these processes exceed together."""
    resident: dict[int, int] = {}
    threads = 0
    for pid in pids:
        try:
            state, _, rest = stat_fields(pid)
        except OSError:
            continue  # ended meanwhile
        if state not in (b"Z", b"X"):
            fields = rest.split()
            threads += int(fields[_THREADS])
            resident[pid] = int(fields[_RESIDENT]) * _PAGE
    if threads > limits.get(b"pids", threads):
        return b"pids"
    most = limits.get(b"memory")
    if most is None or sum(resident.values()) <= most:
        return None
    # What several share was counted for each of them; now exactly, which takes longer.
    exact = sum(min(size, _proportional(pid, size)) for pid, size in resident.items())
    return b"memory" if exact > most else None


def _proportional(pid: int, otherwise: int) -> int:
    """The memory of a process, of what is shared its part."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not for us, or gone
    return otherwise
