"""Kill orphaned descendants of a child faster than they can fork.

Children whose server is gone are ended by the clock of ``servers/orphan_ttl.py``.

A process that forks and exits at once, again and again, lives for less than a tenth of a
millisecond.  It is caught in the time between the look at the list of processes and the signal, so
there must be as little as possible between the two: one read of an open file, one system call for
the mark, one for the signal.  SIGKILL rather than SIGSTOP: the kernel gives up a fork whose caller
has been killed, while one that is being stopped still completes it.  The dead are reaped as we
go, or the list would grow with each of them and the next look take longer.

*Near*, orphans are our own children: their numbers stay theirs until we reap them, so that they
can be signalled without looking twice.  *Afar* they are the first process's, and are held by a
descriptor while their mark is read.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Container, Iterable

from handrail.keeper import RLIMIT_LOCKS
from handrail.keeper.proc_children import is_dead, orphans_path, read_open, without

#: Of all that bears a mark; the longest time that a keeper looks at nothing else.
SECONDS = 0.5
#: Looks without anything new before it is over, and the pause between them.
_QUIET = 3
_PAUSE = 0.0003
#: How long those that were killed may take to end: their children come to us only then, and what a
#: PID namespace has used.  A busy machine takes more than 50 ms to end one.
_END_SECONDS = 0.25


def mark_of(pid: int) -> int | None:
    """The inherited tag of a process, or None."""
    try:
        soft = resource.prlimit(pid, RLIMIT_LOCKS)[0]
    except ProcessLookupError:
        return None
    except OSError:  # another user's, or the call is refused here
        return _mark_in_proc(pid)
    return None if soft == resource.RLIM_INFINITY else soft


def _mark_in_proc(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max file locks"):
                    soft = line[14:].split()[0]
                    return int(soft) if soft != b"unlimited" else None
    except (OSError, ValueError):
        pass  # it has ended meanwhile
    return None


def end_near(
    mark: int,
    leaders: Iterable[int],
    reaped: Callable[[resource.struct_rusage], None] | None,
    *,
    leader: int | None = None,
    looks: int = _QUIET,
) -> int:
    """Kill orphans of this keeper with this tag, and those that come to it when they have ended.

    ``leaders``, and this tree's own: children that are no orphans, whose status is for another to
    take.  ``reaped`` is called with what each has used.  ``looks``: as ``_QUIET``; one is enough
    for a PID namespace, which the kernel ends with its first process.  Says how many were found.
    """
    others = set() if leader is None else {leader}
    killed: set[int] = set()
    groups: set[int] = set()
    found = quiet = 0
    began = time.monotonic()
    try:
        children = os.open(orphans_path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0  # a kernel without it, or no descriptor free
    try:
        while quiet < looks and time.monotonic() - began < SECONDS:
            new = False
            # Newest first: one that starts the next and ends is at the end of the list.
            for pid in reversed(without(read_open(children), leaders)):
                if pid in others:
                    continue
                if pid not in killed:
                    if mark_of(pid) != mark:
                        others.add(pid)
                        continue
                    new = True
                    found += 1
                    killed.add(pid)
                    _kill(pid, groups)
                if _reap(pid, reaped):
                    killed.discard(pid)
            if new:
                quiet = 0
                continue
            if not found:
                break  # the dead of one that flees are in the list too: there is none
            if not killed or time.monotonic() - began > _END_SECONDS:
                quiet += 1
            if killed:
                _await_exit(next(iter(killed)))
            elif quiet < looks:
                time.sleep(_PAUSE)
    finally:
        os.close(children)
    return found


def _await_exit(pid: int) -> None:
    """Wait for a child that was killed, one millisecond at most."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # no descriptor free
        time.sleep(_PAUSE)
        return
    exited = select.poll()
    exited.register(fd, select.POLLIN)
    exited.poll(1)
    os.close(fd)


def end_afar(marks: Container[int]) -> int:
    """Kill every process on the machine with one of these tags; returns how many were found."""
    killed: set[int] = set()
    foreign = {os.getpid()}  # a keeper has the mark of its last child
    found = quiet = 0
    deadline = time.monotonic() + SECONDS
    while quiet < _QUIET and time.monotonic() < deadline:
        new = False
        for name in reversed(os.listdir("/proc")):
            if not name.isdigit():
                continue
            pid = int(name)
            if pid in foreign or not _bears(pid, marks, foreign):
                continue
            if _kill_afar(pid, marks) and pid not in killed:
                killed.add(pid)
                new = True
                found += 1
        if not new:
            quiet += 1
            time.sleep(_PAUSE)
        else:
            quiet = 0
    return found


def _bears(pid: int, marks: Container[int], foreign: set[int]) -> bool:
    try:
        return resource.prlimit(pid, RLIMIT_LOCKS)[0] in marks
    except ProcessLookupError:
        return False
    except OSError:
        mark = _mark_in_proc(pid)
        if mark is not None and mark in marks:
            return True
        foreign.add(pid)  # another user's: not looked at again, for that takes long
        return False


def _kill_afar(pid: int, marks: Container[int]) -> bool:
    """Kill a process if it still has a tag; False when it has none, or is dead already."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        mark = mark_of(pid)
        if mark is None or mark not in marks:
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return not is_dead(pid)


def _kill(pid: int, groups: set[int]) -> None:
    """Kill a child of this process with its whole group, which reaches processes not seen yet."""
    try:
        group = os.getpgid(pid)
        if group not in groups and os.getsid(pid) != os.getsid(0):
            groups.add(group)
            os.killpg(group, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # another user's


def _reap(pid: int, reaped: Callable[[resource.struct_rusage], None] | None) -> bool:
    try:
        ended, _, used = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    if ended and reaped is not None:
        reaped(used)
    return ended == pid
