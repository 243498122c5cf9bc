"""``yield_time_ms`` of a tool call: its default, and the least and the most that is taken."""

from __future__ import annotations

MIN_YIELD_MS = 250
MIN_POLL_MS = 5_000
MAX_YIELD_MS = 30_000
DEFAULT_MAX_POLL_MS = 300_000
DEFAULT_EXEC_MS = 10_000
DEFAULT_WRITE_MS = 250


def exec_yield(requested_ms: int) -> int:
    """How long exec_command waits."""
    return min(max(requested_ms, MIN_YIELD_MS), MAX_YIELD_MS)


def write_yield(requested_ms: int) -> int:
    """How long write_stdin waits after it wrote something."""
    return min(max(requested_ms, MIN_YIELD_MS), MAX_YIELD_MS)


def poll_yield(requested_ms: int, max_poll_ms: int = DEFAULT_MAX_POLL_MS) -> int:
    """How long write_stdin waits when it has nothing to write."""
    return min(max(requested_ms, MIN_POLL_MS), max(max_poll_ms, MIN_POLL_MS))
