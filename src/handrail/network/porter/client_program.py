"""Which program of a sandbox has the other end of a connection, for questions and refusals.

The kernel names the socket's inode, asked through a socket that was made in the sandbox; the
process that holds it is looked for among those of the same network.  Evidence for people: nothing
is decided by it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Executor

from handrail.network.inner_sockets import maker
from handrail.transport.peer_uid import PeerUids, UnknownOwner

#: Pid and command name; None where they cannot be told.
Program = tuple[int | None, str | None]
UNKNOWN: Program = (None, None)
#: A command that is refused in a loop must not cause a search of /proc each time.
_MOST_A_SECOND = 20


class ClientPrograms:
    """The programs of one sandbox."""

    def __init__(self, network: int, threads: Executor) -> None:
        self._network = network
        self._threads = threads
        self._peers: PeerUids | None = None
        self._busy = False
        self._closed = False
        self._second = 0
        self._count = 0

    async def find(self, conn: socket.socket) -> Program:
        """The program at the other end; unknown while another search runs."""
        loop = asyncio.get_running_loop()
        second = int(loop.time())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._busy or self._closed or self._count > _MOST_A_SECOND:
            return UNKNOWN
        self._busy = True
        try:
            return await asyncio.shield(loop.run_in_executor(self._threads, self._search, conn))
        finally:
            self._busy = False

    def _search(self, conn: socket.socket) -> Program:
        try:
            if self._peers is None:
                (netlink,) = maker.make(self._network, ["diag"])
                netlink.setblocking(False)
                self._peers = PeerUids(netlink)
            return _holder(self._peers.inode(conn), os.fstat(self._network).st_ino)
        except (OSError, UnknownOwner):
            return UNKNOWN

    def close(self) -> None:
        """Search no more."""
        self._closed = True
        if self._peers is not None and not self._busy:
            self._peers.close()


def _holder(inode: int, network: int) -> Program:
    """The process in that network which holds the socket, the newest first."""
    wanted = f"socket:[{inode}]"
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int, reverse=True):
        try:
            if os.stat(f"/proc/{name}/ns/net").st_ino != network:
                continue
            for fd in os.listdir(f"/proc/{name}/fd"):
                if os.readlink(f"/proc/{name}/fd/{fd}") == wanted:
                    with open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as comm:
                        return int(name), comm.read().rstrip("\n")
        except OSError:
            continue
    return UNKNOWN
