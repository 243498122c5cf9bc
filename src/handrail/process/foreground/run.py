"""Run one command as a direct child of this process, for a program that does nothing else.

It does for one command what the keeper does for many: it adopts what is orphaned, passes
signals on, and ends all of it at the end.  The command gets our own stdin, stdout and stderr,
so nothing has to be copied; or a terminal of its own (``pty_relay.py``); a sandboxed one has
files copied (``stream_copies.py``).  Only C modules of the standard library are imported before the
command runs; ``signal`` alone would cost a third of an interpreter's start.
"""

from __future__ import annotations

import os
import time

from handrail import exit_codes, start_bundle
from handrail.keeper import RLIMIT_LOCKS, TAG_BYTES
from handrail.keeper.proc_children import own_orphans
from handrail.process import PASSED_SIGNALS, TIMEOUT_GRACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping
    from typing import Protocol, TypedDict

    from handrail.process.foreground.pty_relay import PtyRelay
    from handrail.process.foreground.stream_copies import StreamCopies

    class _Beginning(TypedDict):
        setsid: bool
        setsigmask: tuple[int, ...]
        setsigdef: tuple[int, ...]

    class Running(Protocol):
        """The processes that bubblewrap has around a command."""

        def attend_alone(self, listener: int) -> None: ...
        def signal(self, number: int, *, tree: bool) -> int: ...
        def wait(self) -> None: ...

    class Sandboxed(Protocol):
        """A command as its sandbox starts it (``handrail.sandbox.sandboxed_command``)."""

        @property
        def argv(self) -> tuple[bytes, ...]: ...
        @property
        def env(self) -> Mapping[bytes, bytes]: ...
        @property
        def passed(self) -> tuple[tuple[int, int], ...]: ...
        @property
        def running(self) -> Running | None: ...
        def sent(self) -> None: ...
        def abandon(self) -> None: ...
else:
    import _signal  # the C part: ``signal`` itself would import enum

_PR_SET_CHILD_SUBREAPER = 36
_STOP, _GO = _signal.SIGTSTP, _signal.SIGCONT
_WATCHED = (*PASSED_SIGNALS, _signal.SIGCHLD, _signal.SIGWINCH)
#: Signals that the interpreter ignores or catches, and that a command is to find as usual.
_GIVEN_BACK = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD)
#: null, zero, full, random, urandom.
_HARMLESS = tuple(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))
#: How a command begins: in a session of its own, with signals as a shell would leave them.
_AS_USUAL: _Beginning = {"setsid": True, "setsigmask": (), "setsigdef": _GIVEN_BACK}


def own_terminal() -> PtyRelay | None:
    """A terminal for the command, if our stdin and stdout are a terminal."""
    if not (os.isatty(0) and os.isatty(1)) or _in_background():
        return None
    from handrail.process.foreground.pty_relay import PtyRelay

    return PtyRelay()


class Foreground:
    """The one command of this process."""

    def __init__(self, terminal: PtyRelay | None = None) -> None:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored ones cannot be waited for
        jobs = () if _signal.getsignal(_STOP) is _signal.SIG_IGN else (_STOP, _GO)
        self._watched = (*_WATCHED, *jobs)
        _signal.pthread_sigmask(_signal.SIG_BLOCK, self._watched)
        #: The fds that this process was started with, but for its streams.
        self.foreign = keep_to_ourselves()  # what is opened from now on is ours anyway
        self.terminal = terminal
        #: Whether what is typed to our terminal is for the command.  Its session is not ours, so
        #: the kernel does not keep it from reading what is typed to a shell.
        self._typing = os.isatty(0) and not _in_background()
        self._pid = 0
        self._inside: Running | None = None
        self._copies: StreamCopies | None = None
        self._listener = -1
        #: By which the crash guard finds what the command has started; see ``RLIMIT_LOCKS``.
        self.tag = int.from_bytes(os.urandom(4), "big") << 24
        #: A child of ours that is not of the command's family.
        self.stranger = 0

    @property
    def pid(self) -> int:
        """The pid of the command, or of its wrapper."""
        return self._pid

    def start(self, argv: list[str], env: Mapping[str, str]) -> None:
        """Start a command, found in our own PATH; raises OSError."""
        _become_subreaper()
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
        if self.terminal is not None:
            # Opened in the child, which leads a session: so it is the one that controls it.
            path = self.terminal.path
            actions.append((os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0))
            actions += [(os.POSIX_SPAWN_DUP2, 0, fd) for fd in self.terminal.streams[1:]]
        elif self._no_input:
            actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        with _tagged(self.tag):
            self._pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, **_AS_USUAL)

    def start_sandboxed(self, command: Sandboxed, copies: StreamCopies | None) -> None:
        """Start a sandboxed command from the root directory; raises OSError."""
        self._inside = command.running
        self._copies = copies
        passed, terminal = command.passed, None
        try:
            if self._inside is None:
                _become_subreaper()
                terminal = self.terminal
            elif self.terminal is not None:
                passed += tuple((fd, self.terminal.theirs) for fd in self.terminal.streams)
            passed += () if copies is None else tuple(copies.passed)
            os.chdir("/")
            no_input = self.terminal is None and self._no_input
            self._pid, self._listener = start_passing(
                command.argv, command.env, passed, self.tag, no_input=no_input, terminal=terminal
            )
        except BaseException:
            command.abandon()
            raise
        command.sent()
        if copies is not None:
            copies.sent()

    @property
    def own_streams(self) -> tuple[int, ...]:
        """The fds that a command has from this process, and not from a terminal of its own."""
        theirs = () if self.terminal is None else self.terminal.streams
        return tuple(number for number in range(3) if number not in theirs)

    def attend(self, timeout: float | None) -> int:
        """Pass signals on until it ends, then end its descendants; returns its exit code.

        128+N for one that signal N has ended, 124 after ``timeout`` seconds.
        """
        if self._inside is not None and self._listener >= 0:
            self._inside.attend_alone(self._listener)  # which takes a thread: no fork follows
        if self._copies is not None:
            self._copies.begin()
        if self.terminal is not None:
            self.terminal.begin()
        try:
            return self._wait(timeout)
        finally:
            if self.terminal is not None:
                self.terminal.finish()
            if self._copies is not None:
                self._copies.finish()

    @property
    def tail(self) -> bytes:
        """The end of what the command has written to stderr or its terminal, where it is known."""
        if self.terminal is not None and 2 in self.terminal.streams:
            return self.terminal.tail
        return b"" if self._copies is None else self._copies.tail

    def kill(self) -> None:
        """End a wrapper that has not started the command, and what it has started.

        A bubblewrap that is killed before its child has gone on leaves it behind: it would wait for
        ever, with our streams.
        """
        from handrail.process.foreground.crash_guard import end_family

        end_family(self._pid, self.tag)
        self.give_up()

    def give_up(self) -> None:
        """Wait for the end of a wrapper that could not start the command."""
        self._wait(None)
        if self.terminal is not None:
            self.terminal.spill()
        if self._copies is not None:
            self._copies.spill()
        if self._listener >= 0:
            os.close(self._listener)

    def _wait(self, timeout: float | None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        timed_out = False
        while True:
            left = 3600.0 if deadline is None else deadline - time.monotonic()
            told = _signal.sigtimedwait(self._watched, left) if left > 0 else None
            if told is not None and told.si_signo != _signal.SIGCHLD:
                self._answer(told.si_signo)
            elif told is None and deadline is not None and time.monotonic() >= deadline:
                self._send(_signal.SIGKILL if timed_out else _signal.SIGTERM)
                deadline = None if timed_out else time.monotonic() + TIMEOUT_GRACE
                timed_out = True
            status = self._reap()
            if status is not None:
                self._bury()
                return exit_codes.TIMED_OUT if timed_out else exit_codes.of_status(status)

    @property
    def _no_input(self) -> bool:
        return os.isatty(0) and not self._typing

    def _answer(self, number: int) -> None:
        if number in PASSED_SIGNALS:
            self._pass_on(number)
        elif number == _signal.SIGWINCH and self.terminal is not None:
            self.terminal.resize()
        elif number == _STOP:
            self._stop()
        elif number == _GO:
            self._go()

    def _stop(self) -> None:
        """Stop the command and this process, and continue both together.

        By a signal that it cannot miss: the kernel drops the terminal's own for a group without
        a shell above it.
        """
        self._send(_signal.SIGSTOP)
        self._send(_signal.SIGSTOP)  # a process that was being forked meanwhile
        if self.terminal is not None:
            self.terminal.give_back()
        self._stand(_STOP)
        self._go()

    def _go(self) -> None:
        """Continue the command; one with the terminal only in the foreground, where it may read."""
        while self._typing and _in_background():
            if _signal.sigpending().intersection(PASSED_SIGNALS):
                break  # there is something to tell it
            if not self._stand(_signal.SIGTTIN):
                break  # no shell is there that could continue us, so we were not stopped
        else:
            if self.terminal is not None:
                self.terminal.take()
                self.terminal.resize()
        self._send(_GO)

    def _stand(self, number: int) -> bool:
        """Stop by this signal until continued; returns whether that happened."""
        _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (number,))  # here
        _signal.pthread_sigmask(_signal.SIG_BLOCK, self._watched)
        return _signal.sigtimedwait((_GO,), 0) is not None

    def _pass_on(self, number: int) -> None:
        if self._inside is not None:
            self._inside.signal(number, tree=False)
            return
        try:
            os.killpg(self._pid, number)
        except OSError:
            pass  # it is gone, as we shall hear

    def _reap(self) -> int | None:
        """The status of the command, if it has ended; reaps orphans that came to us."""
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

    def _send(self, number: int) -> None:
        """Signal the command, its descendants, and the orphans that came to this process."""
        if self._inside is not None and number != _signal.SIGKILL:
            # What holds it would die of a signal that is meant for it.
            self._inside.signal(number, tree=True)
            return
        from handrail.keeper import tree

        family = self._family()
        for one in family:
            if number == _signal.SIGKILL:
                tree.kill(one, 0, {*family, self.stranger} - {one})
            else:
                tree.send(one, 0, set(), number)

    def _bury(self) -> None:
        """After the command's end: end everything that it has left."""
        if self._inside is not None:
            self._inside.wait()  # the kernel has ended all of them, or does it just now
            return
        while self._family():
            self._send(_signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _family(self) -> list[int]:
        return [pid for pid in own_orphans() if pid != self.stranger]


def is_plain(number: int) -> bool:
    """Whether a stream of this process is only a stream, or closed.

    Pipes, sockets and terminals are, and devices to which whatever is done changes nothing.
    """
    try:
        status = os.fstat(number)
    except OSError:
        return True
    kind = status.st_mode & 0o170000
    if kind == 0o020000:  # a character device
        return status.st_rdev in _HARMLESS or os.isatty(number)
    return kind in (0o010000, 0o140000)


def is_line(number: int) -> bool:
    """Whether a stream of this process is a pipe or a socket that can be written."""
    try:
        return os.fstat(number).st_mode & 0o170000 in (0o010000, 0o140000)
    except OSError:
        return False


def start_passing(
    argv: tuple[bytes, ...],
    env: Mapping[bytes, bytes],
    passed: tuple[tuple[int, int], ...],
    tag: int,
    *,
    no_input: bool,
    terminal: PtyRelay | None,
) -> tuple[int, int]:
    """Start a program in a session of its own; returns its pid, and its listener or -1.

    ``passed`` are (number in the child, descriptor here), as in ``keeper/spawn.py``; all its
    descendants inherit the ``tag``.
    ``no_input``: it has nothing to read.  ``terminal``: the one that controls it.
    Raises OSError.
    """
    import fcntl

    from handrail.keeper.seccomp import spawn as seccomp_spawn

    code = b""
    spare: list[int] = []
    actions: list[tuple[int, ...] | tuple[int, int, bytes, int, int]] = []
    if no_input:
        actions.append((os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0))
    if terminal is not None:
        # Opened in the child, which leads a session: so it is the one that controls it.
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.fsencode(terminal.path), os.O_RDWR, 0))
        actions += [(os.POSIX_SPAWN_DUP2, 0, fd) for fd in terminal.streams[1:]]
    first = max((number for number, _ in passed), default=2) + 1
    try:
        for number, fd in passed:
            if number == seccomp_spawn.PROGRAM:
                code = os.pread(fd, os.fstat(fd).st_size, 0)
                continue
            # Out of the way of the numbers that are being given.
            spare.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first))
            actions.append((os.POSIX_SPAWN_DUP2, spare[-1], number))
        if code and seccomp_spawn.startable():
            return seccomp_spawn.start(argv, env, actions, _GIVEN_BACK, code, made=_tagging(tag))
        with _tagged(tag):
            if code:
                from handrail.keeper import fork

                return fork.start(argv[0], argv, env, actions, _GIVEN_BACK, fork.Before(code=code))
            return os.posix_spawn(argv[0], argv, env, file_actions=actions, **_AS_USUAL), -1
    finally:
        for fd in spare:
            os.close(fd)


def _tagging(tag: int) -> Callable[[bytes, int], bytes]:
    """Makes the program that sets the tag of a family and installs a filter (``stub.py``)."""

    def compute(code: bytes, line: int) -> bytes:
        from handrail.keeper.seccomp import stub  # most starts have it made

        return stub.elf(code, line, 1)

    def make(code: bytes, line: int) -> bytes:
        made = start_bundle.computed(("prelude", code, line), lambda: compute(code, line))
        return made[:-TAG_BYTES] + tag.to_bytes(TAG_BYTES, "little")

    return make


class _tagged:  # noqa: N801 (contextlib takes a while to import)
    """Has this process the tag that a child is to inherit, for as long as it is started."""

    def __init__(self, tag: int) -> None:
        import resource  # half a millisecond: most sandboxed commands get theirs elsewhere

        self._limits = resource
        self._before = resource.getrlimit(RLIMIT_LOCKS)
        try:
            resource.setrlimit(RLIMIT_LOCKS, (tag, self._before[1]))
        except ValueError:
            pass  # the hard limit is lower: then what it starts is found by parentage alone

    def __enter__(self) -> None:
        """Nothing to do: the constructor has set the tag."""

    def __exit__(self, *_: object) -> None:
        self._limits.setrlimit(RLIMIT_LOCKS, self._before)


def _become_subreaper() -> None:
    """Become the parent of the command's orphans, so that they can be ended with it."""
    try:
        # The module below ctypes: half a millisecond instead of four.
        from _ctypes import call_function, dlopen, dlsym

        prctl = dlsym(dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    except ImportError:
        from handrail.keeper.main import become_subreaper

        become_subreaper()


def keep_to_ourselves() -> list[int]:
    """Give the command the fds 0, 1 and 2 and no other; returns those it would have had."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2:
            try:
                if os.get_inheritable(fd):
                    os.set_inheritable(fd, False)
                    found.append(fd)
            except OSError:
                pass  # the listing itself
    return found


def _in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False  # not the terminal of our session: it controls no jobs
