"""Start a child under a seccomp filter that has a listener for its syscalls.

seccomp's user notification: the kernel stops a call that the filter names, and the process with the
listener reads what was to be done and says how it went.  A filter is inherited by everything the
child starts and cannot be taken off, so it has to be there before the child becomes its program;
the listener is the only way to answer, so it goes to the parent.  ``start`` lets a tiny program do
that (``stub.py``); a child that is forked for other reasons does it itself
(``install.py``).

Nothing but C modules is imported: ``handrail run`` needs this before its command starts.
"""

from __future__ import annotations

import _socket
import fcntl
import os

from handrail.keeper.seccomp import MACHINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    #: As ``posix_spawn`` takes them.
    Actions = Sequence[tuple[int, ...] | tuple[int, int, bytes, int, int]]

#: The number under which a starter passes the filter's program; the child does not get it.
PROGRAM = -1
#: The same for one whose program installs its filter itself, and sends the listener by this fd.
ITSELF, ITS_LINE = -2, 13
_MFD_EXEC = 0x10  # since Linux 6.3
_EINVAL = 22
#: Whether it can be used, once known.
_startable: list[bool] = []
#: Preludes by filter, number and groups; a plan has the same number each time.
_preludes: dict[tuple[bytes, int, int], int] = {}
_MOST_PRELUDES = 16


def startable() -> bool:
    """Whether ``start`` works here: on this architecture, and where memory may be executed."""
    if not _startable:
        _startable.append(os.uname().machine in MACHINES and not _memory_is_no_program())
    return _startable[0]


def _memory_is_no_program() -> bool:
    try:
        os.close(os.memfd_create("handrail-prelude", os.MFD_CLOEXEC))
    except OSError:
        return True  # refused here: what takes its place may lie where nothing can be executed
    try:
        fd = os.open("/proc/sys/vm/memfd_noexec", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # before Linux 6.3 nothing forbids it
    try:
        return os.read(fd, 8).strip() == b"2"
    finally:
        os.close(fd)


def start(
    argv: list[bytes] | tuple[bytes, ...],
    env: Mapping[bytes, bytes],
    actions: Actions,
    signals: Iterable[int],
    code: bytes,
    starter: Callable[..., int] | None = None,
    made: Callable[[bytes, int], bytes] | None = None,
) -> tuple[int, int]:
    """Start a child in a session of its own under the filter; returns its pid and its listener.

    ``made``: makes the program that is run before, for the filter and the number of its line; one
    with a tag, by which the family of the child can be found, is used once.
    ``argv[0]`` is the program's path.  ``starter`` is used instead of ``posix_spawn``
    (``spawn_thread.py``).  Raises OSError as ``posix_spawn`` does, but for a program
    that cannot be executed: its exit code is the errno then.
    """
    # Above every number that the child is given, and known to its prelude.
    number = 1 + _highest(actions)
    prelude = prelude_of(code, number) if made is None else _file(made(code, number), number)
    try:
        return start_itself(prelude, argv, env, actions, signals, number, starter)
    finally:
        if made is not None:
            os.close(prelude)


def start_itself(
    program: bytes | int,
    argv: list[bytes] | tuple[bytes, ...],
    env: Mapping[bytes, bytes],
    actions: Actions,
    signals: Iterable[int],
    line: int = ITS_LINE,
    starter: Callable[..., int] | None = None,
) -> tuple[int, int]:
    """Start a program that installs its filter and sends the listener by the fd ``line``.

    ``program``: its path, or an fd of it above the numbers that the child is given.
    """
    told, tell = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    above = -1
    try:
        least = 1 + max(line, _highest(actions))
        above = fcntl.fcntl(tell.fileno(), fcntl.F_DUPFD_CLOEXEC, least)
        actions = (*actions, (os.POSIX_SPAWN_DUP2, above, line))
        if starter is not None:
            pid = starter(program, argv, env, actions, signals)
        else:
            pid = os.posix_spawn(
                b"/proc/self/fd/%d" % program if isinstance(program, int) else program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=signals,
            )
        os.close(above)
        above = -1
        tell.close()
        _, listener = receive(told)
    finally:
        if above >= 0:
            os.close(above)
        tell.close()
        told.close()
    if listener < 0:
        error = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        error = error if error > 0 else _EINVAL
        raise OSError(error, os.strerror(error))
    return pid, listener


def _highest(actions: Actions) -> int:
    """The highest number that a child is given."""
    return max((one[2] if len(one) == 3 else one[1] for one in actions), default=2)


def receive(line: _socket.socket) -> tuple[bytes, int]:
    """Receive the child's message, and the listener that comes with it or -1."""
    said, rights, _, _ = line.recvmsg(16, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
    for _, _, data in rights:
        return said, int.from_bytes(data[:4], "little")
    return said, -1  # it has ended, or no descriptor was free for it


def prelude_of(code: bytes, number: int, doors: int = 0) -> int:
    """An fd of the program without a tag, kept for the next child; raises OSError."""
    which = code, number, doors
    fd = _preludes.get(which, -1)
    if fd >= 0:
        return fd
    while len(_preludes) >= _MOST_PRELUDES:
        os.close(_preludes.pop(next(iter(_preludes))))
    from handrail.keeper.seccomp import stub  # a command has one that was made before

    fd = _preludes[which] = _file(stub.elf(code, number, doors=doors), number + doors)
    return fd


def _file(program: bytes, above: int) -> int:
    """A new fd of the program, above all fds that a child is given."""
    made = executable("handrail-prelude", program)
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, above + 1)
    finally:
        os.close(made)


def executable(name: str, program: bytes, flags: int = 0) -> int:
    """A file in memory with this program, which can be executed; raises OSError."""
    try:
        made = os.memfd_create(name, os.MFD_CLOEXEC | _MFD_EXEC | flags)
    except OSError:  # a kernel that does not know the flag
        made = os.memfd_create(name, os.MFD_CLOEXEC | flags)
    try:
        os.write(made, program)
    except BaseException:
        os.close(made)
        raise
    return made
