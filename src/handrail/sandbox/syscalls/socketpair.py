"""Make socket pairs for a sandboxed command that asks for datagram pairs.

Half of a real datagram pair can send to any Unix socket of the host by its path, without a
``connect`` that could be checked.  So ``socketpair`` is reported for datagrams, and the caller gets
a SOCK_SEQPACKET pair: it keeps message borders too, but the kernel ignores any destination address.

A socket belongs to the network namespace it was made in, and reveals the interfaces there.  So for
a sandbox with its own network the pairs are made by a small program that has joined it
(``socketpair_program.py``); it starts with the first pair and lives as long as this object.

The kernel puts the fds into the caller's table, and their numbers are written into its memory.  If
a server dies in between, the caller has one or two spare fds; the next server starts again.
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
#: As in ``socketpair_program.py``, which does not import this package.
_BLOCKING, _NON_BLOCKING = b"b", b"n"


class SocketPairs:
    """Makes the socket pairs of one sandbox."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._maker = 0

    def make(self, listener: int, notice: notify.Notification) -> int:
        """Give the caller its pair; return the errno for it, or 0."""
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
        # Opened before checking that the caller still waits: later writes then go to that process's
        # memory, even if its pid is reused.
        memory = os.open(f"/proc/{notice.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        closing.callback(os.close, memory)
        network = os.open(f"/proc/{notice.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        closing.callback(os.close, network)
        _check_room(notice.pid)
        apart = not shares_our_network(notice.pid)
        if not notify.still_waits(listener, notice):
            raise ProcessLookupError(errno.ESRCH, "it has gone")
        _write(memory, place, _read(memory, place))  # fail before any fd is given away
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
        """Get a pair made in the caller's network namespace."""
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
            # Move both fds above 4 first: they may be 3 or 4, which dup2 would overwrite.
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
        """End the program that makes the pairs."""
        if self._line is not None:
            # This ends the program even if a forked child has a copy of the socket.
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
    """Raise EMFILE unless two fds fit: a first one could not be taken back."""
    try:
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        used = sum(int(number) < most for number in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return  # /proc/PID/fd is unreadable; the kernel will report EMFILE
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
