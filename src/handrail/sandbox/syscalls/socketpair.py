"""Make socket pairs for a sandboxed command that asks for datagram pairs.

Half of a real datagram pair can send to any Unix socket of the host by its path, without a
``connect`` that could be checked.  So ``socketpair`` is reported for datagrams, and the caller gets
a SOCK_SEQPACKET pair: it keeps message borders too, but the kernel ignores any destination address.

A socket belongs to the network namespace it was made in, and reveals the interfaces there.  So for
a sandbox with its own network the pairs are made in there (``network/inner_sockets``).

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


def give_pair(listener: int, notice: notify.Notification) -> int:
    """Give the caller its pair; return the errno for it, or 0."""
    family, kind, protocol = (argument & 0xFFFFFFFF for argument in notice.arguments[:3])
    if family != socket.AF_UNIX:
        return errno.EPERM
    if kind & ~(_KIND | _FLAGS):
        return errno.EINVAL
    try:
        with ExitStack() as closing:
            _give(closing, listener, notice, kind, protocol)
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


def _give(
    closing: ExitStack, listener: int, notice: notify.Notification, kind: int, protocol: int
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
    nonblock = kind & socket.SOCK_NONBLOCK
    if apart:
        from handrail.network.inner_sockets import maker  # few commands ask for one

        halves = maker.make(network, ["pair-nonblock" if nonblock else "pair"])
    else:
        halves = list(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | nonblock))
    for half in halves:
        closing.enter_context(half)
    close_on_exec = bool(kind & socket.SOCK_CLOEXEC)
    numbers = [
        notify.give_descriptor(listener, notice, half.fileno(), close_on_exec=close_on_exec)
        for half in halves
    ]
    _write(memory, place, b"".join(n.to_bytes(4, sys.byteorder) for n in numbers))


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
