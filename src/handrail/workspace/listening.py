"""Calling a listener of synchronous code: in a thread of its own, in the order of the output.

Not in the loop's thread, where it would hold up everything and could not call back; and not in
the caller's, which may be busy with something else.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from handrail.workspace.result import Output


class Listening:
    """A queue that never blocks who fills it, and the thread that empties it."""

    def __init__(self, listener: Callable[[Output], object]) -> None:
        self._listener = listener
        self._queue: queue.SimpleQueue[Output | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="handrail-output", daemon=True)
        self._thread.start()

    def put(self, output: Output) -> None:
        """For ``on_output`` of the asynchronous side; what the listener raised is raised here."""
        if self._error is not None:
            raise self._error
        self._queue.put(output)

    def end(self) -> None:
        """No more comes."""
        self._queue.put(None)

    def finish(self) -> None:
        """Everything was told; raises what the listener raised."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (output := self._queue.get()) is not None:
            try:
                self._listener(output)
            except BaseException as error:  # noqa: BLE001 (it is raised where the command was run)
                self._error = error
                return
