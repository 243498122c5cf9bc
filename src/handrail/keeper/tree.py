"""Find and end all descendants of a child; those in a control group go first (``children.py``).

While a leader lives its descendants hang below it; one that was orphaned comes to the keeper,
which is a subreaper, and is recognised by the mark its whole family inherited (``RLIMIT_LOCKS``).
The families of a keeper that was killed have another parent: they are looked for *afar*, by
their mark among all processes of the machine.

A tree that is to be killed is stopped first, each process before its children are listed, and
listed again until nothing new appears; orphans are killed until there are none left
(``orphan_kill.py``).  Signals are sent through pidfds that are checked after they were opened, so
never to a pid that was reused.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Collection, Container, Iterator

from handrail.keeper import orphan_kill
from handrail.keeper.orphan_kill import mark_of
from handrail.keeper.proc_children import (
    children_of,
    is_dead,
    own_orphans,
    read,
    stat_fields,
    threads_of,
)

#: In which /proc counts CPU time, per second.
_TICKS = os.sysconf("SC_CLK_TCK")
#: Looks for processes that appear while the others are being stopped.
_ROUNDS = 64


def orphans_by_mark(leaders: Collection[int]) -> dict[int, int]:
    """How many processes of each tree were orphaned to the keeper, with their descendants."""
    found: dict[int, int] = {}
    for pid in own_orphans(leaders):
        mark = mark_of(pid)
        if mark is not None:
            found[mark] = found.get(mark, 0) + len(_below(pid))
    return found


def orphans_afar(leaders: dict[int, int | None]) -> dict[int, int]:
    """Version of `orphans_by_mark` for trees of other keepers, with the leader."""
    found: dict[int, int] = {}
    below = {pid for leader in leaders.values() if leader is not None for pid in _below(leader)}
    for pid in _everybody():
        mark = None if pid == os.getpid() else mark_of(pid)
        if mark is not None and mark in leaders and pid not in below and not is_dead(pid):
            found[mark] = found.get(mark, 0) + 1
    return found


def send(leader: int | None, mark: int, leaders: Collection[int], number: int) -> int:
    """Signal a whole tree once; returns how many processes were reached."""
    return _send(leader, _Near(mark, leaders), number)


def members(leader: int | None, mark: int, leaders: Collection[int]) -> set[int]:
    """All processes of a tree that can be found now."""
    return _members(leader, _Near(mark, leaders))


def send_inside(leader: int, number: int) -> int:
    """Signal every process in the sandbox whose first process hangs below the leader; neither of
    these two would pass it on.  Says how many were reached; 0 also while it is being set up."""
    family = _below(leader)
    kin = _Near(0, set())
    return sum(_signal_one(pid, family, kin, number) for pid in _inside(family - {leader}))


def used(leader: int, mark: int, leaders: Collection[int]) -> tuple[int, int, int]:
    """The usage so far of the living processes of a tree: user ms, system ms, max RSS."""
    return used_below([leader, *_Near(mark, leaders).roots(set())])


def used_below(todo: list[int]) -> tuple[int, int, int]:
    """The same of these processes and their descendants.

    Each before its children: one that ends meanwhile and is waited for is not counted twice.
    """
    user = system = rss = 0
    found = {os.getpid()}
    while todo:
        pid = todo.pop()
        if pid in found:
            continue
        found.add(pid)
        try:
            used = [int(word) * 1000 // _TICKS for word in stat_fields(pid)[2].split()[9:13]]
            peak = read(f"/proc/{pid}/status").partition(b"\nVmHWM:")[2].split(None, 1)[:1]
        except OSError:
            continue  # ended meanwhile
        user += used[0] + used[2]  # its own, and that of children it has waited for
        system += used[1] + used[3]
        rss = max(rss, int(peak[0]) * 1024 if peak else 0)
        todo.extend(children_of(pid))
    return user, system, rss


def _inside(family: set[int]) -> set[int]:
    """The processes in a PID namespace, without its first one."""
    first = {pid for pid in family if _is_first_of_namespace(pid)}
    return {pid for one in first for pid in _below(one)} - first


def kill(
    leader: int | None,
    mark: int,
    leaders: Collection[int],
    reaped: Callable[[resource.struct_rusage], None] | None = None,
) -> int:
    """Kill a whole tree; returns how many processes were found.

    ``reaped`` is called with what each of them has used whose status was taken here.
    """
    return _kill(leader, _Near(mark, leaders, reaped))


def kill_lone(leader: int, mark: int, leaders: Collection[int]) -> bool:
    """Kill a child that is the whole tree; False: it is not, or may have started another process.

    The kernel completes no fork of a process that was sent SIGKILL.  So the children that are
    listed then, while it has not ended, are all there ever will be: the tree need not be looked
    for again when the child has ended, and the orphans are listed while it does.
    """
    if _below(leader) != {leader}:
        return False
    try:
        os.kill(leader, signal.SIGKILL)
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        return False  # the group is empty, or it has become another user's
    if threads_of(leader) != [str(leader)] or children_of(leader) or is_dead(leader):
        return False
    return mark not in map(mark_of, own_orphans(leaders))


def send_afar(leader: int | None, marks: Container[int], number: int) -> int:
    """Version of `send` for trees that are not below the keeper."""
    return _send(leader, _Far(marks), number)


def kill_afar(leader: int | None, marks: Container[int]) -> int:
    """Version of `kill` for trees that are not below the keeper."""
    return _kill(leader, _Far(marks))


class _Near:
    """A tree of this keeper: the descendants of its leader, and orphans that came to the keeper."""

    def __init__(
        self,
        mark: int,
        leaders: Collection[int],
        reaped: Callable[[resource.struct_rusage], None] | None = None,
    ) -> None:
        self._mark = mark
        self._leaders = leaders
        self._reaped = reaped
        self._others: set[int] = set()
        self._us = os.getpid()

    def roots(self, known: set[int]) -> Iterator[int]:
        """New orphans, newest first: of a chain of forks the last one is alive."""
        for pid in reversed(own_orphans(self._leaders)):
            if pid not in known and pid not in self._others:
                if mark_of(pid) == self._mark:
                    yield pid
                else:
                    self._others.add(pid)

    def end_orphans(self, leader: int | None) -> int:
        """Kill the orphans of this tree; the keeper has not reaped them, so no pid is reused."""
        if not self._mark:
            return 0
        return orphan_kill.end_near(self._mark, self._leaders, self._reaped, leader=leader)

    def owns(self, pid: int, family: set[int]) -> bool:
        """Whether a pid is still of this tree: below one of it, or orphaned to the keeper."""
        parent = _parent_of(pid)
        return parent in family or parent == self._us


class _Far:
    """A tree of a keeper that is gone: all processes with its tag, and their descendants."""

    def __init__(self, marks: Container[int]) -> None:
        self._marks = marks

    def roots(self, known: set[int]) -> Iterator[int]:
        """New processes with the tag; the keeper itself may have that of the last child."""
        for pid in _everybody():
            if pid in known or pid == os.getpid():
                continue
            if self._has_mark(pid) and not is_dead(pid):
                yield pid

    def end_orphans(self, _leader: int | None) -> int:
        """Kill every process with the tag."""
        return orphan_kill.end_afar(self._marks)

    def owns(self, pid: int, family: set[int]) -> bool:
        """Whether a process has the tag, or is below one of the tree."""
        return self._has_mark(pid) or _parent_of(pid) in family

    def _has_mark(self, pid: int) -> bool:
        mark = mark_of(pid)
        return mark is not None and mark in self._marks


def _send(leader: int | None, kin: _Near | _Far, number: int) -> int:
    family = _members(leader, kin)
    return sum(_signal_one(pid, family, kin, number) for pid in family)


def _members(leader: int | None, kin: _Near | _Far) -> set[int]:
    """All processes of one tree that can be found now."""
    found: set[int] = set()
    for pid in kin.roots(found):
        found |= _below(pid)
    if leader is not None:
        found |= _below(leader)
    return found


def _below(pid: int) -> set[int]:
    """A process and all its descendants, without this process and its own.

    A crash guard hangs below the process that started the tree, which may bear the tag as it dies.
    """
    found, todo = set(), [pid]
    while todo:
        one = todo.pop()
        if one not in found and one != os.getpid():
            found.add(one)
            todo.extend(children_of(one))
    return found


def _kill(leader: int | None, kin: _Near | _Far) -> int:
    found = _members(leader, kin)
    # A lone leader needs no freezing: what it starts meanwhile is in its group, or is found by
    # its mark once the keeper reaps the leader and looks again.
    alone = leader is not None and found == {leader} and isinstance(kin, _Near)
    for pid in () if alone else found:
        # The kernel then ends all of the namespace, and no process in it can flee.
        if _is_first_of_namespace(pid):
            _signal_one(pid, found, kin, signal.SIGKILL)
    if leader is not None and not alone:
        found |= _freeze([leader], kin)
    elif isinstance(kin, _Far):
        found |= _freeze(list(found), kin)
    for pid in found:
        _signal_one(pid, found, kin, signal.SIGKILL)
    if leader is not None:
        try:
            os.killpg(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or all of it has become another user's
    if alone:
        return len(found)
    return max(len(found), kin.end_orphans(leader))


def _is_first_of_namespace(pid: int) -> bool:
    """Whether a PID namespace ends with this process.  Sandboxed children are in one."""
    try:
        status = read(f"/proc/{pid}/status")
    except OSError:
        return False  # it has ended meanwhile
    numbers = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return len(numbers) > 1 and numbers[-1] == b"1"


def _freeze(first: list[int], kin: _Near | _Far) -> set[int]:
    """Stop a leader, or all that was found, and what hangs below, so that it cannot grow any more.

    Each is stopped before it is asked for its children: none can appear after that.
    """
    found: set[int] = set()

    def stop(todo: list[int]) -> None:
        while todo:
            pid = todo.pop()
            if pid not in found and pid != os.getpid():
                _signal_one(pid, found, kin, signal.SIGSTOP)
                found.add(pid)
                todo.extend(children_of(pid))

    stop(first)
    for _ in range(_ROUNDS):
        before = len(found)
        # And those that came to a subreaper inside the family after we had asked it.
        stop([child for pid in found for child in children_of(pid)])
        if len(found) == before:
            break
    return found


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_of(pid: int) -> int:
    return int(stat_fields(pid)[1])


def _signal_one(pid: int, family: set[int], kin: _Near | _Far, number: int) -> int:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        if not kin.owns(pid, family):
            return 0
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return 1
