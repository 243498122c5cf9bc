"""Processes whose server and keeper were both killed.

Nobody has their descriptors any more, so they cannot be gone on with; they are ended by the next
server on the same state directory.  They are known by the mark their keeper gave to everything it
started (see ``keeper/spawn.py``), and the mark is in a file as long as that keeper may live.
"""

from __future__ import annotations

import contextlib
import os
import signal

_FILE = "marks"
#: A keeper counts upwards from a random number; this many children are its own.
_SPAN = 1 << 24
#: The daemons of a process may fork while we look.
_ROUNDS = 16


def remember(directory: int, mark: int) -> None:
    """A keeper with this mark is at work here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = os.open(_FILE, flags, 0o600, dir_fd=directory)
    try:
        os.write(file, b"%d\n" % mark)
    finally:
        os.close(file)


def end(directory: int) -> int:
    """Kill what is left of keepers that are gone; how many processes that were."""
    try:
        file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return 0
    try:
        marks = [int(line) for line in os.read(file, 65_536).split() if line.isdigit()]
    finally:
        os.close(file)
    ended = 0
    for _ in range(_ROUNDS):
        found = sum(_kill(int(name), marks) for name in os.listdir("/proc") if name.isdigit())
        ended += found
        if not found:
            break
    forget(directory)
    return ended


def forget(directory: int) -> None:
    """Nothing is left of any keeper here."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_FILE, dir_fd=directory)


def _kill(pid: int, marks: list[int]) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # After the pidfd: so it is this very process that has the mark.
        mark = _mark_of(pid)
        if mark is None or not any(base <= mark < base + _SPAN for base in marks):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _mark_of(pid: int) -> int | None:
    with open(f"/proc/{pid}/limits", "rb") as file:
        for line in file:
            if line.startswith(b"Max file locks"):
                soft = line[14:].split()[0]
                return None if soft == b"unlimited" else int(soft)
    return None
