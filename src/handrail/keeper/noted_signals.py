"""The signals that the keeper waits for, by a descriptor among the others.

By a ``signalfd``, for these signals are blocked then: an exit interrupts no system call, and no
handler runs before it is looked at.  Where that is refused, by the pipe that Python's handlers
write to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: A record of the kernel begins with the number, in four bytes.
_RECORD = 128
_FIRST = 0 if sys.byteorder == "little" else 3
_READ = 32 * _RECORD
#: ``sigset_t`` has 1,024 bits.
_WORDS = 16

NUMBERS = (signal.SIGCHLD, signal.SIGTERM)


class NotedSignals:
    """SIGCHLD and SIGTERM; made once, when the keeper begins to wait for them."""

    __slots__ = ("_first", "_step", "fd")

    def __init__(self) -> None:
        for number in NUMBERS:
            signal.signal(number, _noted)  # as long as they are not blocked, none ends the keeper
        # A keeper before us may have blocked others.
        signal.pthread_sigmask(signal.SIG_SETMASK, NUMBERS)
        self.fd, self._first, self._step = _signalfd(), _FIRST, _RECORD
        if self.fd < 0:
            self.fd, wake_in = _wake_pipe()
            self._first, self._step = 0, 1
            signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def take(self) -> bytes:
        """The numbers of those that have come."""
        try:
            return os.read(self.fd, _READ)[self._first :: self._step]
        except BlockingIOError:
            return b""


def _signalfd() -> int:
    """A descriptor of these signals; -1 where it is refused."""
    word = ctypes.c_ulong
    bits = 8 * ctypes.sizeof(word)
    mask = (word * _WORDS)()
    for number in NUMBERS:
        mask[(number - 1) // bits] |= 1 << (number - 1) % bits
    made: int = ctypes.CDLL(None).signalfd(-1, ctypes.byref(mask), os.O_CLOEXEC | os.O_NONBLOCK)
    return made


def _wake_pipe() -> tuple[int, int]:
    """A pipe for the numbers of signals, not blocking: where to read them, and where to write.

    The same descriptor for both, since a pipe may be opened for both; where that fails two.
    """
    ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        both = os.open(f"/proc/self/fd/{ends[0]}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # without /proc
        return ends
    for fd in ends:
        os.close(fd)
    return both, both


def _noted(number: int, frame: object) -> None:
    """Do nothing: the descriptor has the signal's number."""
