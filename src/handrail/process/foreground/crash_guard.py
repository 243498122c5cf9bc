"""A second process that cleans up when this one is killed."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence

    from handrail.process.foreground.pty_relay import PtyRelay
else:
    import _signal  # the C part: ``signal`` itself would import enum


#: A command that has ended until then is not to share its processors with ``first``.
_LATER = 20


class CrashGuard:
    """Calls ``clear_up`` when this process ends without having dismissed the guard.

    It is there before the command, and gives ``clear_up`` the pid that ``tell`` has sent, or 0.
    ``first`` is called if the command takes a while, and may not come to its end.  A
    command's own ``terminal`` is not held by it, and the user's is given back; nor are descriptors
    that ``let_go`` closes, because the command or this process waits for their end, nor the
    ``foreign`` ones that this process was started with.
    """

    def __init__(
        self,
        clear_up: Callable[[int], object],
        first: Callable[[], object] | None = None,
        terminal: PtyRelay | None = None,
        let_go: Callable[[], object] | None = None,
        foreign: Sequence[int] = (),
    ) -> None:
        ours, line = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.close(line)
                for fd in foreign:
                    os.close(fd)
                null = os.open(os.devnull, os.O_RDWR)
                for fd in range(3):
                    os.dup2(null, fd)
                if terminal is not None:
                    terminal.let_go()
                if let_go is not None:
                    let_go()
                told = os.read(ours, 16)
                if told:
                    if first is not None and not _says_more(ours, _LATER):
                        first()
                    if os.read(ours, 1):  # dismissed, or nothing when we have ended
                        os.read(ours, 1)  # until we have
                        os._exit(0)
                if terminal is not None:
                    terminal.give_back()
                clear_up(int(told or b"0"))
            finally:
                os._exit(0)
        os.close(ours)
        self._line = line
        self._told: float | None = None
        self._pidfd = os.pidfd_open(self.pid)

    def tell(self, pid: int) -> None:
        """Send it the pid of the command."""
        os.write(self._line, b"%d" % pid)
        self._told = time.monotonic()

    def dismiss(self, *, last: bool = False) -> None:
        """End the guard: this process cleans up itself.

        ``last``: this process ends at once.  After a short command the guard then ends behind it,
        since it frees what they share of their memory, for which nothing waits.
        """
        if last and self._told is not None and time.monotonic() - self._told < _LATER / 2000:
            os.write(self._line, b".")
        else:
            _signal.pidfd_send_signal(self._pidfd, _signal.SIGKILL)
            os.close(self._line)
        os.close(self._pidfd)


def _says_more(line: int, milliseconds: int) -> bool:
    """Whether there is something to read from a pipe within that time, or its other end closed."""
    import select  # in the guard alone

    looked = select.poll()
    looked.register(line, select.POLLIN)
    return bool(looked.poll(milliseconds))


def end_family(pid: int, tag: int) -> None:
    """Kill a command whose parent was killed, and everything that it has started.

    ``pid`` is 0 if the parent was killed before it could tell it.
    """
    from handrail.keeper import tree

    tree.kill_afar(pid or None, {tag})
