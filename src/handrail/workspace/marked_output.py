"""Takes the end marks out of a stream, and keeps what is between them within a limit.  Pure."""

from __future__ import annotations

from collections.abc import Callable

from handrail.workspace.shell_script import EDGE

_SLACK = 64 * 1024
#: What begins like a mark and goes on longer is output; the script keeps its marks shorter.
_LONGEST_MARK = 17 * 1024


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
        start = after = 0  # of what is not told yet, and of what is not searched yet
        while found := [(at, b) for b in self._begins if (at := data.find(b, after)) >= 0]:
            at, begin = min(found)
            token = self._begins[begin]
            closing = b":" + token.encode() + EDGE
            after = at + len(begin)
            over = data.find(closing, after, at + _LONGEST_MARK)
            if over < 0 and len(data) - at < _LONGEST_MARK:
                self._emit(data[start:at])
                self._held = data[at:]
                return
            if over >= 0:
                self._emit(data[start:at])
                del self._begins[begin]
                self._on_mark(token, data[after:over])
                start = after = over + len(closing)
        keep = self._beginning(data, after)
        self._emit(data[start:keep])
        self._held = data[keep:]

    def flush(self) -> None:
        """The stream has ended: what may have become a mark is output."""
        held, self._held = self._held, b""
        self._emit(held)

    def _emit(self, data: bytes) -> None:
        if data:
            self._on_output(data)

    def _beginning(self, data: bytes, after: int) -> int:
        """Where a mark may begin that is not complete yet; the length of the data: nowhere."""
        longest = max(map(len, self._begins), default=0)
        at = data.rfind(EDGE, max(after, len(data) - longest))
        if at >= 0 and any(begin.startswith(data[at:]) for begin in self._begins):
            return at
        return len(data)
