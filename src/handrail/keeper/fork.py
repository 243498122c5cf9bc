"""Start a child that needs something before it executes its program.

Limits, a group, a filter that announces its calls: ``posix_spawn`` can set none of these.  Where a
small program cannot do it instead (``limits/group_spawn.py``, ``seccomp/spawn.py``), the
child is forked, sets them on itself and then executes its program: there is no moment in which
the program runs without them, and the process that starts it is never under them.  It costs one or
two milliseconds more, which only those children pay.  A fork is safe here: the other thread of the
keeper sleeps and holds no lock, and a command line has one thread before its command runs.
"""

from __future__ import annotations

import _socket  # the C parts: for a single command on the command line the others take too long
import fcntl
import os
import resource

from handrail.keeper.seccomp import install as seccomp_install
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.keeper.seccomp import stub as seccomp_stub

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterable, Mapping, Sequence

    from handrail.keeper.seccomp.spawn import Actions
else:
    import _signal

EINVAL, _ENOMEM = 22, 12


class Before:
    """What a child needs before its program runs."""

    __slots__ = ("code", "doors", "limits")

    def __init__(
        self,
        doors: Sequence[str] = (),
        limits: Mapping[int, tuple[int, int]] | None = None,
        code: bytes = b"",
    ) -> None:
        #: Files by which it enters its groups.
        self.doors = doors
        #: Soft and hard value by kind.
        self.limits = limits or {}
        #: The filter that announces its calls (``seccomp/spawn.py``).
        self.code = code


def start(
    program: bytes,
    argv: list[bytes] | tuple[bytes, ...],
    env: Mapping[bytes, bytes],
    actions: Actions,
    signals: Iterable[int],
    before: Before,
) -> tuple[int, int]:
    """Start a child in a session of its own; returns its pid and its listener or -1.

    Raises OSError as ``posix_spawn`` does.
    """
    told, tell = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    listener = -1
    try:
        tell = _out_of_the_way(tell, actions)
        pid = os.fork()
        if pid == 0:
            _become(program, argv, env, actions, signals, before, tell)
        tell.close()
        # An error, or nothing once the program is there; before that perhaps the listener.
        said, listener = seccomp_spawn.receive(told)
        if listener >= 0:
            said = told.recv(16)
    finally:
        told.close()
        tell.close()
    if said or (before.code and listener < 0):
        if listener >= 0:
            os.close(listener)
        os.waitpid(pid, 0)
        number = int(said or EINVAL)
        raise OSError(number, os.strerror(number))
    return pid, listener


def _out_of_the_way(sock: _socket.socket, actions: Actions) -> _socket.socket:
    """Duplicate the socket to an fd above all fds that the child is given."""
    given = (action[2] if len(action) == 3 else action[1] for action in actions)
    first = 1 + max(given, default=2)
    with_number = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, first)
    sock.close()
    return _socket.socket(fileno=with_number)


def _become(
    program: bytes,
    argv: list[bytes] | tuple[bytes, ...],
    env: Mapping[bytes, bytes],
    actions: Actions,
    signals: Iterable[int],
    before: Before,
    tell: _socket.socket,
) -> None:
    """What the child does; it never returns."""
    number = 0
    try:
        _signal.set_wakeup_fd(-1)
        os.setsid()
        for door in before.doors:
            _enter(door)
        for what, *rest in actions:
            if what == os.POSIX_SPAWN_OPEN:
                fd, path, flags, mode = rest
                opened = os.open(path, flags, mode)  # type: ignore[arg-type]
                os.dup2(opened, fd)  # type: ignore[arg-type]
                if opened != fd:
                    os.close(opened)
            else:
                os.dup2(*rest)
        for one in signals:
            _signal.signal(one, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        if before.code:
            listener = seccomp_install.install(before.code)
            rights = listener.to_bytes(4, "little")
            tell.sendmsg((seccomp_stub.WORD,), ((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights),))
            os.close(listener)
        # Last: the parent may have more descriptors open than the child may.
        for kind, value in before.limits.items():
            resource.setrlimit(kind, value)
        os.execve(program, argv, env)
    except OSError as error:
        number = error.errno or 0
    except MemoryError:
        number = _ENOMEM  # less address space than this step itself needs
    finally:
        try:
            tell.send(b"%d" % (number or EINVAL))
        finally:
            os._exit(127)


def _enter(door: str) -> None:
    fd = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def try_door(door: str) -> bool:
    """Whether a process of the keeper may enter this group."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _enter(door)
            code = 0
        except OSError:
            pass  # the exit code says so
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
