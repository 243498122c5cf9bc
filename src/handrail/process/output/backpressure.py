"""Back-pressure for children with an ``on_lag`` rule: what to do when the reader is slow.

Without one a child waits as long as a client that is there does not read (``child_output.py``).

``block``: a *window*.  Output that the reader has not acknowledged is never dropped; when it
fills the retention, the pipe is left alone and the child waits, whether a client is attached or
not.  Sent is not acknowledged: what was on its way when a line or a server died is lost, and a
reader that comes back must find it here.

``drop``: a *backlog*.  The child never waits.  While the sink is not ready output goes into the
retention alone; when the sink is ready again it is told what is still retained, in order, with
the size of the gap before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.process.output.output_log import RETENTION_BYTES, RETENTION_CHUNKS, OutputLog
from handrail.process.output.spool import STEP

if TYPE_CHECKING:
    from handrail.process.child import Child, Sink

#: A step of a terminal is numbered in several chunks.
_CHUNKS_A_STEP = 32
#: Bytes looked up at a time when a sink catches up.
_PAGE = 4 * STEP


class Window:
    """How much may be read that the reader has not acknowledged."""

    __slots__ = ("_apart", "_log", "acknowledged")

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self.acknowledged = 0  # everything up to this number has arrived
        self._apart: list[tuple[int, int]] = []  # has arrived too, but not what is before it

    @property
    def open(self) -> bool:
        """Whether one more step of output fits without dropping any that may still be asked for."""
        size, events = self._log.since(self.acknowledged)
        return size + STEP <= RETENTION_BYTES and events + _CHUNKS_A_STEP <= RETENTION_CHUNKS

    def acknowledge(self, first: int, last: int) -> bool:
        """Everything from ``first`` to ``last`` has arrived; whether there is room now.

        A reader that comes back is told of what happens from then on before it has asked for
        what it missed: the one does not stand for the other.
        """
        self._apart.append((first, min(last, self._log.next_seq - 1)))
        self._apart.sort()
        left: list[tuple[int, int]] = []
        for begin, end in self._apart:
            if begin <= self.acknowledged + 1:
                self.acknowledged = max(self.acknowledged, end)
            elif left and begin <= left[-1][1] + 1:
                left[-1] = (left[-1][0], max(left[-1][1], end))
            else:
                left.append((begin, end))
        self._apart = left
        return self.open


class Backlog:
    """The events that a sink was not told yet because it was not ready."""

    __slots__ = ("_log", "_reached", "_told", "behind", "gap")

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self._reached = 0  # the last event it was told of
        self._told = 0  # the last chunk
        self.behind = False
        self.gap: tuple[int, int] | None = None

    def keeps_up(self, child: Child, sink: Sink, seq: int) -> bool:
        """Whether a new chunk can be sent now; if not, ``Child.resume`` sends it later."""
        if not self.behind:
            if sink.ready:
                return True
            self.behind = True
            self._reached = self._told = seq - 1
            sink.blocked(child)
        return False

    def catch_up(self, child: Child) -> bool:
        """Send what is left, in order, while the sink is ready; returns whether all is sent."""
        sink, log = child.sink, self._log
        if not self.behind:
            return True
        if sink is None:
            self.behind = False  # the client that attaches next asks for what it missed
            return True
        while self._reached < log.next_seq - 1:
            for chunk in log.read(self._reached, _PAGE).chunks:
                if not self._tell_ends(child, sink, chunk.seq):
                    return False
                lost = log.omitted(self._told)
                self.gap = lost if lost[1] else None
                try:
                    sink.output(child, chunk)
                finally:
                    self.gap = None
                self._reached = self._told = chunk.seq
            if not self._tell_ends(child, sink, log.next_seq):
                return False
        self.behind = False
        return True

    def _tell_ends(self, child: Child, sink: Sink, before: int) -> bool:
        """Send an exit or a close numbered below ``before``; False when it has to wait."""
        log = self._log
        for seq, tell in ((log.exit_seq, sink.exited), (log.closed_seq, sink.closed)):
            if seq is not None and self._reached < seq < before and self._is_next(seq):
                if not sink.ready:
                    break
                tell(child, seq)
                self._reached = seq
        if not sink.ready:
            sink.blocked(child)
            return False
        return True

    def _is_next(self, seq: int) -> bool:
        """Whether no retained chunk comes before it."""
        chunks = self._log.read(self._reached, 0).chunks
        return not chunks or chunks[0].seq > seq
