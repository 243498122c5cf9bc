"""Who may command the keeper: one server at a time.

Pure.  The first link a keeper is given holds the lease until it ends.  While it is held,
another server is refused and told who holds it: two servers reading one pipe would tear the
output apart.
"""

from __future__ import annotations


class Lease:
    """The right to command, and whose it is."""

    def __init__(self) -> None:
        self.holder: int | None = None  # the link's number
        self.pid = 0

    def ask(self, who: int, pid: int) -> str | None:
        """Try to take it; the reason when that is refused."""
        if self.holder is not None and self.holder != who:
            return f"the keeper is in use by process {self.pid}; stop that server first"
        self.holder = who
        self.pid = pid
        return None

    def release(self, who: int) -> bool:
        """A link has ended; says whether it was the holder's."""
        if self.holder != who:
            return False
        self.holder = None
        self.pid = 0
        return True
