"""One client: frames -> messages -> handlers -> frames.

How it works.  A request whose handler can answer at once is answered in the same turn of the
loop, without a task.  One that has to wait becomes a task and holds a permit of its lane, so
that at most N of a lane run; a request that only waits for the world (a long poll, a full
stdin) gives its permit back unless the server was told to count strictly, for it must not
keep others out.  Before ``initialized`` everything is answered strictly in order, and with
``--concurrent-requests 1`` always.

What a client may pile up is bounded: unanswered requests, and answers it does not read.
Beyond either its socket is left alone until it catches up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handrail.errors import ConnectionLost, HandrailError, RemoteProtocolError, RpcError
from handrail.protocol import codec
from handrail.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MALFORMED_ID,
    METHOD_NOT_FOUND,
    Notification,
    Request,
)
from handrail.protocol.filesystem import MissingChangedNotification
from handrail.protocol.methods import INITIALIZE, INITIALIZED, METHODS, Lane
from handrail.protocol.peer import Peer
from handrail.server.file_handlers import ConnectionFiles
from handrail.server.handlers import HANDLERS
from handrail.server.measures import Outcome
from handrail.server.notifier import Notifier
from handrail.server.results import Parts, Streamed
from handrail.server.sessions import Session
from handrail.transport.base import CLOSE_GOING_AWAY, CLOSE_POLICY, Transport

if TYPE_CHECKING:
    from handrail.server.app import Server

log = logging.getLogger(__name__)

#: Unanswered requests of one client before its socket is left alone.
MOST_REQUESTS = 8192
#: The same in bytes, and what is too small to be counted.
MOST_REQUEST_BYTES = 64 * 1024 * 1024
SMALL_REQUEST = 4096
#: Seconds for one piece of a large result.
PIECE_DEADLINE = 60.0
#: Unread answers of one client, in bytes, before the same.
MOST_UNREAD = 4 * 1024 * 1024


class LaneState:
    """The permits of one lane and who waits for one."""

    __slots__ = ("free", "waiting")

    def __init__(self, permits: int) -> None:
        self.free = permits
        self.waiting: deque[tuple[Request, float]] = deque()


class Work:
    """A request that could not be answered at once."""

    __slots__ = ("arrived", "began", "lane", "over", "request", "result")

    def __init__(
        self,
        lane: LaneState,
        request: Request,
        result: Coroutine[Any, Any, Any],
        began: float,
        arrived: float,
    ) -> None:
        self.lane = lane
        self.request = request
        self.result = result
        self.began = began
        self.arrived = arrived
        self.over = False


class Connection:
    """A receiver of one transport, and the holder of at most one session."""

    notifier: Notifier

    def __init__(self, server: Server, owner: str) -> None:
        self.server = server
        self.owner = owner
        self.session: Session | None = None
        self.initialized = False
        self.strict = server.settings.strict_lanes
        self._transport: Transport | None = None
        self._peer: Peer[asyncio.Future[Any]] = Peer()
        permits = server.settings.concurrent_requests
        ordinary = LaneState(permits)
        self._lanes = {
            Lane.ORDINARY: ordinary,
            Lane.CONTROL: ordinary if permits == 1 else LaneState(permits),
        }
        self._early = LaneState(1)
        self._tasks: dict[asyncio.Task[None], Work] = {}
        self._held = False
        self._large: dict[int, int] = {}  # id() of unanswered requests -> size of their message
        self._large_bytes = 0
        self._arrived = 0.0  # when the request came whose handler is being called
        self._files: ConnectionFiles | None = None
        self._paused = False
        self._gone = False
        self._writers: list[asyncio.Future[None]] = []
        self._streaming = asyncio.Lock()

    @property
    def files(self) -> ConnectionFiles:
        """Open files and watches, which end with the connection."""
        if self._files is None:
            self._files = ConnectionFiles(self, self.server.pool)
        return self._files

    # --- Receiver --------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        self.notifier = Notifier(transport)
        self.server.opened(self)

    @property
    def transport(self) -> Transport:
        assert self._transport is not None  # noqa: S101 (set before any message arrives)
        return self._transport

    def message(self, data: str | bytes) -> None:
        try:
            message = codec.decode(data)
        except RemoteProtocolError as error:
            text = f"failed to parse JSON-RPC message from {self.transport.peer}: {error}"
            self.transport.send(codec.error_message(MALFORMED_ID, INVALID_REQUEST, text))
            self._check_unread()
            return
        if type(message) is Request:
            self._request(message, len(data))
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
        for lane in self._lanes.values():
            self._next(lane)
        self._release()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    async def writable(self) -> None:
        """Wait until the client keeps up; raises ConnectionLost when it is gone."""
        while self._paused:
            writer = self.server.loop.create_future()
            self._writers.append(writer)
            await writer
        if self._gone:
            raise ConnectionLost("the client is gone")

    def missing_changed(self, watch_id: int) -> None:
        """A path that was missing has appeared."""
        params = MissingChangedNotification(watch_id=watch_id)
        self.transport.send(codec.notification_message("fs/missingChanged", params))

    def disconnected(self, why: str) -> None:
        self._gone = True
        self._paused = False
        self._wake_writers()
        if self._files is not None:
            self._files.close()
        for lane in {self._early, *self._lanes.values()}:
            while lane.waiting:  # abandoned like those that have begun
                request, arrived = lane.waiting.popleft()
                self._done(request, time.monotonic(), arrived, "disconnected")
        for task in list(self._tasks):
            task.cancel()
        for waiter in self._peer.abandon():
            waiter.cancel()
        if self.session is not None:
            self.server.sessions.detach(self.session, self)
        self.server.closed(self, why)

    # --- Attached ----------------------------------------------------------------------------

    def evicted(self) -> None:
        """Another connection presented the secret of our session."""
        self.session = None
        self.transport.close(CLOSE_POLICY, "the session was taken over by another connection")

    def go_away(self, code: int = CLOSE_GOING_AWAY, reason: str = "") -> None:
        self.transport.close(code, reason)

    # --- requests ------------------------------------------------------------------------

    def _notification(self, message: Notification) -> None:
        if message.method != INITIALIZED:
            self._violated(f"unknown notification {message.method[:80]}")
        elif self.session is None and not self.initialized:
            self._violated("`initialized` before a successful `initialize`")
        else:
            self.initialized = True

    def _violated(self, why: str) -> None:
        log.warning("closing the connection of %s: %s", self.transport.peer, why)
        self.transport.close(CLOSE_POLICY, why)

    def _lane(self, request: Request) -> LaneState:
        if not self.initialized or request.method == INITIALIZE:
            return self._early
        method = METHODS.get(request.method)
        return self._lanes[method.lane if method is not None else Lane.ORDINARY]

    def _request(self, request: Request, size: int) -> None:
        lane = self._lane(request)
        self._peer.inbound += 1
        if size > SMALL_REQUEST:
            self._large[id(request)] = size
            self._large_bytes += size
        if lane.free and not lane.waiting:
            self._run(lane, request, time.monotonic())
        else:
            lane.waiting.append((request, time.monotonic()))
        if self._peer.inbound > MOST_REQUESTS or self._large_bytes > MOST_REQUEST_BYTES:
            self._hold()

    def _run(self, lane: LaneState, request: Request, arrived: float) -> None:
        """Answer now, or begin to."""
        began = time.monotonic()
        measures = self.server.measures.method(request.method)
        measures.queued.observe(began - arrived)
        self._arrived = arrived
        try:
            result = self._call(request)
        except (RpcError, HandrailError) as error:
            self._refuse(request, error)
            self._done(request, began, arrived, "error")
            return
        except Exception as bug:  # noqa: BLE001 (one handler must not end the connection)
            self._failed(request, bug)
            self._done(request, began, arrived, "error")
            return
        if isinstance(result, Coroutine):
            lane.free -= 1
            work = Work(lane, request, result, began, arrived)
            task = self.server.loop.create_task(self._finish(work))
            self._tasks[task] = work
            task.add_done_callback(self._ended)
            return
        self._answer(request, result)
        self._done(request, began, arrived, "success")

    def _call(self, request: Request) -> Any:
        method = METHODS.get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"no method `{request.method[:200]}` here")
        params = None
        if method.params is not None:
            given = request.params
            params = codec.convert({} if given is None else given, method.params)
        if method.name != INITIALIZE:
            self._check_handshake(method.family)
        handler = HANDLERS.get(method.name)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"`{method.name}` is not offered by this server")
        return handler(self, params)

    def _check_handshake(self, family: str) -> None:
        if self.session is None and not self.initialized:
            text = f"client must call initialize before using {family} methods"
        elif not self.initialized:
            text = f"client must send initialized before using {family} methods"
        elif self.session is None or self.session.ended:
            text = "the session of this connection was closed; connect again"
        else:
            return
        raise RpcError(INVALID_REQUEST, text)

    async def _finish(self, work: Work) -> None:
        request = work.request
        outcome = "disconnected"
        try:
            answer = await work.result
            if type(answer) is Streamed:
                await self._stream(request, answer)
            else:
                self._answer(request, answer)
            outcome = "success"
        except (RpcError, HandrailError) as error:
            self._refuse(request, error)
            outcome = "error"
        except asyncio.CancelledError:
            raise
        except Exception as bug:  # noqa: BLE001 (as in _run)
            self._failed(request, bug)
            outcome = "error"
        finally:
            self._settle(work, outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        work = self._tasks.pop(task)
        if not work.over:  # cancelled before its first step
            work.result.close()
            self._settle(work, "disconnected")

    def _settle(self, work: Work, outcome: str) -> None:
        work.over = True
        work.lane.free += 1
        self._done(work.request, work.began, work.arrived, outcome)
        self._next(work.lane)

    def _next(self, lane: LaneState) -> None:
        while lane.waiting and lane.free and self.transport.buffered <= MOST_UNREAD:
            request, arrived = lane.waiting.popleft()
            self._run(lane, request, arrived)
        if self._held:
            self._release()

    def _answer(self, request: Request, result: Any) -> None:
        if type(result) is Parts:
            self.transport.send(
                b'{"id":%b,"result":' % codec.encode(request.id), *result.parts, b"}"
            )
        else:
            self.transport.send(codec.result_message(request.id, result))
        self._check_unread()

    async def _stream(self, request: Request, answer: Streamed) -> None:
        """Send a large result piece by piece; whatever else is said meanwhile waits for it."""
        pool = self.files.pool
        try:
            async with self._streaming:
                await self.writable()
                self.notifier.pause()
                self.transport.begin()
                try:
                    self.transport.piece(
                        b'{"id":%b,"result":%b' % (codec.encode(request.id), answer.head)
                    )
                    while data := await pool.run(answer.piece, deadline=PIECE_DEADLINE):
                        self.transport.piece(data)
                        await self.writable()
                    self.transport.piece(answer.tail + b"}", last=True)
                except BaseException:
                    # Half a message cannot be taken back, nor ended in truth.
                    self.transport.abort()
                    raise
            if not self._paused:
                self.notifier.resume()
        finally:
            answer.close()

    def _refuse(self, request: Request, error: HandrailError) -> None:
        code, data = INTERNAL_ERROR, None
        if isinstance(error, RpcError):
            code, data = error.code, error.data
        self.transport.send(codec.error_message(request.id, code, str(error), data))
        self._check_unread()

    def _failed(self, request: Request, bug: Exception) -> None:
        log.error("a bug in the handler of %s", request.method[:80], exc_info=bug)
        text = "internal error; the server's log has the details"
        self.transport.send(codec.error_message(request.id, INTERNAL_ERROR, text))

    def _done(self, request: Request, began: float, arrived: float, outcome: str) -> None:
        self._peer.inbound -= 1
        if self._large:
            self._large_bytes -= self._large.pop(id(request), 0)
        now = time.monotonic()
        measures: Outcome = getattr(self.server.measures.method(request.method), outcome)
        measures.count.inc()
        measures.seconds.observe(now - began)
        measures.total_seconds.observe(now - arrived)

    def cancel_queued_start(self, process_id: str) -> bool:
        """Refuse a start that waits for its permit, for the terminate that came after it."""
        waiting = self._lanes[Lane.ORDINARY].waiting
        for place, (request, arrived) in enumerate(waiting):
            if (
                request.method == "process/start"
                and type(request.params) is dict
                and request.params.get("processId") == process_id
                and arrived <= self._arrived
            ):
                del waiting[place]
                text = f"process {process_id} start was cancelled"
                self._refuse(request, RpcError(INVALID_REQUEST, text))
                self._done(request, time.monotonic(), arrived, "error")
                return True
        return False

    # --- parked requests ---------------------------------------------------------------------

    def park(self, request_lane: Lane) -> None:
        """The request only waits for the world now: its permit is for others."""
        if not self.strict:
            lane = self._lanes[request_lane]
            lane.free += 1
            self.server.loop.call_soon(self._next, lane)

    def unpark(self, request_lane: Lane) -> None:
        if not self.strict:
            self._lanes[request_lane].free -= 1

    # --- bounds --------------------------------------------------------------------------------

    def _check_unread(self) -> None:
        if self.transport.buffered > MOST_UNREAD:
            self._hold()

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self.transport.pause_reading()

    def _release(self) -> None:
        if (
            self._held
            and self._peer.inbound <= MOST_REQUESTS // 2
            and self._large_bytes <= MOST_REQUEST_BYTES // 2
            and self.transport.buffered <= MOST_UNREAD
        ):
            self._held = False
            self.transport.resume_reading()
