"""Admit only processes of our own user, and root's, on a loopback listener.

A loopback address keeps other machines out and lets every user of this one in.  So the kernel is
asked for the user of the other end, right after the connection was accepted and before a byte of it
is read.  A peer of another user, or of an unknown one, is closed without an answer and counts
nowhere.  Peers that came over a network are left to authentication.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from handrail.server.auth.exposure import is_overflow_user
from handrail.transport.connection_limits import RefusalLog
from handrail.transport.peer_uid import PeerUids, UnknownOwner, is_loopback


def loopback_gate(*, any_user: bool) -> LoopbackUsers | None:
    """The check of a listener on TCP; None where every user of this machine is let in.

    As the overflow user a server starts only with a token, so the token decides.
    """
    return None if any_user or is_overflow_user() else LoopbackUsers(RefusalLog().warn)


class LoopbackUsers:
    """The check of one listener; ``refused`` is called with the reason for each refused peer."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        self._owners = PeerUids()
        self._refused = refused
        self._closed = False

    def close(self) -> None:
        """Admit no further peer."""
        self._closed = True

    def before(self, make: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.Protocol]:
        """Wrap a protocol factory so that it is called for admitted peers only."""
        return lambda: _Entrance(self, make)

    def admits(self, conn: socket.socket) -> bool:
        """Whether the peer of this accepted connection may be served."""
        if self._closed:
            return False  # the kernel accepted it before the listener was closed
        problem = self._problem(conn)
        if problem is not None:
            self._refused(problem)
        return problem is None

    def _problem(self, conn: socket.socket) -> str | None:
        try:
            if not is_loopback(conn):
                return None
            uid = self._owners.uid(conn)
        except OSError:
            return "a peer on loopback was gone before it could be looked at"
        except UnknownOwner as error:
            return f"the user of a peer on loopback cannot be told: {error}"
        finally:
            # Opened again by the next peer (8 µs): a listener at rest holds no netlink socket.
            self._owners.close()
        if uid in (os.geteuid(), 0):
            return None
        return (
            f"a process of user {uid} connected on loopback, which is for user {os.geteuid()} and"
            " root; --any-user lets every user of this machine in"
        )


class _Entrance(asyncio.Protocol):
    """Holds a new connection until it is admitted."""

    def __init__(self, gate: LoopbackUsers, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._gate = gate
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without inheriting it.
        transport = cast("asyncio.Transport", transport)
        if not self._is_admitted(transport):
            transport.abort()
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _is_admitted(self, transport: asyncio.Transport) -> bool:
        given = transport.get_extra_info("socket")
        try:
            # The loop's object duplicates the fd for each call; this one borrows it.
            conn = socket.socket(given.family, socket.SOCK_STREAM, 0, fileno=given.fileno())
        except (OSError, ValueError):
            return False  # closed meanwhile
        try:
            return self._gate.admits(conn)
        finally:
            conn.detach()
