"""Which process to end when there are too many.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PROCESSES = 64
WARN_AT = 60
PROTECTED = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A process as pruning sees it; ``busy``: a call is using it."""

    process_id: int
    last_used: float
    exited: bool
    busy: bool = False


def pick(entries: Sequence[Entry], protected: int = PROTECTED) -> int | None:
    """The process to end: the least recently used that exited, else the least recently used.

    The most recently used are safe, and so is one that a call is using.  While such a call is about
    to report an end, and so to free a slot, no running process is taken instead.
    """
    newest_first = sorted(entries, key=lambda entry: entry.last_used, reverse=True)
    safe = {entry.process_id for entry in newest_first[:protected]}
    oldest_first = sorted(
        (entry for entry in entries if entry.process_id not in safe),
        key=lambda entry: entry.last_used,
    )
    for entry in oldest_first:
        if entry.exited and not entry.busy:
            return entry.process_id
    if any(entry.exited for entry in oldest_first):
        return None
    return next((entry.process_id for entry in oldest_first if not entry.busy), None)
