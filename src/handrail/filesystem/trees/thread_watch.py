"""A watch of a tree for threads: one waits for events while another ends it.

The descriptor is closed by the last of them that uses it: its number may be another file's at
once, which the waiting thread would then read.
"""

from __future__ import annotations

import os
import select
import threading

from handrail.filesystem.trees.tree_watch import Happened, TreeWatch


class ThreadWatch:
    """One watch; it belongs to this from now on."""

    def __init__(self, watch: TreeWatch) -> None:
        self._watch = watch
        #: Held by the thread that uses the watch.
        self._use = threading.Lock()
        self._wake = os.eventfd(0)
        self._ended = False

    def wait(self, seconds: float) -> Happened:
        """What has happened since the last call, or happens within this time; raises FilesError."""
        with self._use:
            happened = Happened([], ended=True)
            if not self._ended:
                poll = select.poll()
                for fd in (self._watch.fileno(), self._wake):
                    if fd >= 0:
                        poll.register(fd, select.POLLIN)
                if self._watch.fileno() >= 0:
                    poll.poll(seconds * 1000)
                happened = self._watch.read()
        self._close_if_ended()
        return happened

    def end(self) -> None:
        """Stop, and wake the thread that waits; called once."""
        os.eventfd_write(self._wake, 1)  # before it may be closed
        self._ended = True
        self._close_if_ended()

    def _close_if_ended(self) -> None:
        """Close it, unless a thread uses it, which does so behind its work."""
        if self._ended and self._use.acquire(blocking=False):
            try:
                self._watch.close()
                wake, self._wake = self._wake, -1
                if wake >= 0:
                    os.close(wake)
            finally:
                self._use.release()
