"""Calls coroutines from synchronous code.

One background thread with one event loop for the whole process, started at the first call.  Any
number of threads may call, also from a running event loop (a notebook's), because the
loop here is always another one.  After a fork the child starts a loop of its own at its first
call and never touches the old one: parent and child share its descriptors.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from handrail.errors import UsageError

T = TypeVar("T")

#: How long the exit of the program waits for cleaning up.
_STOP_SECONDS = 10.0
#: How long a signal may stay unnoticed at worst.
_LOOK_SECONDS = 0.25


class LoopThread:
    """A thread with an event loop that runs coroutines of other threads."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._begun: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="handrail", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result.

        An interrupt (Ctrl-C) in the calling thread cancels the coroutine, waits until it has
        cleaned up and is then raised.  Raises UsageError when called from the loop's own
        thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError(
                "this call would wait for itself, because it came from handrail's own event"
                " loop; use AsyncWorkspace in coroutines"
            )
        call = _Call(coroutine)
        try:
            self.loop.call_soon_threadsafe(call.begin, self.loop)
            _wait(call.ended)
        except BaseException:
            self.loop.call_soon_threadsafe(call.cancel, self.loop)
            _wait_through_interrupts(call)
            raise
        return call.result()

    def clean_up(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, or, in the loop's own thread, only start it.

        The garbage collector may finalize a reader in any thread.
        """
        if threading.current_thread() is not self._thread:
            self.call(coroutine)
            return
        task = self.loop.create_task(coroutine)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    def stop(self) -> None:
        """End what still runs, then the loop and its thread."""
        if self.loop.is_closed() or not self._thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(_end_tasks(), self.loop)
        try:
            closing.result(_STOP_SECONDS)
        except TimeoutError:
            pass  # what does not end in this time ends with the keeper, which ends with us
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():
            self.loop.close()


class _Call(Generic[T]):
    """One coroutine on the loop; ``ended`` is released, once, when it is over."""

    __slots__ = ("_coroutine", "_error", "_result", "_task", "ended", "over")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        # A bare lock: waiting for it is interrupted by signals, and nothing is cheaper.
        self.ended = threading.Lock()
        self.ended.acquire()
        #: What the lock does not tell a second time: an interrupt may come after it was acquired.
        self.over = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is not None:
            return  # cancelled before it began
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._over)

    async def _run(self) -> None:
        try:
            self._result.append(await self._coroutine)
        except BaseException as error:  # noqa: BLE001 (raised by the caller)
            self._error = error
        self._end()  # now, and not in the next turn of the loop

    def _over(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it had begun
            self._coroutine.close()
            self._error = asyncio.CancelledError()
            self._end()

    def _end(self) -> None:
        self.over = True
        self.ended.release()

    def cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        self.begin(loop)
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        error, self._error = self._error, None  # or its traceback would keep its locals alive
        if error is None:
            return self._result.pop()
        if isinstance(error, asyncio.CancelledError):
            raise UsageError(
                "the call was cut short, because handrail's event loop was stopped"
            ) from None
        try:
            raise error
        finally:
            del error


def _wait(lock: threading.Lock) -> None:
    """Wait, and look for signals now and then: one that comes just before the wait begins does not
    interrupt it."""
    while not lock.acquire(timeout=_LOOK_SECONDS):
        pass


def _wait_through_interrupts(call: _Call[Any]) -> None:
    while not call.over:
        try:
            call.ended.acquire(timeout=_LOOK_SECONDS)
        except KeyboardInterrupt:
            continue  # it is being cancelled: returning now would leave something behind


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock = threading.Lock()
_bridge: LoopThread | None = None
#: Loop threads of parent processes.  Kept, because closing a loop would change the epoll set that
#: the parent still uses.
_inherited: list[LoopThread] = []


def bridge() -> LoopThread:
    """The loop thread of this process."""
    global _bridge
    found = _bridge
    if found is None:
        with _lock:
            if _bridge is None:
                _bridge = LoopThread()
            found = _bridge
    return found


def call(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop; see ``LoopThread.call``."""
    return bridge().call(coroutine)


def stop() -> None:
    """End the background loop, if there is one; the next call starts another."""
    global _bridge
    with _lock:
        found, _bridge = _bridge, None
    if found is not None:
        found.stop()


def _forked() -> None:
    global _bridge, _lock
    _lock = threading.Lock()
    if _bridge is not None:
        _inherited.append(_bridge)
        _bridge = None


os.register_at_fork(after_in_child=_forked)
atexit.register(stop)
