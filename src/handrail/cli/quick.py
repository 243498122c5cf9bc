"""``handrail run`` on this machine, without a terminal: as little as possible before the start.

The command gets our own stdin, stdout and stderr, so nothing has to be copied, and this process
does for one command what the keeper does for many: it is the parent, it adopts what is orphaned
and ends all of it at the end.  Only the standard library's C modules are imported before the
command runs; ``signal`` alone would cost a third of an interpreter's start.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
else:
    import _signal  # the C part: ``signal`` itself would import enum

#: What a command gets between TERM and KILL.
_GRACE_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36
#: As timeout(1) says it.
TIMED_OUT = 124
#: As a shell says it.
NOT_EXECUTABLE, NOT_FOUND = 126, 127

#: All but the last are passed on to the command.
_WATCHED = (
    *(_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT),
    *(_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGCHLD),
)


def run(words: Sequence[str]) -> int | None:
    """The exit code, or None when this is not a case for here."""
    asked = _read(words)
    if asked is None or (os.isatty(0) and os.isatty(1)):
        return None
    argv, timeout = asked
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored ones cannot be waited for
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _WATCHED)
    _become_subreaper()
    _keep_to_ourselves()
    try:
        pid = os.posix_spawnp(
            argv[0], argv, os.environ, setsid=True, setsigmask=(), setsigdef=_given_back()
        )
    except OSError as error:
        return not_started(argv[0], error)
    return _attend(pid, timeout)


def _read(words: Sequence[str]) -> tuple[list[str], float | None] | None:
    """The command and its timeout, if nothing else was asked for."""
    timeout: float | None = None
    open_ = False
    at = 0
    while at < len(words):
        word = words[at]
        name, mark, value = word.partition("=")
        if word == "--":
            rest = list(words[at + 1 :])
            return (rest, timeout) if rest and rest[0] and open_ else None
        if name not in ("--sandbox", "--timeout"):
            return None
        if not mark:
            at += 1
            value = words[at] if at < len(words) else ""
        if name == "--sandbox":
            open_ = value == "off"
        else:
            try:
                timeout = float(value)
            except ValueError:
                return None
            if not 0 <= timeout < 10**9:
                return None
        at += 1
    return None


def not_started(program: str, error: OSError) -> int:
    """Say why, and what a shell would exit with."""
    print(f"handrail: cannot run {program}: {error.strerror}", file=sys.stderr)
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _attend(pid: int, timeout: float | None) -> int:
    """Pass signals on until it ends, then end what it has left."""
    deadline = None if timeout is None else time.monotonic() + timeout
    timed_out = False
    while True:
        left = 3600.0 if deadline is None else deadline - time.monotonic()
        told = _signal.sigtimedwait(_WATCHED, left) if left > 0 else None
        if told is None:
            if deadline is not None and time.monotonic() >= deadline:
                _end(_signal.SIGKILL if timed_out else _signal.SIGTERM)
                deadline = None if timed_out else time.monotonic() + _GRACE_SECONDS
                timed_out = True
        elif told.si_signo != _signal.SIGCHLD:
            try:
                os.killpg(pid, told.si_signo)
            except OSError:
                pass  # it is gone, as we shall hear
        status = _reap(pid)
        if status is not None:
            _bury()
            if timed_out:
                return TIMED_OUT
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _reap(pid: int) -> int | None:
    """The status of our command, if it has ended; orphans that came to us are buried."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


def _end(number: int) -> None:
    """Signal the whole family: the command, and what was orphaned to us."""
    from handrail.keeper import tree

    family = _children()
    for one in family:
        if number == _signal.SIGKILL:
            tree.kill(one, 0, set(family) - {one})
        else:
            tree.send(one, 0, set(), number)


def _bury() -> None:
    """The command has ended: nothing of it stays."""
    while _children():
        _end(_signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


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


def _given_back() -> list[int]:
    """Signals that the interpreter ignores or catches, and that a command is to find as usual."""
    ours = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD)
    return [int(number) for number in ours]
