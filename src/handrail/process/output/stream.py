"""One output of a child: the descriptor it comes from and the spool it goes to.

One step of output is moved per turn of the loop and stream, so that no flood holds up another
child.  Whether output is wanted now is the child's to say; what has been moved it numbers and
tells.  The keeper has a spool before the first byte is in it.
"""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING

from handrail import fault_points
from handrail.process.output.event_index import EventIndex
from handrail.process.output.spool import INDEX_AT, STEP, Spool, Staging

if TYPE_CHECKING:
    from handrail.process.child import Child

log = logging.getLogger(__name__)

STDOUT, STDERR, PTY = 0, 1, 2
STREAM_NAMES = ("stdout", "stderr", "pty")
#: How long a stream waits when there is no room for its output, and how often before that is said.
_RETRY_SECONDS = 0.1
_SILENT_TRIES = 10


class Stream:
    """Where one output of a child stands."""

    __slots__ = (
        "_child",
        "_tries_for_room",
        "ended",
        "fd",
        "index",
        "numbered",
        "reading",
        "spool",
        "staging",
    )

    def __init__(self, child: Child, index: int, fd: int) -> None:
        self._child = child
        self.index = index
        self.fd = fd
        self.spool: Spool | None = None
        self.staging: Staging | None = None
        self.reading = False
        self.ended = False
        self.numbered = 0  # up to this position of the spool the bytes have a number
        self._tries_for_room = 0  # in a row and in vain

    @property
    def lacks_room(self) -> bool:
        """Whether output waits in the pipe because it cannot be stored."""
        return self._tries_for_room > 0 and not self.ended

    def read(self) -> None:
        """Have the child asked whenever there is something to take."""
        if not self.reading and not self.ended:
            self.reading = True
            self._child._loop.add_reader(self.fd, self._child._readable, self)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._child._loop.remove_reader(self.fd)

    def take(self) -> bool:
        """Move one step of output; False when there is none now, or none any more."""
        child = self._child
        if child.closed:
            return self._throw_away()
        spool = self.spool
        if spool is None:
            if _hung_up(self.fd):
                self.end()
                return False
            try:
                spool = self._open_spool()
            except OSError as error:
                return self._retry(error)
        try:
            self._number(spool)
            if self.staging is None:
                size = spool.fill(self.fd)
                ended = size == 0
                self._number(spool)
            else:
                size, ended = self.staging.fill(self.fd, STEP)
                while self.staging.held:
                    self.staging.drain(spool)
                    self._number(spool)
        except BlockingIOError:
            self._tries_for_room = 0
            return False
        except OSError as error:
            return self._retry(error)
        self._tries_for_room = 0
        if ended:
            self.end()
        return size > 0 and not ended

    def _number(self, spool: Spool) -> None:
        """Number what the spool has taken: the last step, or one that there was no room to record.

        Before the next step is taken, for a chunk never crosses the ring's end.
        """
        size = spool.position - self.numbered
        if size:
            self._child._publish(self.index, self.numbered, size)
            self.numbered += size

    def _throw_away(self) -> bool:
        """Closed with this stream held open: whoever writes to it is not to notice."""
        try:
            size = len(os.read(self.fd, STEP))
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            size = 0
        if size == 0:
            self.end()
        return size > 0

    def _retry(self, error: OSError) -> bool:
        """Out of descriptors, memory or disk: the child waits until there is some."""
        self.stop_reading()
        self._tries_for_room += 1
        if self._tries_for_room == _SILENT_TRIES:
            log.error(
                "process %r: there is no room for its %s (%s); it waits until there is: end other"
                " processes, make room, or start the server with a higher limit",
                self._child.key[:80],
                STREAM_NAMES[self.index],
                error.strerror,
            )
        self._child._loop.call_later(_RETRY_SECONDS, self._try_again)
        return False

    def _try_again(self) -> None:
        """Also when the pipe is empty: what could not be stored was read from it before."""
        if not self.ended:
            self.read()
            self._child._readable(self)

    def _open_spool(self) -> Spool:
        """Make the place where it goes; the keeper has it before the first byte does."""
        if fault_points.armed:
            fault_points.point("spool.open")
        child = self._child
        spool = Spool()
        staging = None
        name = STREAM_NAMES[self.index].encode()
        try:
            if self.index == PTY:
                staging = Staging()
                child._launcher.keep(child.number, b"staging", staging.read_end)
            index = EventIndex(spool.fd, INDEX_AT) if child._index is None else child._index
            child._launcher.keep(child.number, b"spool." + name, spool.fd)
        except OSError:
            spool.close()
            if staging is not None:
                staging.close()
            raise
        self.spool, self.staging, child._index = spool, staging, index
        return spool

    def end(self) -> None:
        """Nothing more comes; what was taken stays readable."""
        self.stop_reading()
        self.ended = True
        pump = self._child._pump
        if self.index == PTY and pump is not None:
            pump.close()
        os.close(self.fd)
        self.fd = -1
        if self.staging is not None:
            self.staging.close()
            self.staging = None

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
