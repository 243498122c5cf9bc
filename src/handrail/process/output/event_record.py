"""What happened to a child, recorded for the next server before anybody is told.

The record is its index (``event_index.py``).  Most children have one in their first spool; one
that has not said anything gets a memfd of its own when there is something to record, and the
keeper has it first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from handrail import unnamed_file
from handrail.process.output.event_index import TERMINATED, EventIndex

if TYPE_CHECKING:
    from handrail.process.child import Child


def open_index(child: Child) -> EventIndex | None:
    """Where to note something of a process that may not have said anything yet."""
    if child._index is None and not child.closed:
        fd = -1
        try:
            fd = unnamed_file.create("handrail-events")
            index = EventIndex(fd, 0)
            child._launcher.keep(child.number, b"events", fd)
        except OSError:
            if fd >= 0:
                os.close(fd)
            return None  # no descriptor free: only a server after a crash misses it
        child._index = index
    return child._index


def note_terminated(child: Child) -> None:
    """For the next server: it was asked to end."""
    child.terminated = True
    mark(child, TERMINATED)


def mark(child: Child, flag: int) -> None:
    """For the next server: this happened to it."""
    index = open_index(child)
    if index is not None:
        index.mark(flag)


def close_index(child: Child) -> None:
    """We need it no more; the keeper may."""
    if child._index is not None:
        child._index.close()
        child._index = None
