"""Keeps an event loop awake for a moment, when an answer comes sooner than it would wake up.

The loop goes on with everything else meanwhile.  A server does the same (`request_queue.py`).
"""

from __future__ import annotations

import asyncio
from time import monotonic

#: A call this soon after the last one is part of a quick exchange; only such calls are polled for.
_QUICK_SECONDS = 0.001
#: Most answers come in half of this.
_NEAR_SECONDS = 0.0003


class BriefPolling:
    """Polls for the answers of a helper process, if calls follow each other quickly."""

    __slots__ = ("_awake", "_last", "_until")

    def __init__(self) -> None:
        self._awake = False
        self._last = 0.0
        self._until = 0.0

    def answer_is_near(self) -> None:
        """Poll for a moment from now on, unless this call is the first for a while."""
        now = monotonic()
        if now - self._last < _QUICK_SECONDS:
            self._until = now + _NEAR_SECONDS
            if not self._awake:
                self._awake = True
                loop = asyncio.get_running_loop()
                loop.call_soon(self._look_again, loop)
        self._last = now

    def answered(self) -> None:
        """Stop polling: the answer is there."""
        self._until = 0.0
        self._last = monotonic()

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._awake = monotonic() < self._until
        if self._awake:
            loop.call_soon(self._look_again, loop)
