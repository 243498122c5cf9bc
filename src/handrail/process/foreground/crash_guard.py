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

#: How long one may take to stop; one that waits for a device forks nothing meanwhile.
_STOP_SECONDS = 0.5


class CrashGuard:
    """Calls ``clear_up`` when this process ends without having dismissed the guard.

    ``first`` is called while there is nothing else to do, and may not come to its end.  A command's
    own ``terminal`` is not held by it, and the user's is given back; nor are descriptors of
    ``pipes`` that the command waits for the end of.
    """

    def __init__(
        self,
        clear_up: Callable[[], object],
        first: Callable[[], object] | None = None,
        terminal: PtyRelay | None = None,
        pipes: Sequence[int] = (),
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
                for fd in pipes:
                    os.close(fd)
                if first is not None:
                    first()
                os.read(ours, 1)  # until we end, and the line with us
                if terminal is not None:
                    terminal.give_back()
                clear_up()
            finally:
                os._exit(0)
        os.close(ours)
        self._line = line
        self._pidfd = os.pidfd_open(self.pid)

    def dismiss(self) -> None:
        """End the guard: this process cleans up itself."""
        _signal.pidfd_send_signal(self._pidfd, _signal.SIGKILL)
        os.close(self._pidfd)
        os.close(self._line)


def end_family(pid: int) -> None:
    """Kill a command whose parent was killed, and its descendants."""
    from handrail.keeper import tree

    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        try:
            os.kill(one, _signal.SIGSTOP)
        except ProcessLookupError:
            continue
        # Before it is asked for its children: none can appear after that.
        deadline = time.monotonic() + _STOP_SECONDS
        while not _stands(one) and time.monotonic() < deadline:
            time.sleep(0.001)
        found.append(one)
        todo += tree.children_of(one)
    for one in found:
        os.kill(one, _signal.SIGKILL)


def _stands(pid: int) -> bool:
    """Whether it is stopped, or dead: a signal that was sent may not have arrived."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"TtZX"
    except OSError:
        return True
