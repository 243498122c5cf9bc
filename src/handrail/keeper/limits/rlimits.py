"""Limits of one child, by the names the link has for them.

``memory`` and ``pids`` count for the whole tree and need a control group (``cgroups.py``); the
others are the kernel's limits of a process, inherited by what it starts.
"""

from __future__ import annotations

import resource

#: The kernel's limit for each, and by what its hard value exceeds the soft one: a process that
#: ignores SIGXCPU is killed a second later.
RESOURCES = {
    b"cpu": (resource.RLIMIT_CPU, 1),
    b"files": (resource.RLIMIT_NOFILE, 0),
    b"filesize": (resource.RLIMIT_FSIZE, 0),
    b"space": (resource.RLIMIT_AS, 0),
}


def of_process(limits: dict[bytes, int]) -> dict[int, tuple[int, int]]:
    """The limits of a process: soft and hard value by kind, within the keeper's own."""
    found = {}
    for name, value in limits.items():
        if name in RESOURCES:
            kind, extra = RESOURCES[name]
            hard = resource.getrlimit(kind)[1]
            most = value + extra
            if hard != resource.RLIM_INFINITY:
                most = min(most, hard)
            found[kind] = (min(value, most), most)
    return found
