"""One child of the keeper: what is known of it, and what is held of it."""

from __future__ import annotations

import resource
import socket

#: User ms, system ms, max RSS in bytes; None: not counted, for the keeper before us is gone.
Usage = tuple[int | None, int | None, int | None]


class Entry:
    """One child and what the keeper holds of it."""

    __slots__ = (
        "child",
        "childless",
        "ended",
        "exceeded",
        "far",
        "fds",
        "killed",
        "line",
        "mark",
        "note",
        "pid",
        "pidfd",
        "sandboxed",
        "status",
        "usage",
    )

    def __init__(
        self, child: bytes, pid: int, mark: int, fds: dict[bytes, int], note: bytes = b""
    ) -> None:
        self.child = child
        self.pid = pid
        self.pidfd = -1  # by which its exit is seen, while it is our own and runs
        self.mark = mark
        self.fds = fds
        self.status: int | None = None
        self.usage: Usage = (0, 0, 0)
        self.ended = 0  # when, in monotonic milliseconds
        self.killed = False
        self.childless = False  # killed, and it was certain that no other process of its tree lives
        self.exceeded = 0  # which limit the watcher has ended it for, as a bit of its status
        self.far = False  # of a keeper before us, so not below us
        self.sandboxed = False  # the sandbox ends with the leader, which stays outside
        self.note = note
        self.line: socket.socket | None = None  # while it waits for its command

    @property
    def may_leave_orphans(self) -> bool:
        """Whether orphans that are to end with it are looked for once it has ended."""
        return (self.killed or self.sandboxed) and not self.childless

    def close_line(self) -> None:
        """Close the line of one that waits, which ends it if it was not told its command."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def count(self, used: resource.struct_rusage) -> None:
        """Add the usage of a process of the tree, with that of the children it has waited for."""
        self.add(int(used.ru_utime * 1000), int(used.ru_stime * 1000), used.ru_maxrss * 1024)

    def add(self, user_ms: int, system_ms: int, max_rss: int) -> None:
        """Add to the usage of the tree."""
        user, system, rss = self.usage
        self.usage = ((user or 0) + user_ms, (system or 0) + system_ms, max(rss or 0, max_rss))
