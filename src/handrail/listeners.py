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
import time
from functools import lru_cache

from handrail import private_files, private_places

#: In the state home: files named PORT.NETWORK.PROCESS.
_PLACE = "listeners"
_TRIES = 3
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

#: A directory that was changed so recently is read again: a second change may have the same time,
#: on file systems that count it in seconds, or in twos.
_SETTLED_NS = 2_500_000_000

_counts: dict[int, int] = {}
#: The names in a directory, and when it was changed last.
_seen: dict[str, tuple[int, list[str]]] = {}
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


def ports() -> list[int]:
    """The ports of this process."""
    return list(_counts)


def has(port: int) -> bool:
    """Whether a listener of handrail's has this port, at any address."""
    return port in _counts or _is_marked(port)


def _mark(port: int) -> None:
    """Record the port for other processes of this user; without a state home that is left out."""
    try:
        place = os.path.join(private_places.state_home(), _PLACE)
        directory = private_files.open_directory(place)
    except private_files.NotOurs:
        return
    name = f"{port}.{_network()}.{os.getpid()}"
    try:
        _sweep(place)
        # Another process may sweep between the two steps: then the file has no name any more.
        for _ in range(_TRIES):
            file = private_files.open_file(directory, name, os.O_RDWR | os.O_CREAT)
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
    begin = f"{port}."
    variables = os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME")
    for place in _places(*variables, os.geteuid()):
        for name in _names(place):
            # Few have this port: only for them the kernel is asked where we are.
            if not name.startswith(begin) or not name.startswith(f"{begin}{_network()}."):
                continue
            if _is_locked(place, name):
                return True
    return False


@lru_cache(4)
def _places(state_home: str | None, home: str | None, uid: int) -> tuple[str, ...]:
    """The directories of records, with these variables and for this user.

    Others may have been started with other variables: the default one is always among them.
    """
    homes = {*private_places.state_homes(), private_places.default_state_home() or ""}
    return tuple(os.path.join(one, _PLACE) for one in homes - {""})


def _sweep(place: str) -> None:
    """Remove the records of processes that were killed."""
    for name in _names(place):
        if not _is_locked(place, name):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(place, name))


def _names(place: str) -> list[str]:
    """The names in a directory, which is read when it has changed; each connection asks."""
    try:
        changed = os.stat(place).st_mtime_ns
        known = _seen.get(place)
        if known is not None and known[0] == changed:
            return known[1]
        names = os.listdir(place)
    except OSError:
        return []
    if time.time_ns() - changed > _SETTLED_NS:
        _seen[place] = (changed, names)
    return names


def _is_locked(place: str, name: str) -> bool:
    try:
        file = os.open(os.path.join(place, name), _READ)
    except OSError:
        return False
    try:
        return private_files.is_locked(file)
    except OSError:
        return True  # no locks on this file system: all count as listening


def _network() -> int:
    """The network namespace of this process; others of the user may be in another one."""
    return os.stat("/proc/self/ns/net").st_ino
