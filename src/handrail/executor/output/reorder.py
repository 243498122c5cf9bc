"""Events of one process in the order of their sequence numbers, however they arrive.  Pure.

Notifications may overtake each other, come twice after a resume, or get lost with a connection.
Events are passed on strictly by number; early ones are queued within bounds; missing ones
are filled in from a ``process/read``.
"""

from __future__ import annotations

from dataclasses import dataclass

from handrail.errors import RemoteProtocolError
from handrail.protocol.process import DenialShape, ExitShape, ReadResult, UsageShape

#: How much may be queued for an earlier number.
MOST_EVENTS = 256
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of one stream; ``omitted`` bytes before them are lost."""

    stream: str
    data: bytes
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Exited:
    """How it ended, as far as the server says."""

    code: int | None
    denied: bool
    exit: ExitShape | None = None
    usage: UsageShape | None = None
    denials: tuple[DenialShape, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event."""


Event = Output | Exited | Closed


class NotRetained(RemoteProtocolError):
    """Events are missing that the server no longer has, and it does not say how many."""


class EventOrder:
    """The last number passed on, and the events queued behind a gap."""

    __slots__ = ("_bytes", "_early", "exited", "last")

    def __init__(self) -> None:
        self.last = 0
        self.exited = False  # passed on
        self._early: dict[int, Event] = {}
        self._bytes = 0

    @property
    def gap(self) -> bool:
        """Whether an event is queued for an earlier number."""
        return bool(self._early)

    @property
    def overflows(self) -> bool:
        """Whether the queue is too long; a read has to fill the gap now."""
        return len(self._early) > MOST_EVENTS or self._bytes > MOST_BYTES

    def offer(self, seq: int, event: Event) -> list[tuple[int, Event]]:
        """Take one event; returns those that can be passed on now, in order."""
        if seq <= self.last or seq in self._early:
            return []
        self._early[seq] = event
        if isinstance(event, Output):
            self._bytes += len(event.data)
        return self._ready() if seq == self.last + 1 else []

    def _ready(self) -> list[tuple[int, Event]]:
        ready = []
        while (event := self._early.pop(self.last + 1, None)) is not None:
            self.last += 1
            if isinstance(event, Output):
                self._bytes -= len(event.data)
            elif isinstance(event, Exited):
                self.exited = True
            ready.append((self.last, event))
        return ready

    def merge(
        self, result: ReadResult, chunks: list[tuple[int, Output]], asked: int, lost: int
    ) -> list[tuple[int, Event]]:
        """Take the result of a read (of everything above ``asked``); returns the new events.

        ``lost`` are the bytes that the server says it has dropped above ``asked``.  Raises
        NotRetained when events are missing without a count.  What is still below
        ``result.next_seq`` afterwards has to be read again.
        """
        top = result.next_seq - 1
        moved = self.last > asked  # by notifications, during the read
        ready: list[tuple[int, Event]] = []
        for seq, output in chunks:
            ready += self.offer(seq, output)
        if result.closed:
            ready += self.offer(top, Closed())
        if self.last >= top:
            return ready
        missing = [n for n in range(self._first(top), top + 1) if n not in self._early]
        early_exit = any(isinstance(event, Exited) for event in self._early.values())
        exit_event = None
        if result.exited and not self.exited and not early_exit:
            exit_event = Exited(
                result.exit_code,
                result.sandbox_denied,
                result.exit or None,
                result.usage or None,
                tuple(result.denials or ()),
            )
            if missing:
                ready += self.offer(missing.pop(0), exit_event)
                exit_event = None
        if missing:
            raise NotRetained(_no_longer(top))
        gone = self._first(top) - self.last - 1  # before the oldest present event
        if gone == 1 and exit_event is not None and not lost:
            return ready + self.offer(self.last + 1, exit_event)
        if gone and moved:
            return ready  # the dropped bytes were counted from another position: read again
        if gone and not lost:
            raise NotRetained(_no_longer(top))
        if gone:
            ready += self._skip(gone, lost, exit_event)
        return ready

    def _first(self, top: int) -> int:
        """The lowest queued number; beyond ``top`` when there is none."""
        return min(self._early, default=top + 1)

    def _skip(self, gone: int, lost: int, exit_event: Exited | None) -> list[tuple[int, Event]]:
        """Skip lost events and report how many bytes they had; the exit may be among them."""
        self.last += gone
        ready: list[tuple[int, Event]] = [(self.last, Output("stdout", b"", lost))]
        if exit_event is not None:
            self.exited = True
            ready.append((self.last, exit_event))
        return ready + self._ready()


def _no_longer(through: int) -> str:
    return f"process events are no longer retained while recovering through sequence {through}"
