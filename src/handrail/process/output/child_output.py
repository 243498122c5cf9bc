"""The output of a child: its streams, the sequence numbers of their chunks, back-pressure.

Readable pipe -> spool -> number -> sink, one step at a time (``stream.py``).  A sink that does not
keep up says so (``sink.ready`` false): then the pipe is left alone until ``resume``, it fills, and
the child waits.  Without a sink (no client is attached) output goes on into the spool.  A child may
ask for more (``backpressure.py``): to wait for its reader also then, or never to wait.

What happened is recorded for the next server before any client is told.  The record is the index
(``event_index.py``).  Most children have one in their first spool; a child that has not written
anything gets a memfd of its own when there is something to record, and the keeper has it first.
Where no server can come after this program there is no record, and output stays in its memory.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from handrail import fault_points, memory_file, terminal_size
from handrail.process.output.backpressure import Backlog, Window
from handrail.process.output.event_index import HELD_OPEN, LOST, EventIndex
from handrail.process.output.memory_spool import MemorySpool
from handrail.process.output.output_log import Chunk, OutputLog
from handrail.process.output.spool import INDEX_AT, STEP, Spool, Staging
from handrail.process.output.stream import PTY, STDERR, STDOUT, STREAM_NAMES, Stream
from handrail.process.spec import OnLag, ProcessSpec

if TYPE_CHECKING:
    from handrail.process.child import Child, Sink

#: Steps taken from each pipe when the exit is known, so that what was written before it is
#: numbered before it; bounded, for a grandchild may go on writing.
_LAST_STEPS = 18


class ChildOutput:
    """The streams of one child and the log of their chunks."""

    __slots__ = ("_backlog", "_child", "_window", "blocked", "index", "log", "stored", "streams")

    def __init__(self, child: Child, spec: ProcessSpec, fds: tuple[int, ...]) -> None:
        self._child = child
        self.log = OutputLog()
        self.index: EventIndex | None = None  # made when there is something to remember
        self.blocked = False
        #: What is stored of a process that was left; it waits for the disk, too.
        self.stored: Window | None = None
        self._window = Window(self.log) if spec.on_lag is OnLag.BLOCK else None
        self._backlog = Backlog(self.log) if spec.on_lag is OnLag.DROP else None
        kinds = (PTY,) if spec.tty else (STDOUT, STDERR)
        loop, turns = child.loop, child.launcher.turns
        self.streams = tuple(
            [Stream(self, kind, fd, loop, turns) for kind, fd in zip(kinds, fds, strict=False)]
        )

    # --- state ---------------------------------------------------------------------------

    @property
    def key(self) -> str:
        return self._child.key

    @property
    def ended(self) -> bool:
        """Whether no more output comes."""
        for stream in self.streams:  # noqa: SIM110 (few, and asked often)
            if not stream.ended:
                return False
        return True

    @property
    def closed(self) -> bool:
        return self.log.closed_seq is not None

    @property
    def waits(self) -> bool:
        """Whether the child waits for its reader, however long, so that nothing is dropped."""
        return self._window is not None

    @property
    def unread(self) -> bool:
        """The child waits for its reader, and the reader does not have everything yet."""
        return self._window is not None and self._window.acknowledged < self.log.next_seq - 1

    @property
    def gap(self) -> tuple[int, int] | None:
        """Bytes and chunks that were dropped before the chunk that is being published."""
        return None if self._backlog is None else self._backlog.gap

    @property
    def is_behind(self) -> bool:
        """Whether earlier events have to be sent to the sink first."""
        return self._backlog is not None and self._backlog.behind

    @property
    def held_back(self) -> bool:
        """Whether the sink does not want output now, and the child waits for it."""
        sink = self._child.sink
        return sink is not None and not sink.ready and self._backlog is None

    def read_chunk(self, chunk: Chunk) -> bytes:
        """The bytes of a retained chunk."""
        spool = self.streams[chunk.stream if chunk.stream != PTY else 0].spool
        return spool.read(chunk.start, chunk.size) if spool is not None else b""

    def texts(self) -> list[bytes]:
        """The retained output: each stream, and all in the order of arrival."""
        streams: list[list[bytes]] = [[], [], []]
        both: list[bytes] = []
        for chunk in self.log.read(0, None).chunks:
            data = self.read_chunk(chunk)
            streams[chunk.stream].append(data)
            both.append(data)
        return [b"".join(parts) for parts in (*streams, both) if parts]

    # --- while it runs -------------------------------------------------------------------

    def read(self) -> None:
        """Read output whenever there is some."""
        for stream in self.streams:
            stream.read()

    def acknowledge(self, first: int, last: int) -> None:
        """Note that the reader has everything with these sequence numbers."""
        window = self._window
        if window is not None and window.acknowledge(first, last) and self.blocked:
            self.resume()

    def store(self, last: int) -> None:
        """Note that everything up to this number is stored, or will never be."""
        if self.stored is not None and self.stored.acknowledge(1, last) and self.blocked:
            self.resume()

    def resume(self) -> None:
        """Continue to read: the sink wants output again, or there is no sink any more."""
        if self._backlog is not None and self._backlog.catch_up(self._child) and self.closed:
            self._child.output_tag = None
        if self.blocked:
            self.blocked = False
            self.read()

    def readable(self, stream: Stream) -> None:
        """Read from a stream that has output, if the sink wants some."""
        if self.held_back and not self.closed:
            stream.stop_reading()
            if not self.blocked:
                self.blocked = True
                self._sink.blocked(self._child)
            return
        if (self._window is not None or self.stored is not None) and self._is_full:
            stream.stop_reading()
            self.blocked = True  # until the reader, or the disk, has more of it
            return
        stream.take()
        if stream.ended:
            self._child.ending.maybe_closed()

    @property
    def _is_full(self) -> bool:
        """Whether a reader that must not miss anything, or the disk, has to take some first."""
        if self._window is not None and not self._window.open:
            return True
        return self.stored is not None and self._backlog is None and not self.stored.open

    @property
    def _sink(self) -> Sink:
        sink = self._child.sink
        assert sink is not None  # noqa: S101 (asked before)
        return sink

    def append(self, stream: int, start: int, size: int) -> None:
        """Number bytes that are in the spool, record them, and tell the sink.

        Raises OSError, and does none of it, when there is no room for the record.
        """
        child = self._child
        if fault_points.armed:
            fault_points.point("output.taken")
        if self.index is not None:
            total = self.log.bytes_total + size
            self.index.chunk(self.log.next_seq, stream, start, size, total)
        chunk = self.log.append(stream, start, size)
        if fault_points.armed:
            fault_points.point("output.numbered")
        sink = child.sink
        if sink is not None and (
            self._backlog is None or self._backlog.keeps_up(child, sink, chunk.seq)
        ):
            sink.output(child, chunk)
        child.wake()
        most = child.spec.limits.output
        if most is not None and self.log.bytes_total > most:
            child.ending.evict()

    @property
    def hands_over(self) -> bool:
        """Whether another server may take the child over, and needs what was recorded."""
        return self._child.launcher.hands_over

    def open_spool(self, kind: int) -> tuple[Spool | MemorySpool, Staging | None]:
        """Make the spool of a stream; the keeper has it before the first byte is written."""
        if fault_points.armed:
            fault_points.point("spool.open")
        if not self.hands_over:
            return MemorySpool(terminal=kind == PTY), None
        spool = Spool()
        staging = None
        try:
            if kind == PTY:
                staging = Staging()
                self._child.keep(b"staging", staging.read_end)
            index = EventIndex(spool.fd, INDEX_AT) if self.index is None else self.index
            self._child.keep(b"spool." + STREAM_NAMES[kind].encode(), spool.fd)
        except OSError:
            spool.close()
            if staging is not None:
                staging.close()
            raise
        self.index = index
        return spool, staging

    def stream_ended(self, kind: int) -> None:
        """Note that a stream has ended; a terminal takes no input then either."""
        if kind == PTY:
            self._child.stdin.close()

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size (``terminal_size``)."""
        stream = self.streams[0] if self.streams else None
        if stream is not None and not stream.ended:
            terminal_size.resize(stream.fd, rows, cols)

    # --- the record ----------------------------------------------------------------------

    def mark(self, flag: int) -> None:
        """Record an event of the child for the next server."""
        index = self.open_index()
        if index is not None:
            index.mark(flag)

    def open_index(self) -> EventIndex | None:
        """Make the index of a child that may not have written anything yet."""
        if self.index is None and not self.closed and self.hands_over:
            fd = -1
            try:
                fd = memory_file.create("handrail-events")
                index = EventIndex(fd, 0)
                self._child.keep(b"events", fd)
            except OSError:
                if fd >= 0:
                    os.close(fd)
                return None  # no descriptor free: only a server after a crash misses it
            self.index = index
        return self.index

    def close_index(self) -> None:
        """Close this process's copy of the index; the keeper has its own."""
        if self.index is not None:
            self.index.close()
            self.index = None

    # --- the end -------------------------------------------------------------------------

    def take_last(self) -> None:
        """Number what was written before the exit before the exit."""
        if not self.held_back:
            for stream in self.streams:
                for _ in range(_LAST_STEPS):
                    if stream.ended or self._is_full or not stream.take():
                        break

    def take_rest(self) -> bool:
        """Number what is in the pipes when their time is over; False when the sink is not ready,
        and the streams have to be given more time."""
        waits = self.held_back
        for stream in self.streams:
            for _ in range(_LAST_STEPS):
                waits = waits or self._is_full
                # What is in the pipe now was written in time.
                if waits or stream.ended or not stream.take():
                    break
        # What there is no room for is output all the same; no descendant holds its stream open.
        lacks_room = any(stream.lacks_room for stream in self.streams)
        return not waits and not self.blocked and not lacks_room

    def exited(self, status: int, wall_ms: int) -> int:
        """Number and record the exit."""
        seq = self.log.exited()
        # Without an index its number is the first there is, and the close has the second.
        # One that is lost has to be remembered as such.
        if self.index is not None or status == LOST or not self.ended:
            index = self.open_index()
            if index is not None:
                index.exited(seq, status, wall_ms)
        return seq

    def close(self, *, held_open: bool) -> int:
        """Number and record the close."""
        seq = self.log.closed()
        if self.index is not None:
            if held_open:
                self.index.mark(HELD_OPEN)
            self.index.closed(seq, time.monotonic())
        return seq

    def shrink(self) -> None:
        """Keep only what late readers may ask for; there may be very many."""
        if self.index is not None:
            self.close_index()
        streams = self.streams  # a chunk has the place of its stream among them
        while streams and streams[-1].spool is None and streams[-1].ended:
            streams = streams[:-1]
        self.streams = streams
        self.log = self.log.settled()

    def drop(self) -> None:
        """Release the retained bytes and their fds."""
        for stream in self.streams:
            stream.drop()

    def end(self) -> None:
        """Stop reading all streams."""
        for stream in self.streams:
            if not stream.ended:
                stream.end()

    def discard(self) -> None:
        """Release everything."""
        self.end()
        self.drop()
        self.close_index()

    # --- one server after another, one keeper after another --------------------------------

    def park(self) -> None:
        """Stop using the streams: another server takes over."""
        for stream in self.streams:
            stream.park()

    def holdings(self) -> dict[bytes, int]:
        """The fds that a keeper holds of it, by their names there."""
        held = {}
        for stream in self.streams:
            name = STREAM_NAMES[stream.index].encode()
            if not stream.ended:
                held[name] = stream.fd
            if isinstance(stream.spool, Spool):
                held[b"spool." + name] = stream.spool.fd
            if stream.staging is not None:
                held[b"staging"] = stream.staging.read_end
        if self.index is not None and self.index.own_fd is not None:
            held[b"events"] = self.index.own_fd
        return held

    def attach(self, held: dict[bytes, int]) -> None:
        """Take over the spools and the index of a previous server; owns the descriptors."""
        for stream in self.streams:
            stream.ended = stream.fd < 0
            spool = held.pop(b"spool." + STREAM_NAMES[stream.index].encode(), -1)
            if spool >= 0:
                stream.spool = Spool.attach(spool)
            if stream.index == PTY and b"staging" in held:
                stream.staging = Staging.attach(held.pop(b"staging"))
        if b"events" in held:
            self.index = EventIndex.find(held.pop(b"events"), 0)
            return
        for stream in self.streams:
            if isinstance(stream.spool, Spool) and self.index is None:
                self.index = EventIndex.find(stream.spool.fd, INDEX_AT)

    def recall(self) -> dict[int, int]:
        """Restore the numbers from the index; returns how far each stream is numbered."""
        if self.index is None:
            return {}
        ends, events = self.index.ends, self.index.chunks()
        self.log.restore(events, ends.exit_seq or None, ends.closed_seq or None)
        return {event.stream: event.start + event.size for event in events}

    def number_rest(self, numbered: dict[int, int]) -> None:
        """Number the bytes that were read from the pipes and sent to no client."""
        for stream in self.streams:
            spool, staging = stream.spool, stream.staging
            if spool is None:
                continue
            start = numbered.get(stream.index, 0)
            while start < spool.position:
                size = min(STEP, spool.position - start)
                self.append(stream.index, start, size)
                start += size
            while staging is not None and staging.held and isinstance(spool, Spool):
                start = spool.position
                self.append(stream.index, start, staging.drain(spool))
            stream.numbered = spool.position
