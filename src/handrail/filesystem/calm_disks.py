"""Whether the disks of this machine are calm, so that an event loop may change a file on one.

A change is made in memory and reaches the disk later.  It has to wait for the disk now and then: a
directory is not in memory, the journal is full, too much is waiting to be written.  That cannot be
asked beforehand, so it is taken as likely while programs of this machine wait for disks, by the
kernel's own account, and for a while after a change that took long.  Where the kernel keeps no
such account, no disk counts as calm.  A tmpfs is not asked about: it is in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

#: How much of the last ten seconds programs may have waited for disks, in percent.
MOST_WAITING = 20.0
#: A change that took this long has waited, for the disk or for a processor.
LONG = 0.02
#: Seconds without changes by the loop after one that did.
REST = 10.0
#: Seconds that an answer of the kernel counts.
_COUNTS = 0.2


class CalmDisks:
    """Knows whether an event loop may change something on a disk; of one thread."""

    def __init__(
        self, account: str = "/proc/pressure/io", clock: Callable[[], float] = monotonic
    ) -> None:
        self._account = account
        self._clock = clock
        self._calm = False
        #: Until when the last answer counts.
        self._until = 0.0

    def __bool__(self) -> bool:
        now = self._clock()
        if now >= self._until:
            self._calm = self._waiting() <= MOST_WAITING
            self._until = now + _COUNTS
        return self._calm

    def took(self, seconds: float) -> None:
        """An event loop has changed something; if that took long, no disk is calm for a while."""
        if seconds > LONG:
            self._calm = False
            self._until = self._clock() + REST

    def _waiting(self) -> float:
        try:
            fd = os.open(self._account, os.O_RDONLY | os.O_CLOEXEC)
            try:
                said = os.read(fd, 64)
            finally:
                os.close(fd)
            return float(said[said.index(b"avg10=") + 6 :].split(None, 1)[0])
        except (OSError, ValueError):
            return 100.0


#: Of this process.
calm_disks = CalmDisks()
