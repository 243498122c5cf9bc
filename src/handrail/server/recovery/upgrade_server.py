"""Upgrade: one server hands over to the next; clients only see a reconnect.

The old server starts the new program with its listening socket, its lock and a socketpair.
The new one gets ready and says so; only then does the old one stop reading, give back the lease
and say *go*.  Clients that connect meanwhile wait in the backlog of the socket, which is never
closed; connected ones are told to resume.  If the new program does not get ready, the old server
continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handrail import own_code

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = logging.getLogger(__name__)

#: The variable with what the new program inherits; removed from its environment at once.
VARIABLE = "HANDRAIL_HANDOVER"
#: The signal that tells a server to hand over.
UPGRADE_SIGNAL = signal.SIGUSR2
#: How long the new program may take to get ready, and the old one to hand over.
_READY_SECONDS = 30.0
_FIRST = 3
_READY, _GO = b"ready", b"go"
#: In the state directory: why the last upgrade was refused.
_REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a server inherits from the previous one."""

    control: socket.socket
    listener: socket.socket
    lock: int
    path: str

    async def take(self, loop: AbstractEventLoop) -> bool:
        """Say that we are ready and wait for *go*; False when it never comes."""
        from asyncio import timeout  # not before the keeper has been started

        self.control.setblocking(False)
        try:
            async with timeout(_READY_SECONDS):
                await loop.sock_sendall(self.control, _READY)
                return await loop.sock_recv(self.control, 16) == _GO
        except (TimeoutError, OSError):
            return False
        finally:
            self.control.close()


def inherited() -> Inheritance | None:
    """Take what the previous server passed on from the environment, once."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    for fd in range(_FIRST, _FIRST + 3):
        os.set_inheritable(fd, False)
    return Inheritance(
        control=socket.socket(fileno=_FIRST),
        listener=socket.socket(fileno=_FIRST + 1),
        lock=_FIRST + 2,
        path=json.loads(given)["path"],
    )


class Upgrade:
    """The old server's half."""

    def __init__(self, path: str, lock: int, listener: Callable[[], int]) -> None:
        self._path = path
        self._lock = lock
        self._listener = listener
        self._under_way = False

    async def prepare(self, loop: AbstractEventLoop) -> socket.socket | None:
        """Start the new program; returns the socket on which it waits for *go*, or None."""
        from asyncio import timeout, to_thread

        if self._under_way:
            return None
        self._under_way = True
        ours, theirs = socket.socketpair()
        try:
            pid = self._start(theirs.fileno())
        except OSError as error:
            ours.close()
            self._refuse(f"the new server does not start: {error.strerror}")
            return None
        finally:
            theirs.close()
        ours.setblocking(False)
        try:
            async with timeout(_READY_SECONDS):
                if await loop.sock_recv(ours, 16) == _READY:
                    return ours
        except (TimeoutError, OSError):
            pass  # the next server has failed; this one goes on
        ours.close()
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            await to_thread(os.waitpid, pid, 0)
        self._refuse("the new server did not get ready; what it said is in the log of this one")
        return None

    def _refuse(self, reason: str) -> None:
        """Log why the upgrade did not happen, and leave it for the command that asked."""
        log.error("%s; this server runs on", reason)
        self._under_way = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        name = os.path.join(self._path, _REFUSAL)
        with contextlib.suppress(OSError), open(os.open(name, flags, 0o600), "w") as file:
            file.write(reason)

    def _start(self, control: int) -> int:
        # Moved away from the fd numbers they will be given.
        passed = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)
            for fd in (control, self._listener(), self._lock)
        ]
        actions = [(os.POSIX_SPAWN_DUP2, fd, _FIRST + n) for n, fd in enumerate(passed)]
        environment = {**own_code.environment(), VARIABLE: json.dumps({"path": self._path})}
        # -P: commands may write the current directory, which ``python -m`` would search.
        safe = () if sys.flags.safe_path else ("-P",)
        argv = [sys.executable, *safe, *sys.orig_argv[1:]]
        try:
            return os.posix_spawn(
                sys.executable, argv, environment, file_actions=actions, setsigmask=()
            )
        finally:
            for fd in passed:
                os.close(fd)


def refusal(path: str) -> str | None:
    """Why the server of this directory did not hand over; read once."""
    name = os.path.join(path, _REFUSAL)
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            reason = file.read()
        os.unlink(name)
    except OSError:
        return None
    return reason


def go(control: socket.socket) -> None:
    """Tell the new server to begin: we touch nothing any more."""
    with contextlib.suppress(OSError):
        control.send(_GO)
    control.close()
