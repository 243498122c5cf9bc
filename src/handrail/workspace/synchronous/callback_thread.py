"""Calls a listener of synchronous code in a thread of its own, in the order of the output.

Not in the loop's thread, which it would block and could not call back into; and not in the
caller's, which may be busy.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Awaitable, Callable

from handrail.errors import UsageError
from handrail.workspace.arguments import check_callable
from handrail.workspace.result import Output


class CallbackThread:
    """An unbounded queue of output, and the thread that calls the listener.

    Given as ``on_output`` to the asynchronous side, which says when nothing more comes.
    Raises UsageError for what is no function, and for a coroutine function: the caller has no loop
    to await it on.
    """

    def __init__(self, listener: Callable[[Output], object]) -> None:
        check_callable(listener, "on_output")
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
        """Queue the next piece; what the listener raised is raised here."""
        if self._error is not None:
            raise self._error
        self._queue.put(output)

    def end(self) -> None:
        """Say that no more comes; can be repeated."""
        self._queue.put(None)

    def finish(self) -> None:
        """Wait until the listener has had everything; raises what it raised."""
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
        "on_output is a coroutine function, which is not awaited here; give a plain function,"
        " or use AsyncWorkspace"
    )
