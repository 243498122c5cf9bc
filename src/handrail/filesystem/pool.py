"""The threads that file work runs in, with a deadline for each call.

A file call can hang for minutes (a dead NFS server, a FUSE daemon that stopped) and cannot be
interrupted.  So a caller waits until its deadline and no longer; the thread is left behind and
another replaces it.  A call that finds all threads busy waits ``PATIENCE`` and then gets a thread
of its own, so a few hung calls do not delay the others until *their* deadline.  Threads are
bounded: ``workers`` plus ``spare``.  When every one of them is hung, calls fail at once with a
sentence that says so.  Threads that return and find themselves replaced end.

Threads start with the first call and are daemons: a hung one never keeps the program alive.
Not ``ThreadPoolExecutor``: that joins its threads at exit and never replaces one.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, TypeVar

from handrail.errors import FilesError

T = TypeVar("T")

#: Seconds for one call; a file system that hangs longer is given up on.
DEADLINE = 60.0
#: Seconds that a call waits behind busy threads before it gets one of its own.
PATIENCE = 0.05
#: Calls that may wait for a thread; a last resort, for requests are bounded elsewhere.
WAITING_LIMIT = 4096


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    DONE = auto()
    ABANDONED = auto()


class _Job:
    """One call, from ``run`` to its outcome."""

    __slots__ = ("call", "discard", "future", "state")

    def __init__(
        self,
        call: Callable[[], Any],
        discard: Callable[[Any], None] | None,
        future: asyncio.Future[Any],
    ) -> None:
        self.call = call
        self.discard = discard
        self.future = future
        self.state = _State.WAITING


class FilePool:
    """Runs blocking file calls beside the event loop.  One loop at a time may use it."""

    def __init__(self, workers: int = 4, *, spare: int = 28, patience: float = PATIENCE) -> None:
        self._workers = workers
        self._most = workers + spare
        self._patience = patience
        self._waiting: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._threads = 0
        self._idle = 0
        #: Threads in a call whose caller has stopped waiting.
        self._hung = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """How many threads there are, hung ones included."""
        return self._threads

    @property
    def hung(self) -> int:
        """How many of them are in a call that was given up."""
        return self._hung

    async def run(
        self,
        fn: Callable[..., T],
        *args: Any,
        deadline: float,
        discard: Callable[[T], None] | None = None,
        **options: Any,
    ) -> T:
        """Run ``fn(*args, **options)`` in a thread; return its result or raise its exception.

        After ``deadline`` seconds, or when the awaiting task is cancelled, the call goes on alone,
        and a result it still returns is passed to ``discard`` in a thread (to close an fd, say).
        """
        loop = asyncio.get_running_loop()
        call = functools.partial(fn, *args, **options)
        job = _Job(call, discard, loop.create_future())
        self._submit(job)
        timers = [loop.call_later(deadline, self._expire, job, deadline)]
        if job.state is _State.WAITING:
            timers.append(loop.call_later(self._patience, self._relieve, job))
        try:
            result: T = await job.future
            return result
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def close(self) -> None:
        """Refuse further calls and let idle threads end; calls that run are left to finish."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _submit(self, job: _Job) -> None:
        with self._wake:
            if self._closed:
                raise FilesError("the file workers are closed")
            if self._hung >= self._most:
                raise FilesError(
                    f"all {self._most} file workers are hung; "
                    "file operations are refused until one of them returns"
                )
            if len(self._waiting) >= WAITING_LIMIT:
                raise FilesError(f"{WAITING_LIMIT} file operations are waiting already; try later")
            self._waiting.append(job)
            if len(self._waiting) <= self._idle:
                self._wake.notify()
            elif self._threads - self._hung < self._workers:
                self._add_thread()
                if self._threads == self._hung:
                    self._waiting.remove(job)
                    raise FilesError("no thread could be started for file operations")

    def _add_thread(self) -> None:
        """Start one more if the bound and the system allow it; the lock is held."""
        if self._threads >= self._most:
            return
        thread = threading.Thread(target=self._work, name="handrail-files", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # system limit; the existing threads will take the job
        self._threads += 1

    def _expire(self, job: _Job, deadline: float) -> None:
        started = job.state is not _State.WAITING
        if self._abandon(job) and not job.future.done():
            if started:
                text = f"the file operation did not finish within {deadline:g} s and was given up"
            else:
                text = f"no file worker was free within {deadline:g} s; {self._hung} are hung"
            job.future.set_exception(FilesError(text))

    def _abandon(self, job: _Job) -> bool:
        """Stop waiting for a job; False when its outcome is already on the way."""
        with self._wake:
            if job.state is _State.RUNNING:
                self._hung += 1
                if self._waiting and self._threads - self._hung < self._workers:
                    self._add_thread()
            elif job.state is not _State.WAITING:
                return False
            job.state = _State.ABANDONED
            return True

    def _relieve(self, job: _Job) -> None:
        with self._wake:
            if job.state is _State.WAITING:
                self._add_thread()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.call()
            except BaseException as raised:  # noqa: BLE001  raised again in the awaiting task
                error = raised
            self._finish(job, result, error)
            del job, result, error  # idle threads keep nothing alive

    def _next(self) -> _Job | None:
        """The next job; None when this thread is to end."""
        with self._wake:
            while True:
                while self._waiting:
                    job = self._waiting.popleft()
                    if job.state is _State.WAITING:
                        job.state = _State.RUNNING
                        return job
                if self._closed or self._threads - self._hung > self._workers:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._wake.wait()
                self._idle -= 1

    def _finish(self, job: _Job, result: Any, error: BaseException | None) -> None:
        with self._wake:
            wanted = job.state is _State.RUNNING
            if not wanted:
                self._hung -= 1
            job.state = _State.DONE
        if wanted:
            try:
                loop = job.future.get_loop()
                loop.call_soon_threadsafe(self._deliver, job, result, error)
                return
            except RuntimeError:
                pass  # the loop is closed, so no task waits for it
        if error is None and job.discard is not None:
            job.discard(result)

    def _deliver(self, job: _Job, result: Any, error: BaseException | None) -> None:
        if not job.future.done():
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)
        elif error is None and job.discard is not None:
            # Cancelled while the outcome was on its way; discarding may block, so not here.
            with self._wake:
                self._waiting.append(_Job(functools.partial(job.discard, result), None, job.future))
                self._wake.notify()
