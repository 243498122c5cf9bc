"""Limits of one child, by the names the link has for them.

``memory`` and ``pids`` count for the whole tree and need a control group (``groups.py``); the
others are the kernel's limits of a process, inherited by what it starts.  They are set from
outside once the child runs: set on the keeper before, some would hit the keeper itself.
"""

from __future__ import annotations

import resource

from handrail.keeper import tree

#: The kernel's limit for each, and what its hard value may exceed the soft one by: a process
#: that ignores SIGXCPU is killed a second later.
RESOURCES = {
    b"cpu": (resource.RLIMIT_CPU, 1),
    b"files": (resource.RLIMIT_NOFILE, 0),
    b"filesize": (resource.RLIMIT_FSIZE, 0),
    b"space": (resource.RLIMIT_AS, 0),
}


def read(words: list[bytes]) -> dict[bytes, int]:
    """``name=value`` as numbers; raises ValueError."""
    found = {}
    for word in words:
        name, _, value = word.partition(b"=")
        found[name] = int(value)
    return found


def apply(pid: int, limits: dict[bytes, int]) -> None:
    """Set them for a child, and for what it may have started already; raises OSError."""
    wanted = [(RESOURCES[name], value) for name, value in limits.items() if name in RESOURCES]
    if not wanted:
        return
    done: set[int] = set()
    # Again until nobody new is there: one that was forked before its parent had them.
    while new := tree.below(pid) - done:
        for one in new:
            for (kind, extra), value in wanted:
                try:
                    _, hard = resource.prlimit(one, kind)
                    most = value + extra
                    if hard != resource.RLIM_INFINITY:
                        most = min(most, hard)
                    resource.prlimit(one, kind, (min(value, most), most))
                except ProcessLookupError:
                    pass
        done |= new
