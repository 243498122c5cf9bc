"""Takes the end marks out of a stream, and keeps what is between them within a limit.  Pure."""

from __future__ import annotations

from collections.abc import Callable

from handrail.workspace.shell_script import EDGE

_SLACK = 64 * 1024


class KeptOutput:
    """The first and the last half of ``limit`` bytes of output; None: all of it."""

    __slots__ = ("_head", "_tail", "limit", "omitted")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.omitted = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        if self.limit is None:
            self._tail += data
            return
        room = self.limit - self.limit // 2 - len(self._head)
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self.limit // 2 + _SLACK:
            self._trim(self.limit // 2)

    def _trim(self, size: int) -> None:
        gone = len(self._tail) - size
        if gone > 0:
            self.omitted += gone
            del self._tail[:gone]

    def take(self) -> bytes:
        """All that is kept; ``omitted`` is final then."""
        if self.limit is not None:
            self._trim(self.limit // 2)
        return b"".join((self._head, self._tail))


class MarkedStream:
    """One stream of a shell session.

    ``expect`` names the tokens of the end marks that are waited for; ``on_mark`` gets the token
    and the text of each one that comes, ``on_output`` everything else.
    """

    __slots__ = ("_begins", "_held", "_on_mark", "_on_output")

    def __init__(
        self, on_output: Callable[[bytes], None], on_mark: Callable[[str, bytes], None]
    ) -> None:
        self._on_output = on_output
        self._on_mark = on_mark
        self._held = b""
        self._begins: dict[bytes, str] = {}

    def expect(self, token: str) -> None:
        """Wait for one more mark."""
        self._begins[EDGE + token.encode() + b":"] = token

    def forget(self) -> None:
        """Expect no mark any more."""
        self._begins.clear()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        data = self._held + data if self._held else data
        self._held = b""
        while data:
            found = [(at, begin) for begin in self._begins if (at := data.find(begin)) >= 0]
            if not found:
                keep = self._beginning(data)
                self._emit(data[:keep])
                self._held = data[keep:]
                return
            at, begin = min(found)
            token = self._begins[begin]
            closing = b":" + token.encode() + EDGE
            over = data.find(closing, at + len(begin))
            self._emit(data[:at])
            if over < 0:
                self._held = data[at:]
                return
            del self._begins[begin]
            self._on_mark(token, data[at + len(begin) : over])
            data = data[over + len(closing) :]

    def flush(self) -> None:
        """The stream has ended: what may have become a mark is output."""
        held, self._held = self._held, b""
        self._emit(held)

    def _emit(self, data: bytes) -> None:
        if data:
            self._on_output(data)

    def _beginning(self, data: bytes) -> int:
        """Where a mark may begin that is not complete yet; the length of the data: nowhere."""
        longest = max(map(len, self._begins), default=0)
        at = data.rfind(EDGE, max(0, len(data) - longest))
        if at >= 0 and any(begin.startswith(data[at:]) for begin in self._begins):
            return at
        return len(data)
