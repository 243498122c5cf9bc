"""The input of a child: the queue in front of its pipe or terminal, and the ids of its writes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from handrail import fault_points
from handrail.errors import StdinClosed
from handrail.process.stdin.ledger import StdinLedger
from handrail.process.stdin.log import StdinLog
from handrail.process.stdin.pump import StdinPump

if TYPE_CHECKING:
    from handrail.process.child import Child

_NO_LEDGER = StdinLedger()  # of those that take no input, so nothing is ever noted in it


class ChildStdin:
    """The input of one child; ``fd`` is -1 for a child without one."""

    __slots__ = ("_child", "_pump", "ledger")

    def __init__(self, child: Child, fd: int, *, tty: bool, wanted: bool) -> None:
        self._child = child
        self._pump: StdinPump | None = None
        self.ledger = _NO_LEDGER
        if wanted:
            self.ledger = StdinLedger()
            on_close = None if tty else self._pipe_closed
            self._pump = StdinPump(fd, child.loop, on_close, self._open_log)
            self.ledger.store = self._pump.store

    @property
    def takes_input(self) -> bool:
        return self._pump is not None and not self._pump.closed

    def write(self, data: bytes, accept: Callable[[], bool]) -> asyncio.Future[None] | None:
        """Queue bytes; see StdinPump.put."""
        if self._pump is None:
            raise StdinClosed("this process was started without a stdin")
        return self._pump.put(data, accept)

    def room(self, size: int) -> int | None:
        """None when that many bytes fit now, or input is closed; else how many fit."""
        pump = self._pump
        return None if pump is None or pump.closed or pump.has_room(size) else pump.free

    def finish(self) -> None:
        """End of file for the child: close the pipe, or type the terminal's end-of-file key."""
        if self._pump is None or self._pump.closed:
            return
        if self._child.spec.tty:
            self._pump.type_end()
        else:
            self._pump.finish()

    def exited(self, *, terminated: bool) -> None:
        """The child has exited."""
        if self._pump is not None:
            if terminated:
                self._pump.close()  # refuses a writer that still waits
            else:
                # As on the wire: a write after the exit is accepted, and its bytes vanish.
                self._pump.abandon()

    def close(self) -> None:
        """Drop what is queued and take no more."""
        if self._pump is not None:
            self._pump.close()

    def shrink(self) -> None:
        """Keep only the ids, after the close."""
        self._pump = None

    def park(self) -> None:
        """Stop using the input: another server takes over."""
        if self._pump is not None:
            self._pump.park(close=not self._child.spec.tty)

    def holdings(self) -> dict[bytes, int]:
        """The fds that a keeper holds of it, by their names there."""
        return {} if self._pump is None else self._pump.holdings(tty=self._child.spec.tty)

    def revive(self, fd: int, *, exited: bool) -> None:
        """Continue the log of a previous server; owns the descriptor."""
        log, writes = StdinLog.attach(fd)
        self.ledger.recall(writes)
        if self._pump is None:
            log.close()
            return
        if exited:
            self._pump.abandon()
        self._pump.revive(log)

    def _open_log(self) -> StdinLog:
        if fault_points.armed:
            fault_points.point("stdin.open")
        log = StdinLog()
        try:
            self._child.keep(b"input", log.fd)
        except OSError:
            log.close()
            raise
        return log

    def _pipe_closed(self, fd: int) -> None:
        os.close(fd)
        if not self._child.closed:
            self._child.launcher.drop(self._child.number, b"stdin")
