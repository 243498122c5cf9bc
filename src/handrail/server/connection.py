"""One client connection: messages in, answers and notifications out, at most one session.

``request_queue.py`` decides which request runs when; ``server/methods/`` has what a method does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from handrail.errors import ConnectionLost, RemoteProtocolError
from handrail.futures import set_done
from handrail.protocol import codec
from handrail.protocol.envelope import (
    INVALID_REQUEST,
    MALFORMED_ID,
    Notification,
    Request,
    RequestId,
)
from handrail.protocol.filesystem import MissingChangedNotification
from handrail.protocol.methods import INITIALIZED
from handrail.protocol.peer import Peer
from handrail.server.host_questions import HostQuestions
from handrail.server.notifier import Notifier
from handrail.server.raw_results import Streamed
from handrail.server.request_queue import RequestQueue
from handrail.server.session import Session
from handrail.transport.base import CLOSE_POLICY, Transport

if TYPE_CHECKING:
    from handrail.server.app import Server
    from handrail.server.methods.files import ConnectionFiles
    from handrail.server.methods.http import ConnectionHttp
    from handrail.server.methods.loopback import ConnectionLoopback
    from handrail.server.methods.process_wait import Watch

log = logging.getLogger(__name__)

#: Seconds for a client to initialize; a stdio client is our parent and has no limit.
INITIALIZE_SECONDS = 10.0
#: Seconds for one piece of a large result.
PIECE_DEADLINE = 60.0


class Connection:
    """The receiver of one transport; holds at most one session."""

    notifier: Notifier

    def __init__(self, server: Server, owner: str, tenant: str | None = None) -> None:
        self.server = server
        self.owner = owner
        #: The one tenant whose workspaces this client may use; None: all.
        self.tenant = tenant
        self.session: Session | None = None
        self.initialized = False
        settings = server.settings
        self.calls = RequestQueue(self, settings.concurrent_requests, strict=settings.strict_lanes)
        self._transport: Transport | None = None
        self._peer: Peer[asyncio.Future[Any]] = Peer()
        #: Running ``process/wait`` calls by their ``waitId``; the next one of that id replaces it.
        self.waits: dict[str, Watch] = {}
        self._files: ConnectionFiles | None = None
        self._http: ConnectionHttp | None = None
        self._loopback: ConnectionLoopback | None = None
        self._paused = False
        self._gone = False
        self._writers: list[asyncio.Future[None]] = []
        self._streaming = asyncio.Lock()
        self._deadline: asyncio.TimerHandle | None = None
        #: Called when the connection has ended.
        self.on_end: Callable[[Connection], None] | None = None

    @property
    def files(self) -> ConnectionFiles:
        """Open files and watches; they end with the connection."""
        if self._files is None:
            from handrail.server.methods.files import ConnectionFiles

            self._files = ConnectionFiles(self, self.server.pool)
        return self._files

    @property
    def http(self) -> ConnectionHttp:
        """Running HTTP requests; they end with the connection."""
        if self._http is None:
            from handrail.server.methods.http import ConnectionHttp

            self._http = ConnectionHttp(self)
        return self._http

    @property
    def loopback(self) -> ConnectionLoopback:
        """Connections to what processes listen on; they end with this one."""
        if self._loopback is None:
            from handrail.server.methods.loopback import ConnectionLoopback

            self._loopback = ConnectionLoopback(self)
        return self._loopback

    def request(self, method: str, params: Any) -> tuple[int, asyncio.Future[Any]]:
        """Send a request to the client; its future is cancelled when the connection ends."""
        waiter: asyncio.Future[Any] = self.server.loop.create_future()
        number = self._peer.call(waiter)
        self.transport.send(codec.request_message(number, method, params))
        return number, waiter

    def give_up(self, number: int) -> None:
        """Stop waiting for the answer to a request; a late answer is ignored."""
        self._peer.give_up(number)

    # --- Receiver --------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        self.notifier = Notifier(transport)
        self.notifier.policy = HostQuestions(self)
        self.server.opened(self)
        if transport.kind != "stdio":
            self._deadline = self.server.loop.call_later(INITIALIZE_SECONDS, self._too_late)

    def _too_late(self) -> None:
        self._deadline = None
        if self.session is None and not self.initialized:
            log.warning("closing the connection of %s: it did not initialize", self.transport.peer)
            self.transport.close(
                CLOSE_POLICY, f"no initialize within {INITIALIZE_SECONDS:g} s; connect again"
            )

    def attached(self, session: Session) -> None:
        """The client has initialized."""
        self.session = session
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None  # noqa: S101 (set before any message arrives)
        return self._transport

    def message(self, data: str | bytes | bytearray) -> None:
        try:
            message = codec.decode(data)
        except RemoteProtocolError as error:
            text = f"failed to parse JSON-RPC message from {self.transport.peer}: {error}"
            self.transport.send(codec.error_message(MALFORMED_ID, INVALID_REQUEST, text))
            self.calls.check_unread()
            return
        if type(message) is Request:
            self.calls.take(message, len(data))
        elif type(message) is Notification:
            self._notification(message)
        else:
            try:
                waiter = self._peer.reply(message)  # type: ignore[arg-type]
            except RemoteProtocolError as error:
                self._violated(str(error))
                return
            if waiter is not None and not waiter.done():
                waiter.set_result(message)

    def pause_writing(self) -> None:
        self._paused = True
        self.notifier.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._streaming.locked():
            self.notifier.resume()
        self._wake_writers()
        self.calls.go_on()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            set_done(writer)

    async def writable(self) -> None:
        """Wait until the client has read enough; raises ConnectionLost when it is gone."""
        while True:
            await self._unpaused()
            if not self._streaming.locked():
                return
            async with self._streaming:
                pass  # a large answer was being sent

    async def _unpaused(self) -> None:
        while self._paused:
            writer = self.server.loop.create_future()
            self._writers.append(writer)
            await writer
        if self._gone:
            raise ConnectionLost("the client is gone")

    def missing_changed(self, watch_id: int) -> None:
        """Report that a missing path has appeared."""
        params = MissingChangedNotification(watch_id=watch_id)
        self.transport.send(codec.notification_message("fs/missingChanged", params))

    def disconnected(self, why: str) -> None:
        self._gone = True
        self._paused = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._wake_writers()
        if self._files is not None:
            self._files.close()
        if self._http is not None:
            self._http.close()
        if self._loopback is not None:
            self._loopback.close()
        self.calls.abandon()
        for waiter in self._peer.abandon():
            waiter.cancel()
        if self.session is not None:
            self.server.sessions.detach(self.session, self)
        if self.on_end is not None:
            self.on_end(self)
        self.server.closed(self, why)

    # --- Attached ----------------------------------------------------------------------------

    def evicted(self) -> None:
        """Close: another connection presented the secret of our session."""
        self.session = None
        self.transport.close(CLOSE_POLICY, "the session was taken over by another connection")

    # --- requests ------------------------------------------------------------------------

    def _notification(self, message: Notification) -> None:
        if message.method != INITIALIZED:
            self._violated(f"unknown notification {message.method[:80]}")
        elif self.session is None and not self.initialized:
            self._violated("`initialized` before a successful `initialize`")
        else:
            self.initialized = True
            if self.session is not None:
                self.session.arrived()
                self.server.sessions.ask_again(self.session)

    def _violated(self, why: str) -> None:
        log.warning("closing the connection of %s: %s", self.transport.peer, why)
        self.transport.close(CLOSE_POLICY, why)

    async def stream(self, request_id: RequestId, answer: Streamed) -> None:
        """Send a large result piece by piece; other messages wait for it."""
        pool = self.files.pool
        try:
            async with self._streaming:
                await self._unpaused()
                self.notifier.pause()
                self.transport.begin()
                try:
                    self.transport.piece(
                        b'{"id":%b,"result":%b' % (codec.encode(request_id), answer.head)
                    )
                    while data := await pool.run(answer.piece, deadline=PIECE_DEADLINE):
                        self.transport.piece(data)
                        await self._unpaused()
                    self.transport.piece(answer.tail + b"}", last=True)
                except BaseException:
                    # A half-sent message can neither be taken back nor completed: close.
                    self.transport.abort()
                    raise
            if not self._paused:
                self.notifier.resume()
        finally:
            answer.close()
