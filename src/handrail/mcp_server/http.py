"""The MCP server over streamable HTTP: on loopback, behind a token, by default."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from handrail import listeners
from handrail.errors import UsageError
from handrail.mcp_server.server import make_server
from handrail.mcp_server.tool_calls import ToolCalls
from handrail.server.auth.loopback_users import LoopbackUsers, loopback_gate
from handrail.server_settings import STOP_SIGNALS
from handrail.transport.websocket import BACKLOG

PATH = "/mcp"
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class TokenGuard:
    """ASGI middleware that refuses every request without the token."""

    def __init__(self, app: _App, token: str) -> None:
        self._app = app
        self._wanted = token.encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"authorization", b"")
            scheme, _, given = header.partition(b" ")
            right = hmac.compare_digest(given.strip(b" "), self._wanted)
            # HTTP schemes are case-insensitive: `bearer` is the same.
            if scheme.lower() != b"bearer" or not right:
                await _refuse(send)
                return
        await self._app(scope, receive, send)


async def _refuse(send: _Send) -> None:
    text = b"this server wants its token: send `Authorization: Bearer TOKEN`\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def check_exposure(host: str, token: str | None, *, insecure: bool) -> None:
    """Refuse to serve without a token unless ``insecure``; raises UsageError."""
    if token is None and not insecure:
        raise UsageError(
            "any client that can connect could run commands: leave the token on, or give"
            " --insecure-no-auth if something else keeps strangers out"
        )
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"--http wants an address such as 127.0.0.1:8300, not {host!r}") from None


def application(
    calls: ToolCalls, host: str, token: str | None, allowed: tuple[str, ...] = ()
) -> _App:
    """The whole application; ``allowed`` are Host headers besides those of loopback."""
    names = ["127.0.0.1", "localhost", "[::1]", *allowed]
    hosts = [name if ":" in name.rpartition("]")[2] else f"{name}:*" for name in names]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*hosts, *allowed],
        allowed_origins=[f"http://{name}" for name in hosts],
    )
    app: _App = make_server(calls).streamable_http_app(
        streamable_http_path=PATH, host=host, transport_security=security
    )
    return app if token is None else TokenGuard(app, token)


async def serve_http(
    calls: ToolCalls,
    host: str,
    port: int,
    token: str | None,
    *,
    allowed: tuple[str, ...] = (),
    any_user: bool = False,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until told to stop; ``started`` is called with the URL.

    Loopback clients must be processes of our own user, or root's, unless ``any_user``.
    """
    try:
        sock = listeners.open_tcp(host, port, BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    gate = loopback_gate(any_user=any_user)
    config = uvicorn.Config(
        application(calls, host, token, allowed),
        http=AutoHTTPProtocol if gate is None else _behind(gate),  # type: ignore[arg-type]
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, started)
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, server.stop)
    taken = sock.getsockname()[1]
    try:
        await server.serve([sock])
    finally:
        sock.close()
        listeners.leave(taken)
        if gate is not None:
            gate.close()


def _behind(gate: LoopbackUsers) -> Callable[..., asyncio.Protocol]:
    """Make uvicorn's protocol for admitted clients only, before anything is read from them."""

    def make(**given: Any) -> asyncio.Protocol:
        return gate.before(lambda: AutoHTTPProtocol(**given))()

    return make


class _Server(uvicorn.Server):
    """Calls ``started``, and leaves signals to us: uvicorn's handling would end the program before
    the shell has ended its processes."""

    def __init__(self, config: uvicorn.Config, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._told = started

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()

    def stop(self) -> None:
        """Accept no more requests; running ones get a moment."""
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                self._told(f"http://{shown}:{port}{PATH}")
