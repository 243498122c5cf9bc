"""Make sockets that belong to the network namespace of a sandbox.

A socket belongs to the namespace it was made in, whichever process uses it: a listening socket made
inside is accepted on outside, an unconnected one connects to what listens inside.  A short program
(``stub.py``; where that cannot run ``program.py``) joins the namespace, makes them and ends.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache

from handrail import passed_fds
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.network.inner_sockets import stub

_SECONDS = 10.0
_ENV = {"PATH": "/usr/bin:/bin"}
#: Descriptors in the program.
_LINE, _NETWORK = 3, 4


def make(network: int, kinds: Sequence[str]) -> list[socket.socket]:
    """Make one socket of each kind in the namespace of fd ``network``; raises OSError.

    Kinds: ``tcp``, ``tcp6``, ``diag`` (netlink), ``listen:PORT``, ``udp:PORT``, both on 127.0.0.1
    or with an address behind it (``listen:800:127.0.0.2``).  Blocks for a millisecond, or 15 where
    it takes Python.  The sockets do not block themselves; ``pair``, which is two (SOCK_SEQPACKET),
    does, and ``pair-nonblock`` does not.
    """
    wanted = stub.count(kinds)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            pid = _start(theirs.fileno(), network, kinds)
        try:
            ours.settimeout(_SECONDS)
            answer, fds = passed_fds.receive(ours, 16, wanted)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sockets = [socket.socket(fileno=fd) for fd in fds]
    if answer == stub.WORD and len(sockets) == wanted:
        return sockets
    for one in sockets:
        one.close()
    number = code if code > 0 else errno.EPERM
    raise OSError(number, f"no socket in the sandbox's network: {os.strerror(number)}")


def _start(line: int, network: int, kinds: Sequence[str]) -> int:
    # Moved above those numbers first: they may be 3 or 4, which dup2 would overwrite.
    opened = [_high(line), _high(network)]
    actions = [
        (os.POSIX_SPAWN_DUP2, opened[0], _LINE),
        (os.POSIX_SPAWN_DUP2, opened[1], _NETWORK),
    ]
    try:
        if seccomp_spawn.startable():
            opened.append(_stub(tuple(kinds)))
            words = [f"/proc/self/fd/{opened[-1]}"]
        else:
            program = os.path.join(os.path.dirname(__file__), "program.py")
            words = [sys.executable, "-I", "-S", "-B", program, str(_LINE), str(_NETWORK), *kinds]
        return os.posix_spawn(words[0], words, _ENV, file_actions=actions)
    finally:
        for fd in opened:
            os.close(fd)


def _stub(kinds: tuple[str, ...]) -> int:
    """A descriptor of the program as a file in memory."""
    fd = seccomp_spawn.executable("handrail-sockets", _program(kinds))
    try:
        return _high(fd)
    finally:
        os.close(fd)


@lru_cache(16)
def _program(kinds: tuple[str, ...]) -> bytes:
    return stub.elf(_LINE, _NETWORK, kinds)


def _high(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
