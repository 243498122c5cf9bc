"""Connects a process with our own stdin, stdout and stderr, until one of them ends.

It decides what Ctrl-C and other signals do meanwhile, in ``exec``, ``attach`` and a ``run`` that
streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from handrail.cli import options, terminal
from handrail.cli.output_thread import Writer
from handrail.cli.remote_signals import pass_on
from handrail.errors import ExecutorError, HandrailError
from handrail.process import ENDING_SIGNALS
from handrail.secret_masks import NO_SECRETS, Secrets
from handrail.workspace.output.collector import DRAIN_SECONDS
from handrail.workspace.result import Exited, Gap

if TYPE_CHECKING:
    from handrail.cli.host_questions import HostQuestions
    from handrail.process.exit_status import ExitInfo
    from handrail.workspace.process import AsyncProcess


#: How long a terminated relay waits for its reader to take the rest.
_LAST_SECONDS = 2.0
#: How much of the end of stderr is kept.
_TAIL = 1 << 14
#: The most output of the command that can be under way when its exit is known: what is retained for
#: a reader that lags, and what its pipes hold.
_REST_BYTES = 2 * 1024 * 1024


class Relay:
    """One process at our streams.

    With ``leaves`` it runs on without us: ``detach_key`` (a byte), a Ctrl-C that is not typed to
    the process, a hang-up or a TERM make ``run`` return None, and ``left_by`` is the signal's
    number.  Otherwise Ctrl-C is passed on, and the others end it.  ``questions`` gets what is typed
    while one of them is open, and output waits meanwhile.
    """

    def __init__(
        self,
        process: AsyncProcess,
        *,
        raw: bool,
        leaves: bool = False,
        detach_key: bytes = b"",
        as_json: bool = False,
        tty: bool = False,
        secrets: Secrets = NO_SECRETS,
        questions: HostQuestions | None = None,
    ) -> None:
        #: The end of its stderr, or of its terminal.
        self.tail = b""
        self._tty = tty
        self._process = process
        self._questions = questions
        self._screen = contextlib.nullcontext() if questions is None else questions.screen
        self._writer = Writer(NO_SECRETS if as_json else secrets)
        self._json = as_json
        #: The signal that detached us; 0 for the key.
        self.left_by = 0
        self._raw = raw
        self._leaves = leaves
        self._key = detach_key
        self._written = 0
        self._waiting = False  # for output, having written all there is
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> ExitInfo | None:
        """Relay until its exit; None when the user has detached.  Raises OutputFailed when the
        output cannot be written, and connection errors of the process."""
        with contextlib.ExitStack() as stack:
            if self._raw:
                stack.enter_context(terminal.raw())
            for number, action in self._signals().items():
                self._loop.add_signal_handler(number, action)
                stack.callback(self._loop.remove_signal_handler, number)
            # A thread: stdin may be a file, which no event loop can wait for.
            threading.Thread(target=self._read, name="stdin", daemon=True).start()
            following = self._loop.create_task(self._follow())
            stopping = self._loop.create_task(self._stopped.wait())
            ending = self._loop.create_task(self._told_all())
            try:
                over = {following, stopping} if self._leaves else {following, stopping, ending}
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done() and not following.done() and not self._leaves:
                    self._do(self._process.terminate())
                    await asyncio.wait({following}, timeout=_LAST_SECONDS)
                if following.done():
                    return await following
                if ending.done():
                    await self._writer.finish()
            finally:
                for task in (stopping, ending, following):
                    task.cancel()
                await asyncio.gather(
                    stopping, ending, following, *self._tasks, return_exceptions=True
                )
            return None if self._leaves else await self._process.wait()

    async def _follow(self) -> ExitInfo:
        """Write the output; the process waits for our reader (back-pressure)."""
        async with contextlib.aclosing(self._process.follow()) as paced:
            self._waiting = True
            async for event in paced:
                self._waiting = False
                if isinstance(event, Exited):
                    await self._writer.finish()
                    return event.exit
                if isinstance(event, Gap):
                    continue  # the output after it says so too
                async with self._screen:
                    await options.write_event(self._writer, event, as_json=self._json)
                self._written += len(event.data)
                if self._tty or event.stream == "stderr":
                    self.tail = (self.tail + event.data[-_TAIL:])[-_TAIL:]
                self._waiting = True
        raise AssertionError("the last event is the exit")  # pragma: no cover

    async def _told_all(self) -> None:
        """Wait for the exit of the command and its output; descendants may write more."""
        try:
            await self._process.wait()
        except ExecutorError:
            await asyncio.Event().wait()  # its follower gets the error
        most = self._written + _REST_BYTES
        caught_up = 0
        # Twice: what was left in the pipes for a slow reader comes when it has caught up.
        while caught_up < 2 and self._written < most:
            await asyncio.sleep(DRAIN_SECONDS)
            caught_up += self._waiting

    def _signals(self) -> dict[int, Callable[[], None]]:
        found: dict[int, Callable[[], None]] = {
            number: functools.partial(self._leave, number) for number in ENDING_SIGNALS
        }
        if not self._leaves:
            found[signal.SIGINT] = lambda: self._do(pass_on(self._process, signal.SIGINT))
        if self._raw:
            found[signal.SIGWINCH] = lambda: self._do(self._process.resize(*terminal.size()))
        return found

    def _leave(self, number: int) -> None:
        self.left_by = number
        self._stopped.set()

    def _do(self, coroutine: object) -> None:
        task = self._loop.create_task(quietly(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read(self) -> None:
        """In its own thread: each piece is sent before the next is read."""
        while True:
            try:
                data = os.read(0, 1 << 16)
            except OSError:
                data = b""
            if self._questions is not None and self._questions.take(data) and data:
                continue
            before, key, _ = data.partition(self._key) if self._key else (data, b"", b"")
            try:
                if before:
                    self._await(self._process.send(before))
                if key:
                    self._loop.call_soon_threadsafe(self._stopped.set)
                    return
                if not data:
                    self._await(self._process.close_stdin())
                    return
            except (HandrailError, RuntimeError, CancelledError):
                return  # it accepts no more, or the loop has ended

    def _await(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()  # type: ignore[arg-type]


async def quietly(coroutine: object) -> None:
    """Send a signal; a process that has just ended is no error."""
    try:
        await coroutine  # type: ignore[misc]
    except ExecutorError:
        pass
