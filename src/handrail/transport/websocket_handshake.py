"""The WebSocket handshake over a new byte stream: the accepting and the connecting side.

Owns the time between ``connection_made`` and an open ``WebSocketConnection``: deadline, answers
that are no upgrade, and an orderly close.  The rules themselves are pure and live in ``http_head``
and ``websocket_upgrade``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from handrail.errors import ConnectionLost, TransportError
from handrail.transport.base import Receiver
from handrail.transport.connection_limits import Admission
from handrail.transport.http_head import (
    HeadError,
    HeadReader,
    HttpRequest,
    HttpResponse,
    ResponseHead,
    parse_request,
    parse_response,
    upgrade_problem,
)
from handrail.transport.stream import end_output, printable
from handrail.transport.websocket_connection import ConnectionLimits, WebSocketConnection
from handrail.transport.websocket_upgrade import accept_head, refusal, response_problem

logger = logging.getLogger(__name__)

Route = Callable[[HttpRequest], HttpResponse | Receiver]

#: How long a peer that got its answer may stay.
LINGER = 1.0
#: How much of a refusing server's body is kept for the error.
BODY_LIMIT = 16 * 1024


class HandshakeError(TransportError):
    """The server answered the upgrade with something else, in ``status`` and ``body``."""

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class HttpHandshake(asyncio.Protocol):
    """The accepting side of one socket, until it is open or refused."""

    def __init__(self, route: Route, admission: Admission) -> None:
        self._route = route
        self._admission = admission
        self._reader = HeadReader()
        self._answered = False
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without inheriting it.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.peer = self.peer or prepare_socket(transport)
        loop = asyncio.get_running_loop()
        timeout = self._admission.limits.handshake_timeout
        self._timer = loop.call_later(timeout, self._expire)
        refusal_sentence = self._admission.enter(self)
        if refusal_sentence is not None:
            transport.write(_busy(refusal_sentence).encode())
            self.drop()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # an unexpected body; read so that our answer is not lost to a reset
        try:
            head = self._reader.feed(data)
            if head is not None:
                self._serve(parse_request(head))
        except HeadError as error:
            self._answer(HttpResponse(error.status, error.sentence.encode()))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._admission.gone(self)

    def refuse(self, sentence: str) -> None:
        """Answer 503 and close at once: waiting for its close would mean one more peer to hold."""
        if self._answered:
            return
        self._admission.answered(self)
        self._transport.write(_busy(sentence).encode())
        self.drop()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER, self._expire)

    def drop(self) -> None:
        self._answered = True
        self._transport.close()

    def _expire(self) -> None:
        if self._answered or not self._reader.started:
            self._transport.abort()
        else:
            self._answer(HttpResponse(408, b"the request took too long"))

    def _serve(self, request: HttpRequest) -> None:
        response = self._route_or_open(request)
        if response is None:
            return
        head_only = request.method == "HEAD"
        refused = self._admission.limits.refused
        wait = refused(self.peer) if refused is not None and response.status == 401 else 0.0
        if not wait:
            self._answer(response, head_only=head_only)
            return
        # A peer that guesses credentials waits, and counts as an unfinished handshake; no other
        # waits.
        self._transport.pause_reading()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            wait, self._answer_late, response, head_only
        )

    def _answer_late(self, response: HttpResponse, head_only: bool) -> None:
        self._transport.resume_reading()
        self._answer(response, head_only=head_only)

    def _route_or_open(self, request: HttpRequest) -> HttpResponse | None:
        problem = upgrade_problem(request)
        if problem is None and self._admission.is_full:
            self._admission.warn(f"{self._admission.limits.max_connections} connections are open")
            return _busy("too many connections; try again later")
        try:
            outcome = self._route(request)
        except Exception as error:  # noqa: BLE001  the route is the caller's code
            self._log_failure("route", error)
            return HttpResponse(500, b"internal error")
        if isinstance(outcome, HttpResponse):
            return outcome
        if problem is not None:
            return refusal(problem)
        self._open(request, outcome)
        return None

    @staticmethod
    def _log_failure(what: str, error: Exception) -> None:
        # Only the type: text or traceback may quote what the peer sent, even a secret.
        logger.error("the %s callback failed with %s", what, type(error).__name__)

    def _open(self, request: HttpRequest, receiver: Receiver) -> None:
        self._timer.cancel()
        connection = WebSocketConnection(
            receiver,
            self.peer,
            client=False,
            limits=self._admission.connection_limits,
            on_lost=self._admission.closed,
        )
        self._transport.write(accept_head(request))
        self._admission.opened(self, connection)
        connection.open(self._transport, self._reader.rest)

    def _answer(self, response: HttpResponse, *, head_only: bool = False) -> None:
        """Send it, end our direction, and wait briefly for the peer to close."""
        if self._answered:
            return
        self._answered = True
        self._admission.answered(self)
        self._transport.write(response.encode(head_only))
        end_output(self._transport)
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER, self._expire)


class ClientHandshake(asyncio.Protocol):
    """The connecting side; ``opened`` becomes the connection or the error."""

    def __init__(
        self, receiver: Receiver, request: bytes, key: str, where: str, limits: ConnectionLimits
    ) -> None:
        self._receiver = receiver
        self._request = request
        self._key = key
        self._where = where
        self._limits = limits
        self._reader = HeadReader()
        self._refused: ResponseHead | None = None
        self._body = b""
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[WebSocketConnection] = (
            asyncio.get_running_loop().create_future()
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without inheriting it.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        prepare_socket(transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        if self._refused is not None:
            self._collect_body(data)
            return
        try:
            head = self._reader.feed(data)
            if head is None:
                return
            response = parse_response(head)
        except HeadError as error:
            self._fail(TransportError(f"{self._where} does not speak HTTP: {error.sentence}"))
            return
        if response.status != 101:
            self._refused = response
            self._collect_body(self._reader.rest)
            return
        problem = response_problem(response, self._key)
        if problem is not None:
            self._fail(TransportError(f"{self._where} did not open a WebSocket: {problem}"))
            return
        assert self._transport is not None  # noqa: S101  for mypy
        connection = WebSocketConnection(
            self._receiver, self._where, client=True, limits=self._limits
        )
        self.opened.set_result(connection)
        connection.open(self._transport, self._reader.rest)

    def eof_received(self) -> bool:
        if self._refused is not None:
            self._refuse()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # aborting it now would make asyncio call this again
        if self._refused is not None:
            self._refuse()
        why = f": {exc}" if exc else ""
        self._fail(ConnectionLost(f"{self._where} closed the connection during the handshake{why}"))

    def abandon(self) -> None:
        """Drop the connection: its caller has stopped waiting."""
        if not self.opened.cancel() and not self.opened.cancelled():
            self.opened.exception()  # retrieved, so that asyncio does not log it
        if self._transport is not None:
            self._transport.abort()

    def _collect_body(self, data: bytes) -> None:
        assert self._refused is not None  # noqa: S101  for mypy
        self._body = (self._body + data)[:BODY_LIMIT]
        announced = self._refused.header("content-length") or ""
        length = int(announced) if announced.isascii() and announced.isdigit() else BODY_LIMIT
        if len(self._body) >= min(length, BODY_LIMIT):
            self._body = self._body[:length]
            self._refuse()

    def _refuse(self) -> None:
        assert self._refused is not None  # noqa: S101  for mypy
        status = self._refused.status
        text = printable(self._body.decode("utf-8", "replace").strip())
        message = f"{self._where} refused the WebSocket with status {status}"
        self._fail(
            HandshakeError(
                f"{message}: {text}" if text else message, status=status, body=self._body
            )
        )

    def _fail(self, error: TransportError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


def prepare_socket(transport: asyncio.BaseTransport) -> str:
    """Switch off Nagle's delay and name the peer."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        try:
            # Both loops do it already; a small reply after a small request costs 40 ms
            # without it, so it is not left to them.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # the peer is gone already; connection_lost will follow
            pass
    return named(transport.get_extra_info("peername"))


def named(address: object) -> str:
    """An address as text: ``127.0.0.1:80``, ``[::1]:80``."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address) if address else "unknown"


def _busy(sentence: str) -> HttpResponse:
    return HttpResponse(503, sentence.encode(), headers=(("Retry-After", "1"),))
