"""Waits for any of several conditions of a process, by scanning its output buffer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from handrail.errors import UsageError
from handrail.executor.base import WaitOutcome, WaitReason
from handrail.executor.output.buffer import OutputBuffer


def pattern_source(pattern: str | bytes) -> bytes:
    """A pattern as bytes, so that it can match over the border of two chunks.

    A character outside ASCII is several bytes and is kept together, so that ``ä+`` means what
    it says.  Raises UsageError for one in a class, where it would stand for its bytes.
    """
    if isinstance(pattern, bytes):
        return pattern
    if pattern.isascii():
        return pattern.encode()
    words: list[str] = []
    in_class = escaped = False
    opened = -1
    for at, char in enumerate(pattern):
        if char.isascii():
            words.append(char)
        elif in_class:
            raise UsageError(
                f"the pattern {pattern!r} has {char!r} in a class, which would stand for its"
                " bytes; write the characters as alternatives: (?:a|b)"
            )
        else:
            if escaped:
                words.pop()
            words.append(f"(?:{char})")
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif not in_class and char == "[":
            in_class, opened = True, at + (pattern[at + 1 : at + 2] == "^")
        elif in_class and char == "]" and at > opened + 1:
            in_class = False
    return "".join(words).encode("utf-8", "surrogateescape")


class Looking:
    """A scan of one output buffer, from one position on."""

    def __init__(
        self,
        history: OutputBuffer,
        exited: Callable[[], bool],
        patterns: Sequence[str | bytes],
        *,
        exit: bool,  # noqa: A002 (what is waited for)
        start: int,
    ) -> None:
        """``$`` and ``^`` match at lines; raises UsageError for an invalid pattern."""
        self.history = history
        self.exited = exited
        self.exit = exit
        self.start = start
        self.sources = [pattern_source(pattern) for pattern in patterns]
        self._patterns = []
        for given, source in zip(patterns, self.sources, strict=True):
            try:
                self._patterns.append(re.compile(source, re.MULTILINE))
            except re.error as error:
                raise UsageError(f"the pattern {given!r} does not compile: {error}") from None
        self._looked = -1

    def look(self) -> WaitOutcome | None:
        """Find a pattern in what has arrived, or the exit; raises what made the buffer fail."""
        history = self.history
        if history.total != self._looked:
            self._looked = history.total
            found = self.match()
            if found is not None:
                return found
        if history.failure is not None:
            raise history.failure.with_traceback(None)
        if history.ended or (self.exit and self.exited()):
            return WaitOutcome(WaitReason.EXIT, history.total)
        return None

    def match(self, end: int | None = None) -> WaitOutcome | None:
        """The first pattern, in their order, that matches; as if the output ended at ``end``."""
        position, text = self.history.since(self.start)
        most = len(text) if end is None else max(0, end - position)
        for index, pattern in enumerate(self._patterns):
            found = pattern.search(text, 0, most)
            if found is not None:
                return WaitOutcome(WaitReason.PATTERN, position + found.end(), index, found.group())
        return None


class Patience:
    """How long a wait may last: until a deadline, or until there was no output for a while."""

    def __init__(self, idle: float | None, timeout: float | None) -> None:
        """Both in seconds, from now on; None: no limit."""
        self._began = time.monotonic()
        self._deadline = None if timeout is None else self._began + timeout
        self.idle = idle

    def left(self) -> float | None:
        """Seconds until the deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def quiet(self, history: OutputBuffer) -> float | None:
        """Seconds until the silence was long enough, if no output arrives meanwhile."""
        if self.idle is None:
            return None
        return max(self._began, history.last_output) + self.idle - time.monotonic()

    def over(self, history: OutputBuffer) -> tuple[WaitReason | None, float | None]:
        """Which limit was reached, or how many seconds are left until one may be."""
        ends = []
        if (left := self.left()) is not None:
            ends.append((left, WaitReason.DEADLINE))
        if (quiet := self.quiet(history)) is not None:
            ends.append((quiet, WaitReason.IDLE))
        first = min(ends, key=lambda end: end[0], default=None)
        if first is None:
            return None, None
        return (first[1], None) if first[0] <= 0 else (None, first[0])


async def follow(looking: Looking, patience: Patience) -> WaitOutcome:
    """Implements ``ExecSession.wait_for``: scan the retained output, then all that arrives."""
    history = looking.history
    while True:
        found = looking.look()
        if found is not None:
            return found
        reason, left = patience.over(history)
        if reason is not None:
            return WaitOutcome(reason, history.total)
        await history.changed(left)
