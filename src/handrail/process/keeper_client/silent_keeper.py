"""Report a keeper that is there and does not answer.

A keeper that is stopped, or waits for a device, has the children and the lease: a server can only
wait for it.  It says so, and which process it waits for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator

from handrail.keeper.proc_children import stat_fields

log = logging.getLogger(__name__)

#: How long a keeper may take before a server says that it waits.
PATIENCE_SECONDS = 3.0
_CREDENTIALS = struct.Struct("3i")
_STATES = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a device"}


def pid_of(sock: socket.socket) -> int:
    """The pid of the keeper behind a link, or 0 where the kernel names a process that is gone."""
    asked = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(asked)[0]
    return pid if pid != os.getpid() and _state(pid) else 0


def describe(sock: socket.socket, started: int = 0) -> str:
    """A sentence about the keeper that does not answer, with what can be done.

    ``started``: its pid when it is our own child; the link then names us.
    """
    pid = started or pid_of(sock)
    if not pid:
        return (
            "the keeper does not answer, and its process is not known; look for a stopped"
            " process that runs handrail/keeper/__main__.py and continue it with `kill -CONT`"
        )
    state = _state(pid)
    what = f"the keeper, process {pid}, does not answer"
    if state in _STATES:
        what += f": it {_STATES[state]}"
    if state in ("T", "t"):
        what += f"; continue it with `kill -CONT {pid}`"
    else:
        what += f"; see what it does with `cat /proc/{pid}/stack`"
    return what + f", or end it and everything it runs with `kill -KILL {pid}`"


def is_stopped(sock: socket.socket) -> bool:
    """Whether a signal or a debugger holds the process: it will not answer by itself."""
    return _state(pid_of(sock)) in ("T", "t")


@contextlib.contextmanager
def reported(sock: socket.socket, started: int = 0) -> Iterator[None]:
    """Report the process that is waited for when this takes long, and when it continues."""
    import asyncio  # imported by every caller of this one

    waiting = _Waiting(sock, started)
    timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, waiting.tell)
    try:
        yield
        waiting.over()
    finally:
        timer.cancel()


@contextlib.contextmanager
def reported_by_thread(sock: socket.socket) -> Iterator[None]:
    """Version of `reported` without an event loop."""
    import threading

    waiting = _Waiting(sock, 0)
    timer = threading.Timer(PATIENCE_SECONDS, waiting.tell)
    timer.daemon = True
    timer.start()  # with our mask: a signal must not come to a thread that does not wait
    try:
        with _interruptible():
            yield
        waiting.over()
    finally:
        timer.cancel()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let a stop signal, which a starting server blocks, end this wait by KeyboardInterrupt."""
    import signal

    from handrail.server_settings import STOP_SIGNALS

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.SIGTERM not in mask:  # then it is handled by an event loop
        yield
        return
    # Also SIGINT: a server that was started with it ignored hears it later, too.
    before = [signal.signal(number, signal.default_int_handler) for number in STOP_SIGNALS]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)


class _Waiting:
    """What was reported of one keeper."""

    def __init__(self, sock: socket.socket, started: int) -> None:
        self._sock = sock
        self._started = started
        self._said = False

    def tell(self) -> None:
        self._said = True
        with contextlib.suppress(OSError):  # the link has ended, and that is said elsewhere
            log.error("%s; this server waits for it", describe(self._sock, self._started))

    def over(self) -> None:
        if self._said:
            log.error("the keeper answers again; this server goes on")


def _state(pid: int) -> str:
    """The letter of the process state; empty when it is gone."""
    if not pid:
        return ""
    try:
        state = stat_fields(pid)[0].decode()
    except OSError:
        return ""
    return "" if state in "ZX" else state
