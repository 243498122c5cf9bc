"""The lease: one server at a time may command the keeper, and how long children wait for the next.

Pure: the clock is an argument.  The first link a keeper is given holds the lease until it ends.
While it is held, another server is refused and told which one holds it: of two servers that read
one pipe each would get a part of its output.  Without a holder the children are orphans, and
``orphan_ttl`` seconds later the keeper ends them.
"""

from __future__ import annotations


class Lease:
    """The right to command the keeper, and the link that has it."""

    def __init__(self, orphan_ttl: float = 0.0) -> None:
        self.orphan_ttl = orphan_ttl
        self.holder: int | None = None  # the link's number
        self.pid = 0
        #: When the children end unless a server has come; None while one is there.
        self.orphans_end: float | None = None

    def ask(self, who: int, pid: int) -> str | None:
        """Try to take the lease; returns the reason when it is refused."""
        if self.holder is not None and self.holder != who:
            return f"the keeper is in use by process {self.pid}; stop that server first"
        self.holder = who
        self.pid = pid
        return None

    def release(self, who: int) -> bool:
        """Note that a link has ended; returns whether it was the holder's."""
        if self.holder != who:
            return False
        self.holder = None
        self.pid = 0
        return True

    def start_orphan_wait(self, now: float) -> None:
        """Start to wait for the next server, unless the keeper waits already."""
        if self.orphans_end is None:
            self.orphans_end = now + self.orphan_ttl

    def stop_orphan_wait(self) -> None:
        """Note that a server has the lease for good."""
        self.orphans_end = None

    def orphans_expired(self, now: float) -> bool:
        """Whether no server has come within ``orphan_ttl``."""
        return self.orphans_end is not None and now >= self.orphans_end
