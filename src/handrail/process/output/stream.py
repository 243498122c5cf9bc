"""One output stream of a child: the fd it is read from and the spool it is moved to.

One step of output is moved per turn of the loop and stream, so that no flood holds up another
child.  ``child_output.py`` says whether output is wanted now, and numbers and tells what has been
moved.
"""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING

from handrail.process.output.memory_spool import MemorySpool
from handrail.process.output.spool import STEP, Spool, Staging

if TYPE_CHECKING:
    import asyncio

    from handrail.process.output.child_output import ChildOutput
    from handrail.process.output.read_scheduler import ReadScheduler

log = logging.getLogger(__name__)

STDOUT, STDERR, PTY = 0, 1, 2
STREAM_NAMES = ("stdout", "stderr", "pty")
#: How long a stream waits when there is no room for its output, and how often before that is said.
_RETRY_SECONDS = 0.1
_SILENT_TRIES = 10


class Stream:
    """The state of one output stream."""

    __slots__ = (
        "_loop",
        "_output",
        "_tries_for_room",
        "_turns",
        "ended",
        "fd",
        "hung_up",
        "index",
        "numbered",
        "queued",
        "reading",
        "spool",
        "staging",
    )

    def __init__(
        self,
        output: ChildOutput,
        index: int,
        fd: int,
        loop: asyncio.AbstractEventLoop,
        turns: ReadScheduler,
    ) -> None:
        self._output = output
        self._loop = loop
        self._turns = turns
        self.index = index
        self.fd = fd
        self.spool: Spool | MemorySpool | None = None
        self.staging: Staging | None = None
        self.reading = False
        self.queued = False  # it waits for its turn (``read_scheduler.py``)
        self.ended = False
        self.hung_up = False  # the other end is closed, and nothing is left
        self.numbered = 0  # up to this position of the spool the bytes have a number
        self._tries_for_room = 0  # in a row and in vain

    @property
    def lacks_room(self) -> bool:
        """Whether output waits in the pipe because it cannot be stored."""
        return self._tries_for_room > 0 and not self.ended

    def read(self) -> None:
        """Have ``ChildOutput.readable`` called whenever there is something to read."""
        if not self.reading and not self.ended:
            self.reading = True
            self._turns.watch(self)

    def readable(self) -> None:
        """Read now or in one of the next turns of the loop."""
        if self._turns.grant(self):
            self._output.readable(self)

    def take_turn(self) -> None:
        """Read after a wait, if that is still wanted."""
        if self.reading:
            self._output.readable(self)

    def stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._turns.unwatch(self)

    def take(self) -> bool:
        """Move one step of output; False when there is none now, or none any more."""
        output = self._output
        if output.log.closed_seq is not None:
            return self._throw_away()
        spool = self.spool
        if spool is None:
            if output.hands_over and (self.hung_up or _hung_up(self.fd)):
                self.end()
                return False
            try:
                spool, self.staging = output.open_spool(self.index)
            except OSError as error:
                return self._retry(error)
            self.spool = spool
        try:
            self._number(spool)
            if self.staging is None or isinstance(spool, MemorySpool):
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

    def _number(self, spool: Spool | MemorySpool) -> None:
        """Number the last step of the spool, or an earlier one that could not be recorded.

        Before the next step is taken, for a chunk never crosses the ring's end.
        """
        size = spool.position - self.numbered
        if size:
            if size == STEP:
                size = STEP  # one number object for all full steps of what runs: many are kept
            self._output.append(self.index, self.numbered, size)
            self.numbered += size

    def _throw_away(self) -> bool:
        """Discard output after the close: a descendant that still writes must not block."""
        try:
            size = len(os.read(self.fd, STEP))
        except BlockingIOError:
            return False
        except OSError:  # a terminal that no process has open any more
            size = 0
        if size == 0:
            self.end()
        return size > 0

    def _retry(self, error: OSError) -> bool:
        """Wait for fds, memory or disk space; the child waits meanwhile."""
        self.stop_reading()
        self._tries_for_room += 1
        if self._tries_for_room == _SILENT_TRIES:
            log.error(
                "process %r: there is no room for its %s (%s); it waits until there is: end other"
                " processes, make room, or start the server with a higher limit",
                self._output.key[:80],
                STREAM_NAMES[self.index],
                error.strerror,
            )
        self._loop.call_later(_RETRY_SECONDS, self._try_again)
        return False

    def _try_again(self) -> None:
        """Read again, even from an empty pipe: bytes that were read may wait to be stored."""
        if not self.ended:
            self.read()
            self._output.readable(self)

    def end(self) -> None:
        """Note the end of the stream; what was read stays readable."""
        self.stop_reading()
        self.ended = True
        self._output.stream_ended(self.index)
        os.close(self.fd)
        self.fd = -1
        if self.staging is not None:
            self.staging.close()
            self.staging = None

    def park(self) -> None:
        """Stop using the stream: another server takes over."""
        self.stop_reading()
        if not self.ended:
            self.ended = True
            os.close(self.fd)
            self.fd = -1

    def drop(self) -> None:
        """Release the retained bytes."""
        if self.spool is not None:
            self.spool.close()
            self.spool = None


def _hung_up(fd: int) -> bool:
    """Whether the other end is closed and nothing is left; needs no spool."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = poll.poll(0)
    return bool(events) and not events[0][1] & select.POLLIN
