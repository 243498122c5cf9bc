"""How long a peer may take for one message.

A peer that sends a large message byte by byte is alive by every other measure and would occupy its
connection, and the memory of what has come, for ever.  So a message has a number of seconds for its
beginning and must then arrive at a minimum average rate; that gives each message a deadline by its
size.  Time in which this side does not read, or the whole process was stopped, does not count.
Only listeners have such a deadline: a client must accept what a slow network brings.
"""

from __future__ import annotations

#: Bytes a second, well below any network on which a session is usable (128 kbit/s).
LOWEST_RATE = 16 * 1024


class MessageDeadline:
    """The clock of the unfinished message; its connection checks it at intervals."""

    __slots__ = ("_began", "_message", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._message: bytearray | None = None
        self._began = 0.0

    def passed(
        self, message: bytearray | None, now: float, *, reading: bool, stood_still: float = 0.0
    ) -> bool:
        """Whether ``message`` should have ended.

        ``message`` is its received part, the same object at each check until it ends; None when
        there is none.
        """
        if message is None or message is not self._message or not reading:
            self._message = message
            self._began = now
            return False
        self._began = min(now, self._began + stood_still)
        return now - self._began > self.seconds + len(message) / LOWEST_RATE

    def __str__(self) -> str:
        return (
            f"a message took longer than {self.seconds:g} s and came at less than"
            f" {LOWEST_RATE // 1024} KiB a second"
        )
