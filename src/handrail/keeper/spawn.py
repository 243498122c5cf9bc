"""Start one child.

``posix_spawn`` runs no Python between fork and exec and shares the memory of the keeper until
the exec, so its cost does not grow with the keeper.  What it cannot set itself (directory,
resource limits) is set on the keeper and put back: its other threads do nothing meanwhile.

A terminal is opened *by path in the child*, after ``setsid``: opening it there makes it the
controlling terminal, with no code of ours in the child.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import signal
import socket
import struct

from handrail import terminal_size
from handrail.keeper import RLIMIT_LOCKS, fork, hardening, messages, null_device, waiting_stub
from handrail.keeper.limits import group_spawn
from handrail.keeper.limits.rlimits import of_process
from handrail.keeper.seccomp import spawn as seccomp_spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from handrail.keeper.spawn_thread import SpawnThread

#: The names under which descriptors are held; also their order in SPAWNED.
PIPE_NAMES = (b"stdout", b"stderr")
STDIN_NAMES = (b"stdout", b"stderr", b"stdin")
PTY_NAMES = (b"pty",)
#: Behind them, of a child whose calls are announced: where to hear of them and to answer.
LISTENER_NAME = b"listener"

_ALL_SIGNALS = sorted(int(s) for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
#: Descriptors that are opened on the way beside those the child gets.
_SPARE = 8
#: From this number of a descriptor on there are many (``spawn_thread.py``): 512 children have two
#: each, and there are some others.
MANY = 1088
_TIOCGPTN = 0x80045430
_TIOCSPTLCK = 0x40045431


class Started:
    """A running child: its pid and the keeper's descriptors of it, by name."""

    __slots__ = ("apart", "fds", "line", "names", "pid")

    def __init__(
        self,
        pid: int,
        names: tuple[bytes, ...],
        fds: list[int],
        line: socket.socket | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.apart = apart  # it may be the child of another thread
        self.pid = pid
        self.names = names
        self.fds = fds
        self.line = line  # to a child that waits for its command


class Limits:
    """The keeper's own limit on open files is raised; children get the one we started with."""

    def __init__(self) -> None:
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.locks = resource.getrlimit(RLIMIT_LOCKS)
        self.core = hardening.core_limit()

    def set_own(self, mark: int) -> None:
        """Raise our limit on open files, and bear the tag by which a server finds us too."""
        self.tag(mark)
        soft, hard = self.files
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            self._raised = (hard, hard)
        else:
            self._raised = self.files

    def tag(self, mark: int) -> None:
        """Bear a tag, as every process that is started from now on."""
        if self._allows(mark):
            resource.setrlimit(RLIMIT_LOCKS, (mark, self.locks[1]))

    def of_child(self, mark: int) -> dict[int, tuple[int, int]]:
        """The limits of a child: soft and hard value by kind."""
        found = {}
        if self._raised != self.files:
            found[resource.RLIMIT_NOFILE] = self.files
        if self.core[0]:
            found[resource.RLIMIT_CORE] = self.core
        if self._allows(mark):
            found[RLIMIT_LOCKS] = (mark, self.locks[1])
        return found

    def _allows(self, mark: int) -> bool:
        """With a lower hard limit than our tag descendants are found by parentage alone."""
        return self.locks[1] == resource.RLIM_INFINITY or mark <= self.locks[1]

    def for_us(self) -> None:
        if self.core[0]:
            resource.setrlimit(resource.RLIMIT_CORE, (0, self.core[1]))
        if self._raised != self.files:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._raised)


def start(
    asked: messages.Spawn,
    mark: int,
    cwd: int,
    passed: dict[int, int],
    limits: Limits,
    doors: list[str],
) -> Started:
    """Start one child in directory ``cwd``; that of the keeper itself is the root.

    ``passed``: number in the child (3 or more) -> descriptor of ours, which stays ours; -1 is
    the program by which its calls are announced, -2 says that the child's program has it
    (``seccomp/spawn.py``).
    ``doors`` are the files by which it enters its cgroups (``limits/group_spawn.py``);
    ``fork.py`` starts those that have limits of their own.

    Raises OSError with the name of the step that failed in ``filename2``.
    """
    names: tuple[bytes, ...]
    code, itself = b"", seccomp_spawn.ITSELF in passed
    mode, program, argv, env = asked.mode, asked.program, asked.argv, asked.env
    own_limits = of_process(asked.limits) if asked.limits else {}
    first: tuple[int, ...] | tuple[int, int, bytes, int, int]
    actions: list[tuple[int, ...] | tuple[int, int, bytes, int, int]]
    ours: list[int] = []
    theirs: list[int] = []
    line: socket.socket | None = None
    try:
        if asked.line:
            # It has no name, and the child inherits its end: no other process can come by it.
            line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            line.setblocking(False)
            theirs.append(far.detach())
            passed = {**passed, asked.line: theirs[-1]}
        if mode in (messages.MODE_PTY, messages.MODE_PTY_LOOSE):
            names = PTY_NAMES
            master, path = _terminal((asked.rows, asked.cols))
            ours.append(master)
            flags = os.O_RDWR if mode == messages.MODE_PTY else os.O_RDWR | os.O_NOCTTY
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, path, flags, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
        else:
            out, out_child = os.pipe2(os.O_CLOEXEC)
            ours.append(out)
            theirs.append(out_child)
            err, err_child = os.pipe2(os.O_CLOEXEC)
            ours.append(err)
            theirs.append(err_child)
            if mode == messages.MODE_STDIN:
                names = STDIN_NAMES
                in_child, inp = os.pipe2(os.O_CLOEXEC)
                ours.append(inp)
                theirs.append(in_child)
                first = (os.POSIX_SPAWN_DUP2, in_child, 0)
            else:
                names = PIPE_NAMES
                theirs.append(null_device.opened())
                first = (os.POSIX_SPAWN_DUP2, theirs[-1], 0)
            actions = [
                first,
                (os.POSIX_SPAWN_DUP2, out_child, 1),
                (os.POSIX_SPAWN_DUP2, err_child, 2),
            ]
        for number, fd in passed.items():
            if number == seccomp_spawn.PROGRAM:
                code = os.pread(fd, os.fstat(fd).st_size, 0)
                continue
            if number == seccomp_spawn.ITSELF:
                continue
            # Out of the way of the numbers that are being given.
            theirs.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(passed) + 1))
            actions.append((os.POSIX_SPAWN_DUP2, theirs[-1], number))
        for fd in ours:
            os.set_blocking(fd, False)
        os.fchdir(cwd)
        before = fork.Before(doors, limits.of_child(mark) | own_limits, code)
        # posix_spawn takes no descriptor beyond the limit that the child is to have.
        highest = max([*ours, *theirs])
        beyond = 0 <= limits.files[0] <= highest + _SPARE
        thread = _thread() if beyond or highest >= MANY else None
        try:
            forked = bool(own_limits) or (beyond and thread is None)
            starter = _Starter(before, limits, thread)
            begin = functools.partial(_begin, before=before, starter=starter, forked=forked)
            if itself:
                pid, listener = seccomp_spawn.start_itself(
                    program, argv, env, actions, _ALL_SIGNALS, starter=lambda *it: begin(*it)[0]
                )
            else:
                pid, listener = begin(program, argv, env, actions, _ALL_SIGNALS)
            if listener >= 0:
                names += (LISTENER_NAME,)
                ours.append(listener)
        finally:
            os.chdir("/")
    except BaseException:
        for fd in ours:
            os.close(fd)
        if line is not None:
            line.close()
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Started(pid, names, ours, line, apart=thread is not None)


def use(asked: messages.Use, line: socket.socket, terminal: int | None) -> None:
    """Let a child that waits become a command, once; raises OSError, and the child is no use then.

    ``terminal``: the keeper's descriptor of the child's, if it has one.
    """
    limits = of_process(asked.limits) if asked.limits else {}
    packet = waiting_stub.request(
        asked.argv, asked.env, asked.cwd, limits, terminal=terminal is not None
    )
    if len(packet) > waiting_stub.LONGEST:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    if terminal is not None:
        terminal_size.resize(terminal, asked.rows, asked.cols)
    line.send(waiting_stub.with_covers(asked.covers, packet))


def _begin(
    program: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    actions: seccomp_spawn.Actions,
    signals: Iterable[int],
    *,
    before: fork.Before,
    starter: _Starter,
    forked: bool,
) -> tuple[int, int]:
    """Start one child, if it can be without a fork of the interpreter; its pid and listener."""
    if forked:
        return fork.start(program, argv, env, actions, signals, before)
    if before.doors:
        return group_spawn.start(program, argv, env, actions, signals, before, starter)
    if not before.code:
        return starter(program, argv, env, actions, signals), -1
    if argv[0] != program or not seccomp_spawn.startable():
        return fork.start(program, argv, env, actions, signals, before)
    return seccomp_spawn.start(argv, env, actions, signals, before.code, starter=starter)


class _Starter:
    """``posix_spawn`` with the child's limits set on the keeper for that moment.

    Not longer: what a start opens beside it is beyond the child's limit where there are many.
    """

    __slots__ = ("_kinds", "_limits", "_thread")

    def __init__(self, before: fork.Before, limits: Limits, thread: SpawnThread | None) -> None:
        self._kinds = before.limits
        self._limits = limits
        self._thread = thread

    def __call__(
        self,
        program: bytes | int,
        argv: list[bytes] | tuple[bytes, ...],
        env: Mapping[bytes, bytes],
        actions: seccomp_spawn.Actions,
        signals: Iterable[int],
    ) -> int:
        try:
            for kind, value in self._kinds.items():
                resource.setrlimit(kind, value)
            if self._thread is not None:
                return self._thread.start(program, argv, env, actions, signals)
            if isinstance(program, int):
                program = b"/proc/self/fd/%d" % program
            return os.posix_spawn(
                program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=signals,
            )
        finally:
            self._limits.for_us()


def _thread() -> SpawnThread | None:
    from handrail.keeper import spawn_thread  # most keepers never have so many

    return spawn_thread.get()


def _terminal(size: tuple[int, int]) -> tuple[int, bytes]:
    master = os.open(b"/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        number = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]
        terminal_size.resize(master, *size)
    except BaseException:
        os.close(master)
        raise
    return master, b"/dev/pts/%d" % number
