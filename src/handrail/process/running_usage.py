"""What a running process and its descendants have cost so far, by /proc.

The usage of one that has ended is counted by ``keeper/child_record.py``, told by ``child_end.py``.
"""

from __future__ import annotations

import os

from handrail.keeper.proc_children import children_of, stat_fields
from handrail.process.exit_status import Usage

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat, from the fifth on: of itself, and of the children it has waited for.
_USER, _SYSTEM, _RESIDENT = (9, 11), (10, 12), 19


def usage_now(leader: int, wall_ms: int) -> Usage:
    """Look it up; takes some tens of microseconds for each process of the tree.

    The memory is what they have now, together.
    """
    user = system = resident = 0
    found, todo = False, [leader]
    while todo:
        pid = todo.pop()
        try:
            fields = stat_fields(pid)[2].split()
        except OSError:
            continue  # ended meanwhile
        found = True
        user += sum(int(fields[at]) for at in _USER)
        system += sum(int(fields[at]) for at in _SYSTEM)
        resident += int(fields[_RESIDENT]) * _PAGE
        todo += children_of(pid)
    if not found:
        return Usage(wall_ms, None, None, None)
    return Usage(wall_ms, int(user * _TICK_MS), int(system * _TICK_MS), resident)
