"""Children of a process, as ``/proc`` lists them."""

from __future__ import annotations

import os


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


def orphans_path() -> str:
    """Where the kernel lists the orphans that came to this process."""
    return f"/proc/self/task/{os.getpid()}/children"


def own_orphans() -> list[int]:
    """The orphans that came to this process, and the children of its main thread.

    The kernel gives orphans to the main thread.  Where children are started by another, as in a
    keeper, this list has none of them and stays short, however many there are.
    """
    try:
        with open(orphans_path(), "rb", 0) as file:
            return [int(pid) for pid in file.readall().split()]
    except OSError:
        return []


def descendants_of(pid: int) -> list[int]:
    """Its children, their children, and so on."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found
