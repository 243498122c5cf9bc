"""A pseudo-terminal for a command in the foreground, and the copies to and from the user's.

The user's terminal is in raw mode meanwhile: every key goes to the command's terminal, which
interprets it.  Two threads copy, one for each direction, beside the thread that waits for the
command.  ``_thread`` and not ``threading``, for the reason
that ``run.py`` gives.

A key that stops jobs is the exception.  The kernel stops no process in a session without a shell,
so for a command that does not handle it we stop ourselves, and the command with us.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

_PIECE = 1 << 16
_TAIL = 1 << 14
_SIZE_BYTES = 8  # struct winsize: rows, columns and two unused ones
#: How long the last output may take once no process is left that could write any.
_LAST_SECONDS = 2.0
_LFLAG, _KEYS = 3, 6


class PtyRelay:
    """One pseudo-terminal; the command gets ``theirs``."""

    def __init__(self) -> None:
        #: The user's; stdin is another one in the crash guard.
        self._user = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        self._before = termios.tcgetattr(self._user)
        self._ours, self.theirs = os.openpty()
        termios.tcsetattr(self.theirs, termios.TCSANOW, self._before)
        self.resize()
        self._shown = _thread.allocate_lock()
        #: The end of what was shown.
        self.tail = b""

    @property
    def streams(self) -> tuple[int, ...]:
        """The fds of a command that lead to its terminal; stderr only if it was a terminal here."""
        return (0, 1, 2) if os.isatty(2) else (0, 1)

    @property
    def path(self) -> str:
        """The path by which the terminal is opened."""
        return os.ttyname(self.theirs)

    def begin(self) -> None:
        """Copy from now on: the command has its terminal."""
        os.close(self.theirs)
        self.take()
        self._shown.acquire()
        _thread.start_new_thread(self._show, ())
        _thread.start_new_thread(self._type, ())

    def spill(self) -> None:
        """Show what was written to the terminal although no command was started."""
        os.set_blocking(self._ours, False)
        try:
            while data := os.read(self._ours, _PIECE):
                _write(2, data)
        except OSError:
            pass  # that was all

    def take(self) -> None:
        """Put the user's terminal into raw mode, so that every key is passed on."""
        mode = termios.tcgetattr(self._user)
        # As cfmakeraw(3) has it; the module tty would do the same.
        mode[0] &= ~(termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP)
        mode[0] &= ~(termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON)
        mode[1] &= ~termios.OPOST
        mode[2] = mode[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        mode[_LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON)
        mode[_LFLAG] &= ~(termios.ISIG | termios.IEXTEN)
        mode[_KEYS] = list(mode[_KEYS])
        mode[_KEYS][termios.VMIN], mode[_KEYS][termios.VTIME] = 1, 0
        self._set(mode)

    def give_back(self) -> None:
        """Restore the user's terminal."""
        self._set(self._before)

    def _set(self, mode: list[int | list[bytes | int]]) -> None:
        try:
            termios.tcsetattr(self._user, termios.TCSADRAIN, mode)
        except termios.error:
            pass  # hung up

    def let_go(self) -> None:
        """Close the command's terminal in a forked process, so that it can end."""
        os.close(self._ours)
        os.close(self.theirs)

    def resize(self) -> None:
        """Give the command's terminal the size of the user's."""
        try:
            size = fcntl.ioctl(self._user, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
            fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
        except OSError:
            pass  # the terminal is gone, as we shall hear

    def finish(self) -> None:
        """Wait until the ended command's output is shown, and restore the user's terminal."""
        self._shown.acquire(timeout=_LAST_SECONDS)
        self.give_back()

    def _show(self) -> None:
        looks = True
        try:
            while data := os.read(self._ours, _PIECE):
                self.tail = (self.tail + data)[-_TAIL:]
                try:
                    if looks:
                        _write(1, data)
                except OSError:
                    looks = False  # hung up: the command may write on, and hears of it from us
        except OSError:
            pass  # no process has the other end any more
        finally:
            self._shown.release()

    def _type(self) -> None:
        try:
            while data := os.read(0, _PIECE):
                while (at := self._stops(data)) >= 0:
                    _write(self._ours, data[:at])
                    os.kill(os.getpid(), _signal.SIGTSTP)
                    data = data[at + 1 :]
                _write(self._ours, data)
        except OSError:
            pass  # the command has ended, or our terminal has

    def _stops(self, data: bytes) -> int:
        """The position in ``data`` of the key that stops jobs; -1: there is none to handle."""
        mode = termios.tcgetattr(self._ours)
        at = data.find(mode[_KEYS][termios.VSUSP])
        if at < 0 or not mode[_LFLAG] & termios.ISIG:
            return -1
        leader = os.tcgetpgrp(self._ours)
        return at if _is_stopped_by_nobody(leader) else -1


def _is_stopped_by_nobody(group: int) -> bool:
    """Whether the group has no shell above it, and its leader ignores the key that stops jobs."""
    try:
        if group <= 0 or os.getsid(group) != group:
            return False
        with open(f"/proc/{group}/status", "rb") as file:
            handled = 0
            for line in file:
                if line.startswith((b"SigIgn:", b"SigCgt:")):
                    handled |= int(line.split()[1], 16)
    except OSError:
        return False
    return not handled >> (_signal.SIGTSTP - 1) & 1


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process that shares it has made it so
            import select

            select.select([], [fd], [])
