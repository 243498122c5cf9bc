"""The only way out of a managed sandbox: a listening socket that lives in its network namespace.

A socket belongs to the namespace it was made in, whichever process accepts on it.  So a small
program joins the namespace (``inner_sockets``), makes the proxy's listener and the resolver's
socket there, hands them out and ends; the porter accepts on them from outside.  No process and no
file inside leads out, and nothing inside can take the address first: ports below 1024 need a
capability that the sandbox does not have.

Every ``connect`` of a sandboxed process is reported to the supervisor, which opens the way before
it makes the first one that needs it.  A command that never connects pays nothing.
"""

from __future__ import annotations

import os
import sys
import threading

from handrail.network.variables import INNER_HOST, INNER_PORT, RESOLVER_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from socket import socket

#: Names under which the keeper holds the sockets, and in which they are passed on.
LISTENER, RESOLVER, NAMESPACE = b"network", b"resolver", b"netns"
_PORTS = frozenset((INNER_PORT, RESOLVER_PORT))
_FAMILY_4, _FAMILY_6 = 2, 10
_FAMILIES = frozenset((_FAMILY_4, _FAMILY_6))
#: How the sockets are asked for that are made inside.
_WANTED = {RESOLVER: f"udp:{RESOLVER_PORT}", LISTENER: f"listen:{INNER_PORT}"}
#: An IPv4 address in IPv6, up to its first byte.
_MAPPED = bytes(10) + b"\xff\xff"
#: How an address of the proxy begins.
_PROXY = _FAMILY_4.to_bytes(2, sys.byteorder) + INNER_PORT.to_bytes(2, "big")
#: In ``struct tcp_info`` of a listener: connections that wait to be accepted, and how many can.
_TCP, _TCP_INFO, _WAITING_AT, _MOST_AT, _INFO_SIZE = 6, 11, 24, 28, 32
#: Delay before a keeper that was too busy is asked again.
_BUSY_SECONDS = 0.01
#: How long the event loop may take to have the keeper hold the sockets.
_SECONDS = 10.0


class WayOut:
    """Opens the way of one sandbox, once; owns what it is made of."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        names: tuple[bytes, ...],
        opened: Callable[[dict[bytes, int]], bool],
        held: dict[bytes, int] | None = None,
        address: str = INNER_HOST,
    ) -> None:
        """``names``: what it is made of.  ``opened`` is called on the loop with the descriptors,
        by name: the caller has the keeper hold them and the porter use them, and says False if it
        has to be called again.  ``held``: those of a server before us, which may have died before
        the keeper had all of them.  ``address``: in a network that several sandboxes share, each
        has its own, so that its listener names the command.
        """
        self._address = address
        self._loop = loop
        self._names = names
        self._opened = opened
        self._fds: dict[bytes, int] = dict(held or {})
        #: The listener, as soon as it was asked how many connections wait.
        self._listener: socket | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        #: The sandbox has ended, or another server has taken over.
        self.closed = False
        if self.is_open:
            self._done.set()

    @property
    def is_open(self) -> bool:
        """Whether all of it has been made."""
        return len(self._fds) == len(self._names)

    @property
    def fds(self) -> dict[bytes, int]:
        """The descriptors by name; not all of them while the way is not open.  They stay ours."""
        return self._fds

    def is_wanted(self, address: bytes) -> bool:
        """Whether a ``connect`` to this socket address needs the way to be open."""
        if self._done.is_set() or len(address) < 4:
            return False
        family, port = int.from_bytes(address[:2], sys.byteorder), address[2:4]
        return family in _FAMILIES and int.from_bytes(port, "big") in _PORTS

    def led(self, address: bytes) -> bytes:
        """The socket address to connect to instead of this one.

        In a shared network every way out is at an address of its own, and the one that programs
        know leads to theirs; so does the address of another command's.
        """
        if self._address == INNER_HOST or len(address) < 8:
            return address
        family, port = int.from_bytes(address[:2], sys.byteorder), address[2:4]
        if int.from_bytes(port, "big") not in _PORTS or family not in _FAMILIES:
            return address
        at = 4 if family == _FAMILY_4 else 20
        if family != _FAMILY_4 and address[8:20] != _MAPPED:
            return address
        host = address[at : at + 4]
        if host[:1] != b"\x7f" and host != bytes(4):
            return address
        return address[:at] + bytes(map(int, self._address.split("."))) + address[at + 4 :]

    def answers_at_once(self, address: bytes) -> bool:
        """Whether a ``connect`` to this socket address ends without waiting for any process.

        It does on loopback while the listener has room.  Nothing else fills it: all connections
        to it are made by the thread that asks.
        """
        if address[:4] != _PROXY or address[4:5] != b"\x7f":
            return False
        with self._lock:
            has_room = self._has_room()
        if self.closed:
            self.close()  # the event loop has left our copies to us
        return has_room

    def _has_room(self) -> bool:
        """Whether fewer connections wait to be accepted than can."""
        if self._listener is None:
            if LISTENER not in self._fds:
                return False
            from socket import socket

            self._listener = socket(fileno=os.dup(self._fds[LISTENER]))
        info = self._listener.getsockopt(_TCP, _TCP_INFO, _INFO_SIZE)
        waiting, most = (
            int.from_bytes(info[at : at + 4], sys.byteorder) for at in (_WAITING_AT, _MOST_AT)
        )
        return waiting < most

    def open(self, pid: int, still_waits: Callable[[], bool]) -> None:
        """Open it for the sandbox of a process whose call waits, in any thread; raises OSError.

        Returns when the keeper holds the sockets: what connects from now on outlives this server.
        """
        with self._lock:
            if not self.is_open and not self.closed:
                self._make(pid, still_waits)
                self._loop.call_soon_threadsafe(self.hand_over)
        if self.closed:
            self.close()  # meanwhile, and what was just made is left to us
        if not self._done.wait(_SECONDS):
            raise TimeoutError("the keeper does not take the sockets of a managed network")

    def _make(self, pid: int, still_waits: Callable[[], bool]) -> None:
        """Make what is missing of it, in the namespace of that process."""
        from handrail.network.inner_sockets import maker

        made: dict[bytes, int] = {}
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The pid was that process's while its namespace was opened.
            ours = os.stat("/proc/self/ns/net").st_ino
            if not still_waits() or os.fstat(namespace).st_ino == ours:
                raise ProcessLookupError("it has gone")
            missing = [name for name in _WANTED if name not in self._fds]
            kinds = [f"{_WANTED[name]}:{self._address}" for name in missing]
            sockets = maker.make(namespace, kinds)
            made = {name: sock.detach() for name, sock in zip(missing, sockets, strict=True)}
        finally:
            if NAMESPACE in self._fds or not made:
                os.close(namespace)
            else:
                made[NAMESPACE] = namespace
        # The listener last: with it the keeper has all of them.
        self._fds = {name: {**made, **self._fds}[name] for name in self._names}

    def hand_over(self) -> None:
        """Have the keeper hold what it is made of, now or as soon as it can."""
        if self.closed:
            return
        if self._opened(self._fds):
            self._done.set()
        else:
            self._loop.call_later(_BUSY_SECONDS, self.hand_over)

    def close(self) -> None:
        """Close our copies: the sandbox has ended, or another server takes over."""
        if self.closed and not self._fds:
            return
        self.closed = True
        self._done.set()
        # The event loop does not wait for a thread that makes them; that one closes them then.
        if self._lock.acquire(blocking=False):
            try:
                self.disown()
            finally:
                self._lock.release()

    def disown(self) -> None:
        """Close our copies in a child after a fork, whose other threads are gone."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)
