"""Calling a listener of synchronous code: in a thread of its own, in the order of the output.

Not in the loop's thread, where it would hold up everything and could not call back; and not in
the caller's, which may be busy with something else.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Awaitable, Callable

from handrail.errors import UsageError
from handrail.workspace.result import Output


class CallbackThread:
    """A queue that never blocks who fills it, and the thread that empties it.

    To be given as ``on_output`` to the asynchronous side, which says when nothing more comes.
    Raises UsageError for a coroutine function: there is no loop of the caller's to await it on.
    """

    def __init__(self, listener: Callable[[Output], object]) -> None:
        if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            getattr(listener, "__call__", None)  # noqa: B004 (an object may be called and awaited)
        ):
            raise _not_awaited()
        self._listener = listener
        self._queue: queue.SimpleQueue[Output | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="handrail-output", daemon=True)
        self._thread.start()

    def __call__(self, output: Output) -> None:
        """The next piece; what the listener raised is raised here."""
        if self._error is not None:
            raise self._error
        self._queue.put(output)

    def end(self) -> None:
        """No more comes; can be said again."""
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
                said = self._listener(output)
                if isinstance(said, Awaitable):
                    if inspect.iscoroutine(said):
                        said.close()
                    raise _not_awaited()
            except BaseException as error:  # noqa: BLE001 (it is raised where the command was run)
                self._error = error
                return


def _not_awaited() -> UsageError:
    return UsageError(
        "on_output is a coroutine function, which nobody would await here; give a plain function,"
        " or use AsyncWorkspace"
    )
