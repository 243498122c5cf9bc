"""One end of a connection: reads and writes on a raw non-blocking socket.

Raw sockets instead of the loop's transports: half-closed connections are common in tunnels, and
transports of one popular loop have ended the process with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address

from handrail.futures import set_done
from handrail.network.hosts import Address

READ_SIZE = 64 * 1024
_LINGER_SECONDS = 2.0
_LINGER_SIZE = 4 * 1024 * 1024
#: Seconds without an answer of the other end before probes are sent, and between probes.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))


class Stream:
    """A connected socket with bytes that were read and not used yet."""

    __slots__ = ("_loop", "_watched", "received", "rest", "sent", "sock")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.sock = sock
        self.rest = b""
        self.sent = 0
        self.received = 0
        self._loop = loop
        #: How often the loop watches the socket for us.
        self._watched = 0

    async def read(self) -> bytes:
        """Some bytes, those of ``rest`` first; empty at the end."""
        try:
            return self.take()
        except BlockingIOError:
            self._watched += 1
        data = await self._loop.sock_recv(self.sock, READ_SIZE)
        self._watched -= 1  # not if this was cancelled: `close` has to see to it
        self.received += len(data)
        return data

    def take(self) -> bytes:
        """Read what is there already; raises BlockingIOError."""
        if self.rest:
            data, self.rest = self.rest, b""
            return data
        data = self.sock.recv(READ_SIZE)
        self.received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Write everything; waits while the other end does not read."""
        if not data:
            return
        try:
            taken = self.sock.send(data)
        except BlockingIOError:
            taken = 0
        if taken < len(data):
            self._watched += 1
            await self._loop.sock_sendall(self.sock, memoryview(data)[taken:])
            self._watched -= 1
        self.sent += len(data)

    async def linger(self) -> None:
        """End our way, and take what the other end still sends for a moment.

        Bytes that were never read would make the kernel reset the connection, and the other end
        would lose the answer that it was sent.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_SECONDS):
                taken = 0
                while taken < _LINGER_SIZE:
                    data = await self.read()
                    if not data:
                        break
                    taken += len(data)

    def watch_end(self, ended: Callable[[], None]) -> None:
        """Call once when the other end has ended its way, unless it sends more before."""

        def look() -> None:
            try:
                data = self.sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.unwatch()
            if not data:
                ended()

        if not self.rest:
            self._watched += 1
            self._loop.add_reader(self.sock.fileno(), look)

    def unwatch(self) -> None:
        """Watch no more."""
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock.fileno())

    def is_ended(self) -> bool:
        """Whether an idle connection cannot be used any more: closed, or talking unasked."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return bool(self.rest)
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close the socket at once."""
        number = self.sock.fileno()
        # A loop that still watched the number would watch the next socket of that number.
        if self._watched and number >= 0:
            self._loop.remove_reader(number)
            self._loop.remove_writer(number)
        self.sock.close()


def prepare(sock: socket.socket) -> None:
    """Set the options of a connection, or of a listener for those that it accepts."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def socket_for(address: Address) -> socket.socket:
    """An unconnected socket of the address's family."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def connect_at_once(sock: socket.socket, to: tuple[str, int]) -> int:
    """Begin to connect; the error number, 0 when it is done, EALREADY while it goes on."""
    number = sock.connect_ex(to)
    if number == errno.EINPROGRESS:
        # On loopback it is done by now: the second call says so, without a turn of the loop.
        number = sock.connect_ex(to)
    return 0 if number == errno.EISCONN else number


async def connect(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, to: tuple[str, int], seconds: float
) -> None:
    """Connect a socket; raises OSError or TimeoutError."""
    number = connect_at_once(sock, to)
    if number == errno.EALREADY:
        async with asyncio.timeout(seconds):
            connected = loop.create_future()
            loop.add_writer(sock.fileno(), set_done, connected)
            try:
                await connected
            finally:
                loop.remove_writer(sock.fileno())
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


def peer_address(sock: socket.socket) -> Address:
    """The address that a socket is connected to; raises OSError."""
    return ip_address(str(sock.getpeername()[0]).partition("%")[0])
