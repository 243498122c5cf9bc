"""A second process that cleans up when this one is killed."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable

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
    that ``let_go`` closes, because the command or this process waits for their end.
    """

    def __init__(
        self,
        clear_up: Callable[[int], object],
        first: Callable[[], object] | None = None,
        terminal: PtyRelay | None = None,
        let_go: Callable[[], object] | None = None,
    ) -> None:
        ours, line = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.close(line)
                null = os.open(os.devnull, os.O_RDWR)
                for fd in range(3):
                    os.dup2(null, fd)
                if terminal is not None:
                    terminal.let_go()
                if let_go is not None:
                    let_go()
                told = os.read(ours, 16)
                if told:
                    if first is not None and not _ends(ours, _LATER):
                        first()
                    os.read(ours, 1)  # until we end, and the line with us
                if terminal is not None:
                    terminal.give_back()
                clear_up(int(told or b"0"))
            finally:
                os._exit(0)
        os.close(ours)
        self._line = line
        self._pidfd = os.pidfd_open(self.pid)

    def tell(self, pid: int) -> None:
        """Send it the pid of the command."""
        os.write(self._line, b"%d" % pid)

    def dismiss(self) -> None:
        """End the guard: this process cleans up itself."""
        _signal.pidfd_send_signal(self._pidfd, _signal.SIGKILL)
        os.close(self._pidfd)
        os.close(self._line)


def _ends(line: int, milliseconds: int) -> bool:
    """Whether the other end of a pipe is closed within that time."""
    import select  # in the guard alone

    looked = select.poll()
    looked.register(line, 0)
    return bool(looked.poll(milliseconds))


def end_family(pid: int, tag: int) -> None:
    """Kill a command whose parent was killed, and everything that it has started.

    ``pid`` is 0 if the parent was killed before it could tell it.
    """
    from handrail.keeper import tree

    tree.kill_afar(pid or None, {tag})
