"""WebSockets over TCP: listening and connecting.

The two entries of this kind of transport and the listener they share with ``unix_socket``.
A connection goes through ``websocket_handshake`` -> ``websocket_connection`` -> the receiver.
Compression and subprotocols are never negotiated.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from handrail import listeners
from handrail.errors import ConnectionLost, TransportError, UsageError
from handrail.transport.base import Receiver, Transport
from handrail.transport.connection_limits import Admission, ListenLimits
from handrail.transport.websocket_connection import ConnectionLimits
from handrail.transport.websocket_handshake import ClientHandshake, HttpHandshake, Route
from handrail.transport.websocket_upgrade import make_key, request_head

if TYPE_CHECKING:
    import ssl as ssl_module  # costs 10 ms at start, and most connections are local

#: Connects the kernel queues; a burst beyond it costs its clients a second each.
BACKLOG = 512
#: Seconds for the TLS handshake of a peer.
TLS_SECONDS = 10.0


class _Server(Protocol):
    """What asyncio.Server and uvloop's Server share and we use."""

    @property
    def sockets(self) -> Any: ...

    def close(self) -> None: ...


class Gate(Protocol):
    """Refuses peers of a listener before anything is read from them."""

    def before(self, make: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.Protocol]:
        """Wrap a protocol factory so that it is called for admitted peers only."""

    def close(self) -> None:
        """Admit no further peer."""


class WebSocketListener:
    """A listening socket and the peers that came through it."""

    def __init__(
        self,
        server: _Server,
        admission: Admission,
        sockname: object,
        *,
        gate: Gate | None = None,
        port: int | None = None,
    ) -> None:
        self._server = server
        self._admission = admission
        self._gate = gate
        #: The port of a TCP listener, while it is in ``listeners``.
        self._port = port
        #: The bound address, e.g. ``("127.0.0.1", 42085)``; of a Unix socket its path.
        self.sockname = sockname

    def fileno(self) -> int:
        """The listening socket's fd, for a server that takes it over."""
        return int(self._server.sockets[0].fileno())

    def close(self) -> None:
        """Accept no further peers and drop unfinished handshakes.  Open connections stay."""
        self._server.close()
        self._admission.close()
        if self._gate is not None:
            self._gate.close()
        if self._port is not None:
            listeners.leave(self._port)
            self._port = None

    def leave(self) -> None:
        """Close our copy; another server goes on with the socket."""
        self._port = None  # stays in ``listeners``: unreachable for the commands of this process
        self.close()

    def abort(self) -> None:
        """Close, and drop every open connection too."""
        self.close()
        self._admission.abort_connections()

    async def wait_closed(self) -> None:
        """Wait until the last peer is gone; closing open connections is up to their receivers."""
        await self._admission.wait_empty()


async def listen(
    host: str,
    port: int,
    route: Route,
    *,
    limits: ListenLimits | None = None,
    sock: socket.socket | None = None,
    gate: Gate | None = None,
    ssl: ssl_module.SSLContext | None = None,
) -> WebSocketListener:
    """Accept WebSockets on ``host:port`` (0: any free port), or on a socket that listens there.

    Such a socket was opened by ``listeners.open_tcp``, or entered there.  ``gate`` refuses peers
    before anything is read from them.  With ``ssl`` they speak TLS.

    ``route`` gets each complete request, of any method and path, and answers with an HttpResponse,
    or with the Receiver of the WebSocket to be opened.  A request that is no valid upgrade
    (``upgrade_problem``) gets a 400 instead and its receiver is not used.
    Raises OSError when the address cannot be used.
    """
    admission = Admission(limits or ListenLimits())
    loop = asyncio.get_running_loop()
    # A socket of our own: given a host, the loop would start threads to resolve it.
    if sock is None:
        sock = listeners.open_tcp(host, port, BACKLOG)

    def make() -> HttpHandshake:
        return HttpHandshake(route, admission)

    server = await loop.create_server(
        make if gate is None else gate.before(make),
        sock=sock,
        backlog=BACKLOG,
        ssl=ssl,
        ssl_handshake_timeout=None if ssl is None else TLS_SECONDS,
    )
    sockname = server.sockets[0].getsockname()
    return WebSocketListener(server, admission, sockname, gate=gate, port=sockname[1])


async def connect(
    url: str,
    receiver: Receiver,
    *,
    headers: Iterable[tuple[str, str]] = (),
    open_timeout: float | None = 10.0,
    ssl: ssl_module.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
) -> Transport:
    """Open a WebSocket to a ``ws://`` or ``wss://`` URL.

    ``receiver.connected`` has been called, and messages may have been delivered, when this
    returns.  Raises HandshakeError when the server answers otherwise (with its status and
    body), ConnectionLost when it cannot be reached or does not answer in time, TransportError
    when it speaks something else, UsageError for a URL or header that makes no sense.
    """
    host, port, authority, target, secure = _parse_url(url)
    if ssl is not None and not secure:
        raise UsageError("a TLS context was given for a ws:// URL; use wss://")
    key = make_key(os.urandom(16))
    try:
        request = request_head(authority, target, key, tuple(headers))
    except ValueError as error:
        raise UsageError(f"the WebSocket request cannot be made: {error}") from None
    loop = asyncio.get_running_loop()
    handshake = ClientHandshake(receiver, request, key, authority, limits or ConnectionLimits())
    connection = None
    try:
        async with asyncio.timeout(open_timeout):
            await loop.create_connection(
                lambda: handshake, host, port, ssl=_context(ssl) if secure else None
            )
            connection = await handshake.opened
            return connection
    except TimeoutError:
        raise ConnectionLost(f"{authority} did not answer within {open_timeout:g} s") from None
    except OSError as error:
        # Certificate errors are OSErrors too, and a retry does not help there.
        kind = TransportError if type(error).__module__ == "ssl" else ConnectionLost
        why = error.strerror or error
        if kind is ConnectionLost and error.errno is not None and error.errno > 0:
            why = os.strerror(error.errno)  # without the address, which asyncio has put there
        raise kind(f"cannot connect to {authority}: {why}") from error
    finally:
        if connection is None:
            handshake.abandon()


def _parse_url(url: str) -> tuple[str, int, str, str, bool]:
    """Host, port, authority, target, and whether TLS is wanted."""
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
    except ValueError as error:
        raise UsageError(f"the WebSocket URL does not parse: {error}") from None
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise UsageError("a WebSocket URL looks like ws://host:port/path or wss://host/path")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise UsageError("a WebSocket URL holds no user, password or fragment; use a header")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or not target.isprintable() or " " in target:
        raise UsageError("the path of a WebSocket URL must be percent-encoded ASCII")
    return parts.hostname, port, parts.netloc, target, secure


def _context(given: ssl_module.SSLContext | None) -> ssl_module.SSLContext:
    if given is not None:
        return given
    import ssl

    return ssl.create_default_context()
