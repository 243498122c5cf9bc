"""One output of a child: the descriptor it comes from and the spool it goes to.

One step of output is moved per turn of the loop and stream, so that no flood holds up another
child.  ``child_output.py`` says whether output is wanted now, and numbers and tells what has been
moved.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from handrail.process.output.spool import STEP, Spool, Staging

if TYPE_CHECKING:
    from handrail.process.output.child_output import ChildOutput

STDOUT, STDERR, PTY = 0, 1, 2
STREAM_NAMES = ("stdout", "stderr", "pty")
#: How long a stream waits when there is no room for its spool.
_RETRY_SECONDS = 0.1


class Stream:
    """Where one output of a child stands."""

    __slots__ = ("_output", "ended", "fd", "index", "reading", "spool", "staging")

    def __init__(self, output: ChildOutput, index: int, fd: int) -> None:
        self._output = output
        self.index = index
        self.fd = fd
        self.spool: Spool | None = None
        self.staging: Staging | None = None
        self.reading = False
        self.ended = False

    def read(self) -> None:
        """Have ``ChildOutput.readable`` called whenever there is something to take."""
        if not self.reading and not self.ended:
            self.reading = True
            self._output.loop.add_reader(self.fd, self._output.readable, self)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._output.loop.remove_reader(self.fd)

    def take(self) -> bool:
        """Move one step of output; False when there is none now, or none any more."""
        output = self._output
        if output.closed:
            return self._throw_away()
        spool = self.spool
        if spool is None:
            if _hung_up(self.fd):
                self.end()
                return False
            try:
                spool, self.staging = output.open_spool(self.index)
            except OSError:
                return self._retry()
            self.spool = spool
        try:
            if self.staging is None:
                start = spool.position
                size = spool.fill(self.fd)
                ended = size == 0
                if size:
                    output.append(self.index, start, size)
            else:
                size, ended = self.staging.fill(self.fd, STEP)
                while self.staging.held:
                    start = spool.position
                    output.append(self.index, start, self.staging.drain(spool))
        except BlockingIOError:
            return False
        except OSError:
            return self._retry()
        if ended:
            self.end()
        return size > 0 and not ended

    def _throw_away(self) -> bool:
        """Closed with this stream held open: a descendant that writes to it must not block."""
        try:
            size = len(os.read(self.fd, STEP))
        except BlockingIOError:
            return False
        except OSError:  # a terminal that no process has open any more
            size = 0
        if size == 0:
            self.end()
        return size > 0

    def _retry(self) -> bool:
        """Out of descriptors or memory: the child waits until there are some."""
        self.stop_reading()
        self._output.loop.call_later(_RETRY_SECONDS, self.read)
        return False

    def end(self) -> None:
        """Nothing more comes; what was taken stays readable."""
        self.stop_reading()
        self.ended = True
        self._output.stream_ended(self.index)
        os.close(self.fd)
        self.fd = -1
        if self.staging is not None:
            self.staging.close()
            self.staging = None

    def park(self) -> None:
        """Touch nothing any more; another server goes on with it."""
        self.stop_reading()
        if not self.ended:
            self.ended = True
            os.close(self.fd)
            self.fd = -1

    def drop(self) -> None:
        """Let go of what is retained."""
        if self.spool is not None:
            self.spool.close()
            self.spool = None


def _hung_up(fd: int) -> bool:
    """The other end is closed and nothing is left: no spool is needed to learn that."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = poll.poll(0)
    return bool(events) and not events[0][1] & select.POLLIN
