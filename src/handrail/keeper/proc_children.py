"""Children of a process as ``/proc`` lists them, and what else is seen of a process there."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PART = 65_536
#: A flag of the kernel's per-thread flags in ``stat``.
_PF_EXITING = 4


def children_of(pid: int) -> list[int]:
    """Direct children of all threads of ``pid``; empty when it is gone."""
    return children_of_threads(pid, threads_of(pid))


def threads_of(pid: int) -> list[str]:
    """The threads of ``pid``; empty when it is gone."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children_of_threads(pid: int, threads: list[str]) -> list[int]:
    """Direct children of these threads of ``pid``."""
    found: list[int] = []
    for tid in threads:
        try:
            found.extend(map(int, read(f"/proc/{pid}/task/{tid}/children").split()))
        except OSError:
            pass  # this thread has ended; the others go on
    return found


def read(path: str) -> bytes:
    """The text of a file of ``/proc``; raises OSError.  ``open`` would make twice as many calls."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_open(fd)
    finally:
        os.close(fd)


def read_open(fd: int) -> bytes:
    """The text of such a file that is open, from its beginning; raises OSError."""
    text = part = os.pread(fd, _PART, 0)
    while part:  # to the end: the kernel may give less than what fits
        part = os.pread(fd, _PART, len(text))
        text += part
    return text


def stat_fields(pid: int) -> list[bytes]:
    """State, parent, and what follows them as one; raises OSError when it is gone."""
    stat = read(f"/proc/{pid}/stat")
    return stat[stat.rindex(b")") + 2 :].split(None, 2)


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return stat_fields(pid)[0] in (b"Z", b"X")
    except OSError:
        return True


def orphans_path() -> str:
    """Where the kernel lists the orphans that came to this process."""
    return f"/proc/self/task/{os.getpid()}/children"


def own_orphans(leaders: Iterable[int] = ()) -> list[int]:
    """The orphans that came to this process, oldest first; ``leaders``: children that are none.

    The kernel gives orphans to the main thread, and lists them with the children that it started.
    """
    try:
        return without(read(orphans_path()), leaders)
    except OSError:
        return []


def without(listed: bytes, leaders: Iterable[int]) -> list[int]:
    """The pids of a list that are not among these; mostly there are none, which is quick to see."""
    pids = list(map(int, listed.split()))
    found = set(pids).difference(leaders)
    return [pid for pid in pids if pid in found] if found else []


def descendants_of(pid: int) -> list[int]:
    """Its children, their children, and so on."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


def pid_namespace(pid: int) -> int:
    """The inode of a process's PID namespace; 0: unreadable."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def has_ended(pidfd: int, seconds: float | None) -> bool:
    """Wait at most so long for the end of a process."""
    import select

    looked = select.poll()  # select itself takes none of the fds of a busy server
    looked.register(pidfd, select.POLLIN)
    return bool(looked.poll(None if seconds is None else int(seconds * 1000)))


def is_alone_and_exiting(pid: int) -> bool:
    """Whether each of its threads is exiting or gone, so that it starts no child, and has none."""
    threads = threads_of(pid)
    try:
        for thread in threads:
            text = read(f"/proc/{pid}/task/{thread}/stat")
            if not int(text.rpartition(b")")[2].split(None, 7)[6]) & _PF_EXITING:
                return False
    except OSError:
        pass  # gone
    return not children_of_threads(pid, threads)
