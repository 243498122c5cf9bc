"""Make sockets in a network namespace; started as a file with ``FD NETWORK KIND...``.

Joins the namespace of fd NETWORK, makes one socket for each KIND and sends all of them over the
socket FD: ``tcp`` and ``tcp6`` unconnected, ``diag`` to ask for sockets, ``listen:PORT`` listening
and ``udp:PORT`` bound, on 127.0.0.1 or an address that follows as ``:ADDRESS``; ``pair`` and
``pair-nonblock`` both halves of a pair.  It exits with the errno of what fails.  A separate
program, because only a process with a single thread may join the user namespace in which an
ordinary user has the right to it.  Standard library only.
"""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import ctypes
import fcntl
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701
_PR_SET_DUMPABLE = 4
_IP_FREEBIND = 15
_BACKLOG = 1024
_HOST = "127.0.0.1"
_EPERM = 1
_SOCK_DIAG = 4

_libc = ctypes.CDLL(None)


def _joined(network: int) -> bool:
    # A sandboxed process may learn our pid: it must not be able to ptrace us.
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if _libc.setns(network, _NEW_NETWORK) == 0:
        return True
    owner = fcntl.ioctl(network, _GET_USER_NAMESPACE)
    if _libc.setns(owner, _NEW_USER) < 0:
        return False
    return bool(_libc.setns(network, _NEW_NETWORK) == 0)


def _made(kind: str) -> tuple[_socket.socket, ...]:
    name, _, place = kind.partition(":")
    port, _, address = place.partition(":")
    if name == "diag":
        return (_socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _SOCK_DIAG),)
    if name.startswith("pair"):
        style = _socket.SOCK_SEQPACKET | (_socket.SOCK_NONBLOCK if name != "pair" else 0)
        return _socket.socketpair(_socket.AF_UNIX, style)
    family = _socket.AF_INET6 if name == "tcp6" else _socket.AF_INET
    made = _socket.socket(family, _socket.SOCK_DGRAM if name == "udp" else _socket.SOCK_STREAM)
    made.setblocking(False)
    if port:
        # lo may not be up yet; the address is then not there yet.
        made.setsockopt(_socket.IPPROTO_IP, _IP_FREEBIND, 1)
        if name == "listen":
            made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        made.bind((address or _HOST, int(port)))
        if name == "listen":
            made.listen(_BACKLOG)
    return (made,)


def main(line: int, network: int, kinds: list[str]) -> int:
    """Make the sockets and send them; the errno of what fails."""
    answer = _socket.socket(fileno=line)
    try:
        if not _joined(network):
            raise OSError(_EPERM, "no right to the namespace")
        made = [one for kind in kinds for one in _made(kind)]
    except OSError as error:
        return error.errno or _EPERM
    numbers = b"".join(one.fileno().to_bytes(4, sys.byteorder) for one in made)
    answer.sendmsg([b"s"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
