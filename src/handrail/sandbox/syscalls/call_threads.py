"""Threads for calls that may block, started when none is idle.

Starting a thread for each call takes several times as long as a ``connect`` on loopback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

#: How long a thread waits for its next call.
_IDLE_SECONDS = 2.0

Call = Callable[[], None]


class CallThreads:
    """Runs each call in a thread of its own while it lasts."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        #: Threads that wait, without those that a call has been put into the queue for.
        self._idle = 0

    def run(self, call: Call) -> None:
        """Run a call, which must not raise."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._calls.put(call)
                return
        threading.Thread(target=self._work, args=(call,), daemon=True).start()

    def close(self) -> None:
        """End the threads that are idle; others end after a while without calls."""
        with self._lock:
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0

    def _work(self, call: Call | None) -> None:
        while call is not None:
            call()
            with self._lock:
                self._idle += 1
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                call = self._last()

    def _last(self) -> Call | None:
        """A call that was put into the queue when the time was over, or None."""
        with self._lock:
            try:
                return self._calls.get_nowait()
            except Empty:
                self._idle -= 1
                return None
