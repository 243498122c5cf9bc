"""How many processes, and how much of their output, a session and a server may have.  Pure.

Every process costs descriptors and memory that the others need too.  Who has reached a bound is
told which one, and what to do.
"""

from __future__ import annotations

from handrail.config import Quota
from handrail.process.output_log import RETENTION_BYTES
from handrail.process.table import ProcessTable


def refusal(quota: Quota, table: ProcessTable, running: int) -> str | None:
    """Why a session may not start one more process now; None when it may."""
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
    # Not counted as long as all of it together cannot be too much.
    if len(table) * RETENTION_BYTES > quota.session_bytes:
        retained = sum(child.log.retained for child in table)
        if retained > quota.session_bytes:
            return (
                f"{retained} bytes of output are retained for this session, more than it may"
                " have; end processes, or wait until those that have closed are forgotten"
            )
    return None
