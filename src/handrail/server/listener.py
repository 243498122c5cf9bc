"""The listener of a server: its socket, its address, and the clients that may connect."""

from __future__ import annotations

import logging
import socket
import sys
from typing import TYPE_CHECKING

from handrail import listeners, private_places
from handrail.errors import UsageError
from handrail.server.auth.admission import HttpAdmission
from handrail.server.auth.loopback_users import loopback_gate
from handrail.server.auth.tokens import Authenticator, Throttle
from handrail.server.connection import Connection
from handrail.server.recovery import running_servers
from handrail.server.recovery.state_dir import StateDir
from handrail.server_settings import Listen
from handrail.transport import websocket
from handrail.transport.connection_limits import ListenLimits
from handrail.transport.websocket import WebSocketListener

if TYPE_CHECKING:
    from handrail.server.app import Server


log = logging.getLogger(__name__)


class ListenSocket:
    """The listening socket, opened before syscalls of adopted sandboxes are answered.

    Sandboxed commands must not connect to it, so its address is registered first
    (``handrail.listeners``).
    """

    def __init__(self, listen: Listen, given: socket.socket | None) -> None:
        self._listen = listen
        self.sock = given
        self._opened = False

    def open(self) -> None:
        """Bind the address, or register the inherited socket; raises UsageError."""
        if not self._opened and self._listen.kind == "websocket":
            self.sock = _tcp_socket(self._listen, self.sock)
        self._opened = True


def _tcp_socket(listen: Listen, given: socket.socket | None) -> socket.socket:
    """A listening socket, registered in ``handrail.listeners``."""
    if given is not None:
        listeners.enter(given)
        return given
    if listen.port == 0 and listen.port_before:
        try:
            return listeners.open_tcp(listen.host, listen.port_before, websocket.BACKLOG)
        except OSError as error:
            log.warning(
                "port %d, at which the server before has listened, cannot be used (%s): its clients"
                " have to be told the new address",
                listen.port_before,
                error.strerror,
            )
    try:
        return listeners.open_tcp(listen.host, listen.port, websocket.BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}"
        ) from None


async def listen(
    server: Server,
    auth: Authenticator,
    sock: socket.socket | None,
    state: StateDir | None,
    *,
    announce: bool,
) -> WebSocketListener | None:
    """Open the listener; ``announce`` is False with the previous server's socket.

    The state directory has the address before it is printed.
    """
    where = server.settings.listen
    if where.kind == "stdio":
        from handrail.transport.stdio import open_stdio

        if state is not None:
            state.ready()
        await open_stdio(Connection(server, "stdio"))
        return None
    admission = HttpAdmission(
        auth,
        server.metrics_text,
        server.accept,
        where.host or "localhost",
        allowed_hosts=server.settings.allowed_hosts,
        allowed_origins=server.settings.allowed_origins,
    )
    if where.kind == "unix":
        from handrail.transport import unix_socket

        unix = await unix_socket.listen(
            where.path, admission, accept=lambda uid: Connection(server, f"uid:{uid}"), sock=sock
        )
        private_places.add(where.path)
        _listens(f"unix:{where.path}", state, announce)
        return unix
    limits = ListenLimits(refused=Throttle().failed)
    tls = server.settings.tls
    context = None
    if tls is not None:
        from handrail.transport.tls import server_context  # ssl costs 10 ms

        context = server_context(tls.certificate, tls.key)
    tcp = await websocket.listen(
        where.host,
        where.port,
        admission,
        limits=limits,
        sock=sock,
        gate=loopback_gate(any_user=server.settings.any_user),
        ssl=context,
    )
    host, port = tcp.sockname[:2]  # type: ignore[index]
    scheme = "ws" if context is None else "wss"
    shown = f"[{host}]" if ":" in host else host
    _listens(f"{scheme}://{shown}:{port}", state, announce)
    return tcp


def _listens(url: str, state: StateDir | None, announce: bool) -> None:
    """Note that the server has started, and where it listens."""
    if state is not None:
        state.ready()
        running_servers.enter(state.fd, state.path, url)
    if announce:
        _announce(url)


def _announce(url: str) -> None:
    """Print the address on stdout, the only line there; the program that started us reads it."""
    try:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise UsageError(f"cannot print the address on stdout: {error.strerror}") from None
