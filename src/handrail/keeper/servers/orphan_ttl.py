"""Without a server the keeper waits ``--orphan-ttl`` for the next one, then ends its children.

The wait begins when a link has ended and no server holds the lease; a server that gets the lease
ends it.  Links that come and go without the lease do not prolong it.  Pure: the clock is an
argument.  ``orphan_kill.py`` is about other orphans: descendants of a child that has ended.
"""

from __future__ import annotations


class OrphanWait:
    """How long children may still be without a server; times in seconds."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        #: When the children end unless a server has come; None while one is there.
        self.until: float | None = None

    def start(self, now: float) -> None:
        """Start to wait for the next server, unless the keeper waits already."""
        if self.until is None:
            self.until = now + self.ttl

    def stop(self) -> None:
        """Note that a server has the lease for good."""
        self.until = None

    def expired(self, now: float) -> bool:
        """Whether no server has come in time."""
        return self.until is not None and now >= self.until
