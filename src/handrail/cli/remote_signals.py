"""Passes the signals of ``handrail run`` on to a command that is not its child.

What Ctrl-C does in ``exec``, ``attach`` and a ``run`` that streams: ``stdio_relay.py``.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from handrail.process import ENDING_SIGNALS

if TYPE_CHECKING:
    from handrail.workspace.process import AsyncProcess

_TRIES = 3


class SignalRelay:
    """Passes signals on to the command, as soon as it is known.

    One that comes before the start was asked for cancels everything, and nothing was run.  Once it
    was, the command may be running: the signal is held until the start is told, because what
    follows it is the command's to say.  A second one gives up the start.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        self.start_asked = False
        self._process: AsyncProcess | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in ENDING_SIGNALS:
            self._loop.add_signal_handler(number, self._came, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)

    def started(self, process: AsyncProcess) -> None:
        """The command runs: pass on what was held."""
        self._process = process
        held, self.held = self.held, []
        for number in held:
            self._came(number)

    def _came(self, number: int) -> None:
        process = self._process
        if process is not None:
            if process.running:  # else its answer is about to be printed
                self._tell(process, number)
            return
        self.held.append(number)
        if (not self.start_asked or len(self.held) > 1) and self._main is not None:
            self._main.cancel()

    def _tell(self, process: AsyncProcess, number: int) -> None:
        task = self._loop.create_task(pass_on(process, number))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


async def pass_on(process: AsyncProcess, number: int) -> None:
    """Signal the command, again if the connection was cut meanwhile: it may not have got it."""
    from handrail.errors import ExecutorError, ExecutorTransportFailed

    for _ in range(_TRIES):
        if not process.running:
            return
        try:
            await (process.interrupt() if number == signal.SIGINT else process.terminate())
            return
        except ExecutorTransportFailed:
            continue  # the next try waits for a connection, if there is to be one
        except ExecutorError:
            return  # it has just ended
