"""Finding and ending all descendants of a child.

While a leader lives its descendants hang below it; one that was orphaned comes to the keeper,
which is a subreaper, and is recognised by the mark its whole family inherited (``spawn.py``).
A tree that is to be killed is stopped first, each before its children are looked for, and all
is looked at again until nothing new appears: a fast forker cannot outrun the walk.  Signals go
through pidfds that are checked after they were opened: never to a number that changed its
owner.
"""

from __future__ import annotations

import os
import signal

#: Looks for one that flees by ending and leaving a child behind, again and again.
_ROUNDS = 256


def children_of(pid: int) -> list[int]:
    """Direct children of all threads of ``pid``; empty when it is gone."""
    found: list[int] = []
    base = f"/proc/{pid}/task"
    try:
        tasks = os.listdir(base)
    except OSError:
        return found
    for tid in tasks:
        try:
            with open(f"{base}/{tid}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            pass  # this thread has ended; the others go on
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


def members(leader: int | None, mark: int, leaders: set[int]) -> set[int]:
    """Everything of one family that can be found now."""
    todo = orphans(mark, leaders)
    if leader is not None:
        todo.append(leader)
    found: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children_of(pid))
    return found


def send(leader: int | None, mark: int, leaders: set[int], number: int) -> int:
    """Signal a whole family once; says how many were reached."""
    family = members(leader, mark, leaders)
    parents = family | {os.getpid()}
    return sum(_signal_one(pid, parents, number) for pid in family)


def kill(leader: int | None, mark: int, leaders: set[int]) -> int:
    """End a whole family; says how many processes were found."""
    us = os.getpid()
    found = members(leader, mark, leaders)
    parents = found | {us}
    for pid in found:
        # The kernel then ends all of the namespace, and nobody in it can flee.
        if _is_first_of_namespace(pid):
            _signal_one(pid, parents, signal.SIGKILL)
    # A lone leader needs no freezing: what it starts meanwhile is in its group, or is found by
    # its mark once the keeper reaps the leader and looks again.
    if leader is None or found != {leader}:
        found |= _freeze(leader, mark, leaders)
        parents = found | {us}
    for pid in found:
        _signal_one(pid, parents, signal.SIGKILL)
    if leader is not None:
        try:
            os.killpg(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    return len(found)


def _is_first_of_namespace(pid: int) -> bool:
    """Whether a PID namespace ends with it.  Sandboxed children live in one."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    numbers = line.split()[1:]
                    return len(numbers) > 1 and numbers[-1] == b"1"
    except OSError:
        pass
    return False


def _freeze(leader: int | None, mark: int, leaders: set[int]) -> set[int]:
    """Stop a whole family, so that it cannot grow any more.

    Each is stopped before it is asked for its children: none can appear after that.
    """
    us = os.getpid()
    found: set[int] = set()
    parents = {us}
    others = set(leaders)

    def stop(todo: list[int]) -> None:
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                _signal_one(pid, parents, signal.SIGSTOP)
                parents.add(pid)
                todo.extend(children_of(pid))

    if leader is not None:
        stop([leader])
    for _ in range(_ROUNDS):
        before = len(found)
        # Newest first: one that starts the next and ends, again and again, is at the end.
        for pid in reversed(children_of(us)):
            if pid in found or pid in others:
                continue
            if mark_of(pid) == mark:
                stop([pid])
            else:
                others.add(pid)
        if len(found) == before:
            # And those that came to a subreaper inside the family after we had asked it.
            stop([child for pid in found for child in children_of(pid)])
            if len(found) == before:
                break
    return found


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
    return int(stat[stat.rindex(b")") + 4 :].split(None, 1)[0])


def _signal_one(pid: int, parents: set[int], number: int) -> int:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        # Still below one of the family, or orphaned to us: then the number was not reused.
        if _parent_of(pid) not in parents:
            return 0
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return 1
