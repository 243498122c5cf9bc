"""Keeps both ends of long output, and counts the bytes between.  Pure."""

from __future__ import annotations

from collections import deque
from copy import copy

DEFAULT_CAP = 1_048_576


def omission(count: int) -> str:
    """The line that stands for ``count`` bytes."""
    return f"... {count} bytes omitted ..."


class HeadTail:
    """The first ``cap // 2`` bytes and the newest of the rest, at most ``cap`` together."""

    __slots__ = ("_head", "_head_cap", "_head_done", "_tail", "_tail_cap", "_tail_size", "omitted")

    def __init__(self, cap: int = DEFAULT_CAP) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - cap // 2
        self._head = bytearray()
        self._head_done = self._head_cap == 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        #: Bytes that were dropped, all from one position: between head and tail.
        self.omitted = 0

    @property
    def retained(self) -> int:
        return len(self._head) + self._tail_size

    @property
    def total(self) -> int:
        return self.retained + self.omitted

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        return b"".join(self._tail)

    def append(self, data: bytes) -> None:
        if not self._head_done:
            room = self._head_cap - len(self._head)
            self._head += data[:room]
            self._head_done = len(self._head) == self._head_cap
            data = data[room:]
        if not data:
            return
        if len(data) >= self._tail_cap:
            self.omitted += self._tail_size + len(data) - self._tail_cap
            self._tail.clear()
            self._tail_size = self._tail_cap
            if self._tail_cap:
                self._tail.append(bytes(data[len(data) - self._tail_cap :]))
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size > self._tail_cap:
            over = self._tail_size - self._tail_cap
            oldest = self._tail[0]
            if len(oldest) <= over:
                self._tail.popleft()
                dropped = len(oldest)
            else:
                # A view would keep all of the chunk alive.
                self._tail[0] = oldest[over:]
                dropped = over
            self._tail_size -= dropped
            self.omitted += dropped

    def skip(self, count: int) -> None:
        """Note bytes that were lost before they came here.

        There is only one gap, so the tail falls into it.
        """
        if not count:
            return
        self._head_done = True
        self.omitted += count + self._tail_size
        self._tail.clear()
        self._tail_size = 0

    def extend(self, other: HeadTail) -> None:
        """Append the content of ``other``, as if its bytes had come here in the first place."""
        self.append(bytes(other._head))
        self.skip(other.omitted)
        for part in other._tail:
            self.append(part)

    def take(self) -> HeadTail:
        """Return the content and start again, empty."""
        taken = copy(self)
        self._head, self._head_done = bytearray(), self._head_cap == 0
        self._tail, self._tail_size = deque(), 0
        self.omitted = 0
        return taken

    def content(self) -> bytes:
        """What was kept, the ends joined."""
        return b"".join((self._head, *self._tail))

    def rendered(self) -> bytes:
        """What was kept, with a line that says how much was not."""
        if not self.omitted:
            return self.content()
        marker = f"\n{omission(self.omitted)}\n".encode()
        return bytes(self._head) + marker + b"".join(self._tail)
