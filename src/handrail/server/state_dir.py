"""Where a server and its keeper find each other again.

One directory, one lock, one keeper.  A directory that was named is taken or refused; without a
name the first one of the user's own that nobody holds is taken, so that several servers on one
machine do not meet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from handrail.errors import UsageError
from handrail.process.keeper_program import KeeperHandle, start_keeper

_MOST_SERVERS = 4096
_SOCKET = "keeper.sock"


class StateDir:
    """A directory that is ours until we end."""

    def __init__(self, path: str, fd: int, lock: int) -> None:
        self.path = path
        self._fd = fd
        self._lock = lock

    @property
    def _socket(self) -> str:
        # By descriptor: a socket's name is limited to 107 bytes, a directory's is not.
        return f"/proc/self/fd/{self._fd}/{_SOCKET}"

    def keeper(self, orphan_ttl: float) -> KeeperHandle:
        """The keeper of this directory: the one that is alive, or a new one."""
        return self._find() or self._start(orphan_ttl)

    def _find(self) -> KeeperHandle | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self._socket)
        except OSError:
            sock.close()
            return None
        # Its pid is in its WELCOME; SO_PEERCRED names the server that made the socket.
        return KeeperHandle(sock, 0, found=True)

    def _start(self, orphan_ttl: float) -> KeeperHandle:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=self._fd)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            before = os.umask(0o177)
            try:
                listener.bind(self._socket)
            finally:
                os.umask(before)
            listener.listen(16)
            return start_keeper(
                listener=listener,
                orphan_ttl=orphan_ttl,
                log=os.path.join(self.path, "keeper.log"),
            )

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)
        os.close(self._fd)


def claim(path: str | None) -> StateDir:
    """Take the directory that was named, or one of our own; raises UsageError."""
    if path is not None:
        taken = _take(path)
        if taken is None:
            raise UsageError(
                f"the state directory {path} is in use by another server; stop it, or give"
                " this one another --state-dir"
            )
        return taken
    base = _base()
    for number in range(_MOST_SERVERS):
        taken = _take(os.path.join(base, str(number)))
        if taken is not None:
            return taken
    raise UsageError(f"{_MOST_SERVERS} servers are running under {base}; stop some of them")


def _base() -> str:
    from platformdirs import user_state_path  # only when nothing was named

    return str(user_state_path("handrail") / "servers")


def _take(path: str) -> StateDir | None:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"cannot use the state directory {path}: {error.strerror}; give --state-dir"
        ) from None
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(
                f"the state directory {path} must belong to us alone; chmod 700 it or name another"
            )
        lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=fd)
    except BaseException:
        os.close(fd)
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        os.close(fd)
        return None
    return StateDir(path, fd, lock)
