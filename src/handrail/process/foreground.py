"""One command whose parent is this very process: for a program that does nothing else.

It does for one command what the keeper does for many: it adopts what is orphaned, passes
signals on, and ends all of it at the end.  The command gets our own stdin, stdout and stderr,
so nothing has to be copied.  Only C modules of the standard library are imported before the
command runs; ``signal`` alone would cost a third of an interpreter's start.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Mapping
    from typing import Protocol

    class Held(Protocol):
        """What is around a command in a sandbox."""

        def sent(self) -> None: ...
        def abandon(self) -> None: ...
        def signal(self, number: int, *, tree: bool) -> int: ...
else:
    import _signal  # the C part: ``signal`` itself would import enum

#: What a command gets between TERM and KILL.
_GRACE_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36
#: As timeout(1) says it.
TIMED_OUT = 124
#: All but the last are passed on to the command.
_WATCHED = (
    *(_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT),
    *(_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGCHLD),
)
#: Signals that the interpreter ignores or catches, and that a command is to find as usual.
_GIVEN_BACK = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD)


class Foreground:
    """The one command of this process."""

    def __init__(self) -> None:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored ones cannot be waited for
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _WATCHED)
        _become_subreaper()
        self._pid = 0
        self._inside: Held | None = None

    def start(self, argv: list[str], env: Mapping[str, str]) -> None:
        """Start a command, found in our own PATH; raises OSError."""
        _keep_to_ourselves()
        self._pid = os.posix_spawnp(
            argv[0], argv, env, setsid=True, setsigmask=(), setsigdef=_GIVEN_BACK
        )

    def start_held(
        self,
        argv: tuple[bytes, ...],
        env: Mapping[bytes, bytes],
        passed: tuple[tuple[int, int], ...],
        inside: Held,
    ) -> None:
        """Start what holds a command in a sandbox, from the root directory; raises OSError.

        ``passed`` are (number in the child, descriptor here).
        """
        import fcntl

        self._inside = inside
        spare: list[int] = []
        try:
            _keep_to_ourselves()
            actions: list[tuple[int, ...]] = []
            first = max((number for number, _ in passed), default=2) + 1
            for number, fd in passed:
                # Out of the way of the numbers that are being given.
                spare.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first))
                actions.append((os.POSIX_SPAWN_DUP2, spare[-1], number))
            os.chdir("/")
            self._pid = os.posix_spawn(
                argv[0],
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_GIVEN_BACK,
            )
        except BaseException:
            inside.abandon()
            raise
        finally:
            for fd in spare:
                os.close(fd)
        inside.sent()

    def attend(self, timeout: float | None) -> int:
        """Pass signals on until it ends, then end what it has left; its exit code.

        128+N for one that signal N has ended, 124 after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        timed_out = False
        while True:
            left = 3600.0 if deadline is None else deadline - time.monotonic()
            told = _signal.sigtimedwait(_WATCHED, left) if left > 0 else None
            if told is not None and told.si_signo != _signal.SIGCHLD:
                self._pass_on(told.si_signo)
            elif told is None and deadline is not None and time.monotonic() >= deadline:
                self._end(_signal.SIGKILL if timed_out else _signal.SIGTERM)
                deadline = None if timed_out else time.monotonic() + _GRACE_SECONDS
                timed_out = True
            status = self._reap()
            if status is not None:
                self._bury()
                return TIMED_OUT if timed_out else _code(status)

    def _pass_on(self, number: int) -> None:
        if self._inside is not None:
            self._inside.signal(number, tree=False)
            return
        try:
            os.killpg(self._pid, number)
        except OSError:
            pass  # it is gone, as we shall hear

    def _reap(self) -> int | None:
        """The status of our command, if it has ended; orphans that came to us are buried."""
        found = None
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if ended == 0:
                return found
            if ended == self._pid:
                found = status

    def _end(self, number: int) -> None:
        """Signal the whole family: the command, and what was orphaned to us."""
        from handrail.keeper import tree

        if self._inside is not None and number != _signal.SIGKILL:
            # What holds it would die of a signal that is meant for it.
            self._inside.signal(number, tree=True)
            return
        family = _children()
        for one in family:
            if number == _signal.SIGKILL:
                tree.kill(one, 0, set(family) - {one})
            else:
                tree.send(one, 0, set(), number)

    def _bury(self) -> None:
        """The command has ended: nothing of it stays."""
        while _children():
            self._end(_signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(word) for word in file.read().split()]


def _become_subreaper() -> None:
    """What the command orphans comes to us, and can be ended with it."""
    try:
        # The module below ctypes: half a millisecond instead of four.
        from _ctypes import call_function, dlopen, dlsym

        prctl = dlsym(dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    except ImportError:
        from handrail.keeper.main import become_subreaper

        become_subreaper()


def _keep_to_ourselves() -> None:
    """The command gets 0, 1 and 2 and nothing else we were given."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2:
            try:
                os.set_inheritable(fd, False)
            except OSError:
                pass  # the listing itself
