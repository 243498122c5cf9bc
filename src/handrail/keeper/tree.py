"""Finding and ending all descendants of a child.

While a leader lives its descendants hang below it; one that was orphaned comes to the keeper,
which is a subreaper, and is recognised by the mark its whole family inherited (``spawn.py``).
A tree that is to be killed is stopped first and looked at again until nothing new appears,
so that a fast forker cannot outrun the walk.  Signals go through pidfds that are checked
after they were opened: never to a number that changed its owner.
"""

from __future__ import annotations

import os
import signal

_ROUNDS = 64


def children_of(pid: int) -> list[int]:
    """Direct children of all threads of ``pid``; empty when it is gone."""
    found: list[int] = []
    base = f"/proc/{pid}/task"
    try:
        for tid in os.listdir(base):
            with open(f"{base}/{tid}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        pass
    return found


def mark_of(pid: int) -> int | None:
    """The inherited mark of a process, or None."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max file locks"):
                    soft = line[14:].split()[0]
                    return int(soft) if soft != b"unlimited" else None
    except (OSError, ValueError):
        pass
    return None


def orphans(mark: int, leaders: set[int]) -> list[int]:
    """Processes of the family ``mark`` that lost their parents and came to us."""
    return [pid for pid in children_of(os.getpid()) if pid not in leaders and mark_of(pid) == mark]


def orphans_by_mark(leaders: set[int]) -> dict[int, int]:
    """How many processes of each family have come to us, with what hangs below them."""
    found: dict[int, int] = {}
    for pid in children_of(os.getpid()):
        if pid in leaders:
            continue
        mark = mark_of(pid)
        if mark is not None:
            todo, count = [pid], 0
            while todo:
                count += 1
                todo.extend(children_of(todo.pop()))
            found[mark] = found.get(mark, 0) + count
    return found


def members(leader: int | None, mark: int, leaders: set[int]) -> dict[int, int]:
    """Everything of one family that can be found now: pid -> the parent it was found under."""
    us = os.getpid()
    todo = [(pid, us) for pid in orphans(mark, leaders)]
    if leader is not None:
        todo.append((leader, us))
    found: dict[int, int] = {}
    while todo:
        pid, parent = todo.pop()
        if pid not in found:
            found[pid] = parent
            todo.extend((child, pid) for child in children_of(pid))
    return found


def send(leader: int | None, mark: int, leaders: set[int], number: int) -> int:
    """Signal a whole family once; says how many were reached."""
    family = members(leader, mark, leaders)
    return sum(_signal_one(pid, parent, number) for pid, parent in family.items())


def kill(leader: int | None, mark: int, leaders: set[int]) -> int:
    """End a whole family; says how many processes were found."""
    stopped: dict[int, int] = {}
    for _ in range(_ROUNDS):
        family = members(leader, mark, leaders)
        new = {pid: parent for pid, parent in family.items() if pid not in stopped}
        stopped.update(new)
        # A lone leader needs no freezing: what it starts meanwhile is in its group, or is
        # found by its mark once the keeper reaps the leader and looks again.
        if not new or family.keys() == {leader}:
            break
        for pid, parent in new.items():
            _signal_one(pid, parent, signal.SIGSTOP)
    if leader is not None:
        try:
            os.killpg(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    for pid, parent in stopped.items():
        _signal_one(pid, parent, signal.SIGKILL)
    return len(stopped)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
    return int(stat[stat.rindex(b")") + 4 :].split(None, 1)[0])


def _signal_one(pid: int, parent: int, number: int) -> int:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        # Still where we saw it, or orphaned to us since: then the number was not reused.
        if _parent_of(pid) not in (parent, os.getpid()):
            return 0
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return 1
