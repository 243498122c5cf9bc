"""Sockets of the host that a command could talk to.

A read-only mount does not stop ``connect``: the kernel asks for write permission of the socket's
inode and nothing else.  So every socket that is bound when a command starts is covered by name,
and the directories in which a session keeps its own are covered as a whole, which also holds for
those that are bound later.  Abstract names are bound to the network namespace.
"""

from __future__ import annotations

import os
import stat
import time

_TABLE = "/proc/net/unix"
_LISTENS = 0x10000
_DATAGRAMS = b"0002"
#: For how long the same table is taken to mean the same paths.
_SECONDS = 1.0
_last: tuple[list[tuple[bytes, bytes]], float, tuple[bytes, ...]] = ([], 0.0, ())


def host_sockets() -> tuple[bytes, ...]:
    """The paths of all sockets that have a name in the file system, as far as they exist."""
    global _last
    named = _named()
    if named == _last[0] and time.monotonic() < _last[1]:
        return _last[2]
    found = {name for _, name in named if name.startswith(b"/")}
    relative = {inode: name for inode, name in named if not name.startswith(b"/")}
    if relative:
        found |= _absolute(relative)
    groups = {os.getegid(), *os.getgroups()}
    reached = tuple(sorted(p for p in map(os.path.realpath, found) if _open_to_us(p, groups)))
    _last = (named, time.monotonic() + _SECONDS, reached)
    return reached


def _named() -> list[tuple[bytes, bytes]]:
    """Number and name of every socket that can be talked to by a name in the file system."""
    try:
        with open(_TABLE, "rb") as table:
            lines = table.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        # Num RefCount Protocol Flags Type St Inode Path
        parts = line.split(None, 7)
        if len(parts) < 8 or parts[7].startswith((b"@", b"Path")):
            continue
        # Others are a client's: nobody can talk to it by name.
        if int(parts[3], 16) & _LISTENS or parts[4] == _DATAGRAMS:
            found.append((parts[6], parts[7]))
    return found


def session_directories() -> tuple[bytes, ...]:
    """Directories that hold nothing but a session's sockets."""
    places = [f"/run/user/{os.getuid()}".encode(), b"/tmp/.X11-unix", b"/tmp/.ICE-unix"]
    given = os.environb.get(b"XDG_RUNTIME_DIR", b"")
    if given.startswith(b"/run/"):
        places.append(os.path.normpath(given))
    return tuple(sorted({place for place in places if os.path.isdir(place)}))


def cover_for(path: bytes) -> bytes:
    """What to cover for a socket: its directory if that holds nothing else, else itself.

    A directory does not vanish as easily as a socket does.
    """
    parent = os.path.dirname(path)
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    return path
    except OSError:
        return path
    return parent


def _open_to_us(path: bytes, groups: set[int]) -> bool:
    """Whether a process with our ids and no capabilities could connect, or make it so."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    if not stat.S_ISSOCK(status.st_mode):
        return False
    if status.st_uid == os.geteuid():
        return True
    return bool(status.st_mode & (0o020 if status.st_gid in groups else 0o002))


def _absolute(relative: dict[bytes, bytes]) -> set[bytes]:
    """A socket bound by a relative name is where its owner's directory was; look who has it."""
    found: set[bytes] = set()
    wanted = {b"socket:[%b]" % inode: name for inode, name in relative.items()}
    for pid in os.listdir(b"/proc"):
        if not pid.isdigit():
            continue
        place = b"/proc/%b" % pid
        try:
            for fd in os.listdir(place + b"/fd"):
                name = wanted.get(os.readlink(place + b"/fd/" + fd))
                if name is not None:
                    found.add(os.path.join(os.readlink(place + b"/cwd"), name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found
