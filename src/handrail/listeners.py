"""The TCP ports on which this process itself accepts requests.

Opening a listener enters it into this registry: its port is here before the kernel accepts the
first connection.  The sandbox checks it, so that no command reaches a listener of the process that
runs it (``sandbox/syscalls/server_ports.py``).  Unix sockets need no entry: a sandboxed command
reaches only those that were made in its own sandbox.

Written by the event loop, read by the supervisor threads of sandboxes.
"""

from __future__ import annotations

import socket

_counts: dict[int, int] = {}


def open_tcp(host: str, port: int, backlog: int) -> socket.socket:
    """Open a socket that listens on ``host:port`` (0: any free port); raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        enter(sock)
    except BaseException:
        sock.close()
        raise
    try:
        sock.listen(backlog)
    except BaseException:
        leave(sock.getsockname()[1])
        sock.close()
        raise
    return sock


def enter(sock: socket.socket) -> int:
    """Add a bound socket, such as one that another server has handed over; return its port."""
    port = int(sock.getsockname()[1])
    _counts[port] = _counts.get(port, 0) + 1
    return port


def leave(port: int) -> None:
    """Remove one listener on this port, which is closed."""
    left = _counts.get(port, 0) - 1
    if left > 0:
        _counts[port] = left
    else:
        _counts.pop(port, None)


def has(port: int) -> bool:
    """Whether a listener of this process has this port, at any address."""
    return port in _counts
