"""How many processes, and how much of their output, a session and a server may have.  Pure.

Every process costs descriptors and memory that the others need too.  The error names the limit
that was reached and what to do.  File handles are limited per connection
(``filesystem/handles.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from handrail.process.table import ProcessTable
from handrail.server_settings import Quota

#: How old a sum over all sessions may be.
_COUNT_SECONDS = 1.0


class Retained:
    """Bytes of output retained for all sessions, added up now and then."""

    def __init__(self, tables: Callable[[], list[ProcessTable]]) -> None:
        self._tables = tables
        self._count = 0
        self._until = 0.0

    def at(self, now: float) -> int:
        """About how many."""
        if now >= self._until:
            self._until = now + _COUNT_SECONDS
            self._count = sum(table.retained for table in self._tables())
        return self._count


def refusal(quota: Quota, table: ProcessTable, running: int, retained: int) -> str | None:
    """Why a session may not start one more process now; None when it may.

    ``running`` and ``retained`` are those of all sessions.
    """
    if table.running >= quota.session_processes:
        return (
            f"this session has {table.running} running processes, as many as it may have;"
            " end some of them first"
        )
    if running >= quota.processes:
        return (
            f"the server has {running} running processes, as many as it may have; end some of"
            " them, or start it with a larger --max-processes"
        )
    if retained > quota.bytes:
        return (
            f"{retained} bytes of output are retained for all sessions, more than the server may"
            " hold; end processes or sessions, or wait until those that have closed are forgotten"
        )
    if table.retained > quota.session_bytes:
        return (
            f"{table.retained} bytes of output are retained for this session, more than it may"
            " have; end processes, or wait until those that have closed are forgotten"
        )
    return None
