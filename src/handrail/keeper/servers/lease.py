"""The lease: one server at a time may command the keeper.

Pure.  The first link a keeper is given holds the lease until it ends.  While it is held, another
server is refused and told which one holds it: of two servers that read one pipe each would get a
part of its output.  How long children wait for the next holder is in ``orphan_ttl.py``.
"""

from __future__ import annotations


class Lease:
    """The right to command the keeper, and the link that has it."""

    def __init__(self) -> None:
        self.holder: int | None = None  # the link's number
        self.pid = 0

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
