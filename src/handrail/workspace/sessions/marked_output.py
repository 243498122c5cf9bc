"""Takes the end marks of commands out of a shell session's streams.  Pure.

The script of ``shell_script.py`` writes a mark when a command has ended, with a secret token in it.
"""

from __future__ import annotations

from collections.abc import Callable

from handrail.workspace.sessions.shell_script import EDGE

#: What begins like a mark and goes on longer is output; the script keeps its marks shorter.
_LONGEST_MARK = 17 * 1024


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
