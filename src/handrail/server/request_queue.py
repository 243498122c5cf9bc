"""The requests of one connection: which one runs, which one waits, and for how long.

How it works.  A request that its handler can answer at once is answered in the same turn of the
loop, without a task.  One that has to wait becomes a task and holds a permit of its lane, so
that at most N of a lane run; a request that only waits for a process (a long poll, a full
stdin) gives its permit back unless the server was told to count strictly, for it must not
keep others out.  Before ``initialized`` everything is answered strictly in order, and with
``--concurrent-requests 1`` always.  Requests for a process wait behind the ``process/start`` of
its id, in order, until that is answered; requests for other processes do not.

An unknown method is answered here, a message that is no request in ``connection.py``.

What a client may queue is bounded: unanswered requests, and answers it does not read.
Beyond either, its socket is not read until it catches up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from handrail.errors import HandrailError, RpcError
from handrail.protocol import codec
from handrail.protocol.envelope import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    Request,
)
from handrail.protocol.methods import INITIALIZE, START, Lane
from handrail.server.handshake import check_handshake
from handrail.server.raw_results import Later, Parts, Streamed

if TYPE_CHECKING:
    from handrail.server.connection import Connection
    from handrail.server.methods.handlers import MethodRow
    from handrail.telemetry.otel import RequestSpan

log = logging.getLogger(__name__)

#: Unanswered requests of one client before its socket is no longer read.
MOST_REQUESTS = 8192
#: The same in bytes, and the size below which a request is not counted.
MOST_REQUEST_BYTES = 64 * 1024 * 1024
SMALL_REQUEST = 4096
#: A request this soon after the last answer is part of a quick exchange ...
QUICK_SECONDS = 0.0003
#: ... and the loop polls this long for the next one before it sleeps.
AWAKE_SECONDS = 0.00015
#: ... or for the answer of a helper process, which takes half of this.
NEAR_SECONDS = 0.0003
#: How long the answer to a start is held back for a client that waits for the end alone.
GATHER_SECONDS = 0.01
#: Unread answers of one client, in bytes, before its socket is no longer read.
MOST_UNREAD = 4 * 1024 * 1024


class QueuedRequest:
    """One request until its answer."""

    __slots__ = (
        "arrived",
        "began",
        "lane",
        "near",
        "over",
        "request",
        "row",
        "size",
        "span",
        "starts",
        "work",
    )

    def __init__(self, request: Request, row: MethodRow, lane: LaneState, size: int) -> None:
        self.request = request
        self.row = row
        self.lane = lane
        self.size = size
        self.arrived = self.began = monotonic()
        self.over = False
        #: Whether it takes as little time as one that is answered at once.
        self.near = False
        self.span: RequestSpan | None = None
        self.work: Coroutine[Any, Any, Any] | None = None
        #: The id of the process that it starts.
        self.starts: str | None = None


class LaneState:
    """The permits of one lane and the requests that wait for one."""

    __slots__ = ("free", "waiting")

    def __init__(self, permits: int) -> None:
        self.free = permits
        self.waiting: deque[QueuedRequest] = deque()


class RequestQueue:
    """All unanswered requests of one connection."""

    def __init__(self, conn: Connection, permits: int, *, strict: bool) -> None:
        self._conn = conn
        self._strict = strict
        self._rows = conn.server.rows
        self._export = conn.server.export
        ordinary = LaneState(permits)
        self._lanes = {
            Lane.ORDINARY: ordinary,
            Lane.CONTROL: ordinary if permits == 1 else LaneState(permits),
        }
        self._early = LaneState(1)
        #: Requests behind a start that is not answered yet, by the id of the process.
        self._starts: dict[str, deque[QueuedRequest] | None] = {}
        #: What requests wait for: a task, or a future of ``Later``.
        self._tasks: dict[asyncio.Future[Any], QueuedRequest] = {}
        self._unanswered = 0
        self._large_bytes = 0
        self._held = False
        self._answered = 0.0
        self._awake_until = 0.0
        self._awake = False
        self._gathers = False

    def take(self, request: Request, size: int) -> None:
        """Take a request that has come in."""
        if self._gathers:  # its client waits for something else, too
            self._gathers = False
            self._conn.transport.write_gathered()
        row = self._rows.find(request.method)
        if not self._conn.initialized or request.method == INITIALIZE:
            lane = self._early
        else:
            lane = self._lanes[row.lane]
        call = QueuedRequest(request, row, lane, size)
        self._unanswered += 1
        if size > SMALL_REQUEST:
            self._large_bytes += size
        if not self._waits_for_start(call):
            self._enter(call)
        if self._unanswered > MOST_REQUESTS or self._large_bytes > MOST_REQUEST_BYTES:
            self._hold()

    def _enter(self, call: QueuedRequest) -> None:
        """Run it, or let it wait for a permit of its lane."""
        if call.lane.free and not call.lane.waiting:
            self._run(call)
        else:
            call.lane.waiting.append(call)

    # --- behind a start --------------------------------------------------------------------

    def _waits_for_start(self, call: QueuedRequest) -> bool:
        """Queue a request behind the start of its process; register a start."""
        starts = call.request.method == START
        if not starts and not self._starts:
            return False
        params = call.request.params
        process_id = params.get("processId") if type(params) is dict else None
        if type(process_id) is not str:
            return False
        if process_id in self._starts:
            waiting = self._starts[process_id]
            if (
                waiting is None
            ):  # made for the first waiting request; most starts are answered before
                waiting = self._starts[process_id] = deque()
            waiting.append(call)
            return True
        if starts:
            self._starts[process_id] = None
            call.starts = process_id
        return False

    def _start_answered(self, process_id: str) -> None:
        """Run what came behind a start, up to the next start of the same id."""
        waiting = self._starts.pop(process_id, None)
        while waiting:
            call = waiting.popleft()
            call.began = monotonic()
            if call.request.method == START:
                self._starts[process_id] = waiting
                call.starts = process_id
                self._enter(call)
                return
            self._enter(call)

    # --- one call ------------------------------------------------------------------------

    def _run(self, call: QueuedRequest) -> None:
        """Answer a request now, or start its task."""
        call.row.measures.queued.observe(call.began - call.arrived)
        request = call.request
        if self._export is not None:
            trace = request.trace
            call.span = self._export.request(
                request.method,
                trace.traceparent if trace is not None else None,
                trace.tracestate if trace is not None else None,
            )
        try:
            result = self._invoke(request, call.row)
        except HandrailError as error:
            self._refuse(request, error)
            self._done(call, "error")
            return
        except Exception as bug:  # noqa: BLE001 (one handler must not end the connection)
            self._failed(request, bug)
            self._done(call, "error")
            return
        if type(result) is Later:
            call.lane.free -= 1
            self._tasks[result.future] = call
            result.future.add_done_callback(partial(self._brought, result.read))
            self._awake_until = 0.0
            return
        if isinstance(result, CoroutineType):  # of an async function; quicker than its ABC
            call.lane.free -= 1
            call.work = result
            task = self._conn.server.loop.create_task(self._finish(call, result))
            self._tasks[task] = call
            task.add_done_callback(self._ended)
            self._awake_until = 0.0
            return
        self._answer(request, result)
        self._stay_awake(call, self._done(call, "success"))

    def _stay_awake(self, call: QueuedRequest, now: float) -> None:
        """Poll a little longer for the next request, if this client sends one after the other.

        Falling asleep and waking up costs such a client more than the answer itself.  Only a
        request that came right after the last answer gets this time, so an idle or a slow
        connection never spins, and neither does one with requests that take longer.
        """
        if call.arrived - self._answered < QUICK_SECONDS and not self._tasks:
            self._poll(now + AWAKE_SECONDS)
        self._answered = now

    def answer_is_near(self, *, by_thread: bool = False) -> None:
        """Called by a request that waits for another process, which is about to answer.

        If it is the only one of such a client, the loop polls for that too.  ``by_thread``: it is a
        thread of this process, from which polling would take the interpreter's lock.
        """
        if len(self._tasks) == 1:
            (call,) = self._tasks.values()
            call.near = True
            if not by_thread and call.arrived - self._answered < QUICK_SECONDS:
                self._poll(monotonic() + NEAR_SECONDS)

    def gather(self, *, at_once: bool) -> None:
        """Called by a request: send its answer together with what follows it, a moment later.

        A client that wants the end of a short command is woken once instead of twice.  Only for
        one that waits for nothing else.  ``at_once``: what follows is known, and needs no timer.
        """
        if self._unanswered == 1:
            self._gathers = True
            self._conn.transport.gather(0.0 if at_once else GATHER_SECONDS)

    def _poll(self, until: float) -> None:
        self._awake_until = until
        if not self._awake:
            self._awake = True
            self._conn.server.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._awake = monotonic() < self._awake_until
        if self._awake:
            self._conn.server.loop.call_soon(self._look_again)

    def _invoke(self, request: Request, row: MethodRow) -> Any:
        params = None
        if row.shape is not None:
            given = request.params
            params = codec.convert({} if given is None else given, row.shape)
        elif not row.known:
            raise RpcError(METHOD_NOT_FOUND, f"no method `{request.method[:200]}` here")
        if row.family:
            check_handshake(self._conn, row.family, params)
        if row.handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"`{request.method}` is not offered by this server")
        return row.handler(self._conn, params)

    async def _finish(self, call: QueuedRequest, work: Coroutine[Any, Any, Any]) -> None:
        request = call.request
        outcome = "disconnected"
        try:
            answer = await work
            if type(answer) is Streamed:
                await self._conn.stream(request.id, answer)
            else:
                self._answer(request, answer)
            outcome = "success"
        except HandrailError as error:
            self._refuse(request, error)
            outcome = "error"
        except asyncio.CancelledError:
            raise
        except Exception as bug:  # noqa: BLE001 (as in _run)
            self._failed(request, bug)
            outcome = "error"
        finally:
            self._settle(call, outcome)

    def _brought(
        self, read: Callable[[asyncio.Future[Any]], Any], future: asyncio.Future[Any]
    ) -> None:
        """Answer a request whose result has come."""
        call = self._tasks.pop(future)
        request = call.request
        outcome = "disconnected"
        try:
            if not future.cancelled():
                outcome = "error"
                self._answer(request, read(future))
                outcome = "success"
        except HandrailError as error:
            self._refuse(request, error)
        except Exception as bug:  # noqa: BLE001 (as in _run)
            self._failed(request, bug)
        finally:
            self._settle(call, outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._tasks.pop(task)
        if not call.over:  # cancelled before its first step
            if call.work is not None:
                call.work.close()
            self._settle(call, "disconnected")
        elif call.near:
            self._stay_awake(call, monotonic())

    def _settle(self, call: QueuedRequest, outcome: str) -> None:
        call.over = True
        call.lane.free += 1
        self._done(call, outcome)
        self._next(call.lane)

    def _next(self, lane: LaneState) -> None:
        while lane.waiting and lane.free and self._conn.transport.buffered <= MOST_UNREAD:
            call = lane.waiting.popleft()
            call.began = monotonic()
            self._run(call)
        if self._held:
            self._release()

    # --- answers -------------------------------------------------------------------------

    def _answer(self, request: Request, result: Any) -> None:
        transport = self._conn.transport
        if type(result) is Parts:
            transport.send(b'{"id":%b,"result":' % codec.encode(request.id), *result.parts, b"}")
            if result.sent is not None:
                result.sent()
        else:
            transport.send(codec.result_message(request.id, result))
        self.check_unread()

    def _refuse(self, request: Request, error: HandrailError) -> None:
        code, data = INTERNAL_ERROR, None
        if isinstance(error, RpcError):
            code, data = error.code, error.data
        self._conn.transport.send(codec.error_message(request.id, code, str(error), data))
        self.check_unread()

    def _failed(self, request: Request, bug: Exception) -> None:
        log.error("a bug in the handler of %s", request.method[:80], exc_info=bug)
        text = "internal error; the server's log has the details"
        self._conn.transport.send(codec.error_message(request.id, INTERNAL_ERROR, text))

    def _done(self, call: QueuedRequest, outcome: str) -> float:
        """Count a finished request; returns the time."""
        self._unanswered -= 1
        if call.size > SMALL_REQUEST:
            self._large_bytes -= call.size
        now = monotonic()
        measures = call.row.measures.outcomes[outcome]
        measures.count.inc()
        measures.seconds.observe(now - call.began)
        measures.total_seconds.observe(now - call.arrived)
        if call.span is not None:
            call.span.end(outcome)
        if call.starts is not None:
            self._start_answered(call.starts)
        return now

    # --- called by the connection --------------------------------------------------------------

    def park(self, lane: Lane) -> None:
        """Release this request's concurrency permit while it blocks on a process."""
        if not self._strict:
            state = self._lanes[lane]
            state.free += 1
            self._conn.server.loop.call_soon(self._next, state)

    def unpark(self, lane: Lane) -> None:
        if not self._strict:
            self._lanes[lane].free -= 1

    def go_on(self) -> None:
        """Continue: the client reads again."""
        for lane in self._lanes.values():
            self._next(lane)
        self._release()

    def abandon(self) -> None:
        """Drop all requests: the client is gone."""
        behind = [call for waiting in self._starts.values() for call in waiting or ()]
        self._starts.clear()
        for call in behind:
            call.began = monotonic()
            self._done(call, "disconnected")
        for lane in {self._early, *self._lanes.values()}:
            while lane.waiting:
                call = lane.waiting.popleft()
                call.began = monotonic()
                self._done(call, "disconnected")
        for task in list(self._tasks):
            task.cancel()

    # --- bounds --------------------------------------------------------------------------------

    def check_unread(self) -> None:
        if self._conn.transport.buffered > MOST_UNREAD:
            self._hold()

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self._conn.transport.pause_reading()

    def _release(self) -> None:
        if (
            self._held
            and self._unanswered <= MOST_REQUESTS // 2
            and self._large_bytes <= MOST_REQUEST_BYTES // 2
            and self._conn.transport.buffered <= MOST_UNREAD
        ):
            self._held = False
            self._conn.transport.resume_reading()
