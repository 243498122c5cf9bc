"""Pairs of datagram sockets for a command, which could misuse real ones.

Half of such a pair can send to any Unix socket of the host by its path, without a ``connect`` that
could be looked at.  So ``socketpair`` is announced for datagrams, and its caller gets a pair that
keeps the borders of messages as well but knows no address: SOCK_SEQPACKET, for which the kernel
ignores the destination of whatever is sent.

A socket belongs to the network namespace of whoever makes it, and tells its holder about the
interfaces there.  So in a sandbox with a network of its own the pairs are made by a small program
that has joined it (``socketpair_program.py``); it is started with the first one and lives as long
as this.

The descriptors are put into the caller's table by the kernel and their numbers written into its
memory.  A server that dies between these leaves the caller with a spare descriptor or two; the
next server begins anew.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from contextlib import ExitStack

from handrail.sandbox.syscalls import notify
from handrail.sandbox.syscalls.connect import shares_our_network

_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_KIND = 0xF
_NUMBERS = 8  # bytes: two int
_SECONDS = 10.0
_ENV = {"PATH": "/usr/bin:/bin"}
#: As in ``socketpair_program.py``, which is a program of its own.
_BLOCKING, _NON_BLOCKING = b"b", b"n"


class SocketPairs:
    """What makes the pairs of one sandbox."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._maker = 0

    def make(self, listener: int, notice: notify.Notification) -> int:
        """Give a caller its pair; the error it is told, or 0."""
        family, kind, protocol = (argument & 0xFFFFFFFF for argument in notice.arguments[:3])
        if family != socket.AF_UNIX:
            return errno.EPERM
        if kind & ~(_KIND | _FLAGS):
            return errno.EINVAL
        try:
            with ExitStack() as closing:
                self._give(closing, listener, notice, kind, protocol)
        except OSError as error:
            return error.errno or errno.EPERM
        return 0

    def _give(
        self,
        closing: ExitStack,
        listener: int,
        notice: notify.Notification,
        kind: int,
        protocol: int,
    ) -> None:
        place = notice.arguments[3]
        # Opened before it is asked whether the caller is still there: what is written later goes
        # into its memory, whoever has its number by then.
        memory = os.open(f"/proc/{notice.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        closing.callback(os.close, memory)
        network = os.open(f"/proc/{notice.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        closing.callback(os.close, network)
        _check_room(notice.pid)
        apart = not shares_our_network(notice.pid)
        if not notify.still_waits(listener, notice):
            raise ProcessLookupError(errno.ESRCH, "it has gone")
        _write(memory, place, _read(memory, place))  # before anything is given that it cannot find
        if protocol not in (0, socket.AF_UNIX):
            raise OSError(errno.EPROTONOSUPPORT, "no such protocol")
        blocking = not kind & socket.SOCK_NONBLOCK
        halves = self._fetch(network, blocking) if apart else _pair(blocking)
        for fd in halves:
            closing.callback(os.close, fd)
        close_on_exec = bool(kind & socket.SOCK_CLOEXEC)
        numbers = [
            notify.give_descriptor(listener, notice, fd, close_on_exec=close_on_exec)
            for fd in halves
        ]
        _write(memory, place, b"".join(n.to_bytes(4, sys.byteorder) for n in numbers))

    def _fetch(self, network: int, blocking: bool) -> list[int]:
        """A pair of the caller's network namespace."""
        if self._line is None:
            self._start(network)
        line = self._line
        assert line is not None  # noqa: S101 (just made)
        try:
            line.send(_BLOCKING if blocking else _NON_BLOCKING)
            answer, halves, _, _ = socket.recv_fds(line, 1, 2)
        except OSError:
            answer, halves = b"", []
        if not answer or len(halves) != 2:
            self.close()
            raise PermissionError(errno.EPERM, "pairs cannot be made here")
        return halves

    def _start(self, network: int) -> None:
        program = os.path.join(os.path.dirname(__file__), "socketpair_program.py")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            # High numbers first: 3 and 4 may be what is to be copied.
            with os.fdopen(_high(theirs.fileno()), "rb") as line, os.fdopen(_high(network)) as net:
                actions += [
                    (os.POSIX_SPAWN_DUP2, line.fileno(), 3),
                    (os.POSIX_SPAWN_DUP2, net.fileno(), 4),
                ]
                words = [sys.executable, "-I", "-S", "-B", program, "3", "4"]
                try:
                    self._maker = os.posix_spawn(words[0], words, _ENV, file_actions=actions)
                except OSError:
                    ours.close()
                    raise PermissionError(errno.EPERM, "pairs cannot be made here") from None
        ours.settimeout(_SECONDS)
        self._line = ours

    def close(self) -> None:
        """Nobody asks any more."""
        if self._line is not None:
            # Which ends the program, also when a forked child has a copy of the line.
            self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()
            self._line = None
            os.waitpid(self._maker, 0)


def _pair(blocking: bool) -> list[int]:
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for half in made:
        half.setblocking(blocking)
    return [half.detach() for half in made]


def _high(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _check_room(pid: int) -> None:
    """What was given cannot be taken back, so a second that does not fit must not be begun."""
    try:
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        used = sum(int(number) < most for number in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return  # it lets nobody look; then the kernel says it
    if most != resource.RLIM_INFINITY and most - used < 2:
        raise OSError(errno.EMFILE, "too many open files")


def _read(memory: int, place: int) -> bytes:
    try:
        return os.pread(memory, _NUMBERS, place)
    except (OSError, OverflowError):
        raise OSError(errno.EFAULT, "nothing is there") from None


def _write(memory: int, place: int, text: bytes) -> None:
    try:
        if os.pwrite(memory, text, place) == _NUMBERS:
            return
    except (OSError, OverflowError):
        pass
    raise OSError(errno.EFAULT, "nothing can be written there")
