"""Make socket pairs in a network namespace: ``python -I -S -B socketpair_program.py FD NETWORK``.

Joins the namespace of fd NETWORK, and answers each byte from the socket FD with both halves of a
new pair.  A separate program, because only a process with a single thread may join the user
namespace in which an ordinary user has the right to it.  Standard library only.
"""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import ctypes
import fcntl
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701
_PR_SET_DUMPABLE = 4
_NON_BLOCKING = b"n"

_libc = ctypes.CDLL(None)


def _joined(network: int) -> bool:
    # SO_PEERCRED tells sandboxed processes our pid: they must not be able to ptrace us.
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if _libc.setns(network, _NEW_NETWORK) == 0:
        return True
    owner = fcntl.ioctl(network, _GET_USER_NAMESPACE)
    if _libc.setns(owner, _NEW_USER) < 0:
        return False
    return bool(_libc.setns(network, _NEW_NETWORK) == 0)


def main(line: int, network: int) -> int:
    """Answer requests until the socket is closed."""
    if not _joined(network):
        return 1
    asking = _socket.socket(fileno=line)
    while asked := asking.recv(1):
        halves = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        for half in halves:
            half.setblocking(asked != _NON_BLOCKING)
        numbers = b"".join(half.fileno().to_bytes(4, sys.byteorder) for half in halves)
        asking.sendmsg([b"p"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
        for half in halves:
            half.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
