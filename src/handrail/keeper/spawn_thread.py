"""Start children from a thread that has few descriptors, when the keeper has many.

A child begins with a copy of its parent's table of descriptors, which its program's start closes
again: 0.1 us for each, so that with 6,000 children held a start took three times as long.  And the
C library refuses those whose numbers are beyond the child's own limit.  This thread has a table of
its own (``unshare``), to which the few that a child gets are sent by a socket; directory, limits
and children are those of the whole process.  Handing over costs 0.05 ms, so it is for many only.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from handrail.keeper.seccomp.spawn import Actions

_CLONE_FILES = 0x400
_TABLE = "/proc/thread-self/fd"
_MOST = 253

#: The only one, once there were many; False: it cannot be had here.
_started: SpawnThread | bool | None = None


def get() -> SpawnThread | None:
    """The thread; None where there can be none, or none now."""
    global _started
    if _started is False:
        return None
    if not isinstance(_started, SpawnThread):
        thread = SpawnThread()
        try:
            _started = thread if thread.begin() else False
        except RuntimeError:  # its children may have taken all the threads there are
            thread.close()
    return _started if isinstance(_started, SpawnThread) else None


class _Asked:
    """One start."""

    def __init__(
        self,
        program: bytes | int,
        argv: list[bytes] | tuple[bytes, ...],
        env: Mapping[bytes, bytes],
        actions: Actions,
        signals: Iterable[int],
    ) -> None:
        self.program = program
        self.argv = argv
        self.env = env
        self.actions = actions
        self.signals = signals
        sources = [int(one[1]) for one in actions if _passes(one)]
        if isinstance(program, int):
            sources.append(program)
        #: The place of each descriptor among those that are sent.
        self.places = {fd: index for index, fd in enumerate(dict.fromkeys(sources))}


class SpawnThread:
    """The thread, and the socket by which it gets descriptors."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked: _Asked | None = None
        self._answer: int | BaseException = 0

    def begin(self) -> bool:
        """Start it; False where a thread may not have a table of its own."""
        # It gets no signal: the descriptor that tells the keeper of one does not see those.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            threading.Thread(target=self._run, daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        able = self._ours.recv(1) == b"1"
        self._theirs.close()  # in this table
        if not able:
            self._ours.close()
        return able

    def close(self) -> None:
        """Close the socket of one that was not started."""
        self._ours.close()
        self._theirs.close()

    def start(
        self,
        program: bytes | int,
        argv: list[bytes] | tuple[bytes, ...],
        env: Mapping[bytes, bytes],
        actions: Actions,
        signals: Iterable[int],
    ) -> int:
        """Start a child in a session of its own, as ``posix_spawn``; ``program``: or its fd."""
        self._asked = _Asked(program, argv, env, actions, signals)
        rights = array.array("i", self._asked.places)
        self._ours.sendmsg((b"1",), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
        if not self._ours.recv(1):
            raise OSError(errno.EPIPE, "the thread that starts children has ended")
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def _run(self) -> None:
        line = self._theirs.fileno()
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FILES) != 0:
            os.write(line, b"0")
            return
        try:
            # By name: where the kernel closes no range, 2^30 numbers would be tried one by one.
            inherited = [int(name) for name in os.listdir(_TABLE)]
        except OSError:
            os.write(line, b"0")
            return
        for fd in inherited:
            if fd != line:
                with contextlib.suppress(OSError):  # that of the list itself
                    os.close(fd)
        os.write(line, b"1")
        sock = socket.socket(fileno=line)
        while True:
            flags = socket.MSG_CMSG_CLOEXEC
            said, rights, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(_MOST * 4), flags)
            if not said:
                return
            fds = array.array("i")
            for _, _, data in rights:
                fds.frombytes(data)
            try:
                self._answer = _start(self._asked, fds)
            except BaseException as error:  # noqa: BLE001 (raised by the thread that asked)
                self._answer = error
            finally:
                for fd in fds:
                    os.close(fd)
            os.write(line, b"1")


def _start(asked: _Asked | None, fds: array.array[int]) -> int:
    """Start what was asked for with these descriptors, whose numbers are changed."""
    assert asked is not None  # noqa: S101 (set before the descriptors are sent)
    program, places = asked.program, asked.places
    above = 1 + max((one[2] if len(one) == 3 else one[1] for one in asked.actions), default=2)
    for index, fd in enumerate(fds):
        # Out of the way of the numbers that are being given.
        fds[index] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)
        os.close(fd)
    if isinstance(program, int):
        program = b"/proc/self/fd/%d" % fds[places[program]]
    return os.posix_spawn(
        program,
        asked.argv,
        asked.env,
        file_actions=[
            (one[0], fds[places[one[1]]], *one[2:]) if _passes(one) else one
            for one in asked.actions
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=asked.signals,
    )


def _passes(action: tuple[object, ...]) -> bool:
    """Whether a descriptor of the parent is duplicated; those of a terminal are the child's own."""
    return action[0] == os.POSIX_SPAWN_DUP2 and action[1] != 0
