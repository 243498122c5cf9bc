"""One child of the keeper: what is known of it, and what is held of it."""

from __future__ import annotations

import resource
import socket

#: User ms, system ms, max RSS in bytes; None: not counted, for the keeper before us is gone.
Usage = tuple[int | None, int | None, int | None]


class Entry:
    """One child and what the keeper holds of it."""

    __slots__ = (
        "asked",
        "child",
        "childless",
        "ended",
        "exceeded",
        "far",
        "fds",
        "floor",
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
        self.floor = (0, 0, 0)  # what the tree has used at least, as it was seen before its end
        self.ended = 0  # when, in monotonic milliseconds
        self.asked = False  # all of its tree was asked to end, and is killed if it does not
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
        return (self.killed or self.sandboxed or self.asked) and not self.childless

    def close_line(self) -> None:
        """Close the line of one that waits, which ends it if it was not told its command."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def count(self, used: resource.struct_rusage) -> None:
        """Add the usage of a process of the tree, with that of the children it has waited for."""
        user, system, peak = self.usage
        self.usage = (
            (user or 0) + int(used.ru_utime * 1000),
            (system or 0) + int(used.ru_stime * 1000),
            max(peak or 0, used.ru_maxrss * 1024),
        )

    def note_living(self, user_ms: int, system_ms: int, max_rss: int) -> None:
        """Note what the processes of the tree that live have used; it may be counted later, too."""
        user, system, peak = self.usage
        floor = self.floor
        self.floor = (
            max(floor[0], (user or 0) + user_ms),
            max(floor[1], (system or 0) + system_ms),
            max(floor[2], peak or 0, max_rss),
        )

    def total(self) -> tuple[int, int, int]:
        """The usage of the tree: as it was counted, or as it was seen where that is more."""
        user, system, peak = self.usage
        floor = self.floor
        return max(floor[0], user or 0), max(floor[1], system or 0), max(floor[2], peak or 0)
