"""The registry of TCP ports on which handrail listens.

A listener enters this registry by being opened: its port stands here before the kernel lets the
first connection in.  The sandbox asks it, so that no command reaches a listener of handrail's
(``sandbox/syscalls/server_ports.py``): neither of the process that runs it, nor of another one of
this user, which would run commands without this sandbox.  For the others each port is a locked file
in the state home; the lock goes with its process.  Unix sockets need no entry: a sandboxed command
reaches only those that were made in its own sandbox.

Written by the event loop, read by the supervisor threads of sandboxes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

from handrail import private_places

#: In the state home: files named PORT.NETWORK.PROCESS.
_PLACE = "listeners"
_TRIES = 3
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_counts: dict[int, int] = {}
#: What other processes see of a port: the locked file and its name.
_marks: dict[int, tuple[int, str]] = {}


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
    if port not in _marks:
        _mark(port)
    return port


def leave(port: int) -> None:
    """Remove one listener on this port, which is closed."""
    left = _counts.get(port, 0) - 1
    if left > 0:
        _counts[port] = left
        return
    _counts.pop(port, None)
    file, name = _marks.pop(port, (-1, ""))
    if file >= 0:
        with contextlib.suppress(OSError):
            os.unlink(name)
        os.close(file)


def has(port: int) -> bool:
    """Whether a listener of handrail's has this port, at any address."""
    return port in _counts or _is_marked(port)


def _mark(port: int) -> None:
    """Record the port for other processes of this user; without a state home that is left out."""
    try:
        place = os.path.join(private_places.state_home(), _PLACE)
        directory = private_places.open_directory(place)
    except private_places.NotOurs:
        return
    name = f"{port}.{_network()}.{os.getpid()}"
    try:
        _sweep(place)
        # Another process may sweep between the two steps: then the file has no name any more.
        for _ in range(_TRIES):
            file = private_places.open_file(directory, name, os.O_RDWR | os.O_CREAT)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                _marks[port] = (file, os.path.join(place, name))
                return
            os.close(file)
    except OSError:
        return
    finally:
        os.close(directory)


def _is_marked(port: int) -> bool:
    """Whether another process of this user listens there, in this network namespace."""
    begin = f"{port}.{_network()}."
    # Others may have been started with other variables.
    homes = {*private_places.state_homes(), private_places.default_state_home() or ""}
    for home in homes - {""}:
        place = os.path.join(home, _PLACE)
        if any(name.startswith(begin) and _is_locked(place, name) for name in _names(place)):
            return True
    return False


def _sweep(place: str) -> None:
    """Remove the records of processes that were killed."""
    for name in _names(place):
        if not _is_locked(place, name):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(place, name))


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _is_locked(place: str, name: str) -> bool:
    try:
        file = os.open(os.path.join(place, name), _READ)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _network() -> int:
    """The network namespace of this process; others of the user may be in another one."""
    return os.stat("/proc/self/ns/net").st_ino
