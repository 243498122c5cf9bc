"""Calls over one connection: ids, replies, deadlines.  One object per connection.

It is the receiver of a transport.  A reply goes to its call, notifications to one callback, in
the order of their arrival and without a task in between.  A peer that breaks the protocol loses
the connection; all open calls fail at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from handrail.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    TransportError,
    UsageError,
)
from handrail.protocol import codec
from handrail.protocol.envelope import METHOD_NOT_FOUND, ErrorResponse, Notification, Request
from handrail.protocol.methods import POLICY_REQUEST
from handrail.protocol.peer import Peer
from handrail.protocol.process import (
    ClosedNotification,
    ExitedNotification,
    OutputNotification,
)
from handrail.transport.base import CLOSE_POLICY, Transport

log = logging.getLogger(__name__)

#: The most open calls, and those reserved for cleaning up.
MOST_CALLS = 1024
RESERVED_CALLS = 1


#: Bytes read before other tasks run; well below what is retained of a process.
BREATH_BYTES = 256 * 1024


#: What is told of every process: a connection hands it on as one of these.
NEWS = (OutputNotification, ExitedNotification, ClosedNotification)


class _Output(msgspec.Struct):
    params: OutputNotification


class _Exited(msgspec.Struct):
    params: ExitedNotification


class _Closed(msgspec.Struct):
    params: ClosedNotification


_Read = Callable[[Any], Any]
#: How that is decoded, without the generic path: by the beginning of a message.
_NEWS: dict[str | bytes, tuple[str, _Read]] = {}
for _method, _kind in (
    ("process/output", _Output),
    ("process/exited", _Exited),
    ("process/closed", _Closed),
):
    _beginning = f'{{"method":"{_method}",'
    _NEWS[_beginning] = _NEWS[_beginning.encode()] = _method, msgspec.json.Decoder(_kind).decode
_BEGINNING = len(_beginning)


#: A timer may fire so much earlier than its time.
_EARLY = 0.001


class _Late(Exception):
    """The deadline of a call is over."""


class CallTimedOut(TransportError):
    """No reply within the caller's deadline; whether the call was carried out is not known."""


class RpcConnection:
    """One end of a connection to an exec-server."""

    def __init__(
        self,
        notified: Callable[[str, Any], None],
        closed: Callable[[RpcConnection, str], None],
        asked: Callable[[Any, Callable[[Any], None]], bool] | None = None,
    ) -> None:
        """``asked``: takes the params of a ``network/policyRequest`` and what sends the answer;
        False if the question is not for this client."""
        self._asked = asked
        self._notified = notified
        self._closed = closed
        self._peer: Peer[asyncio.Future[Any]] = Peer()
        self._transport: Transport | None = None
        self._paused = False
        self._writers: list[asyncio.Future[None]] = []
        self._inbound: set[int] = set()
        self._unbroken = 0  # bytes received without a pause
        self._breathing = False
        self._held = False
        self._heard = 0  # messages received
        #: A prompt call was not answered in time, and no message has arrived since.
        self.silent = False
        #: When calls end without a reply, by their numbers; one timer, for most are answered long
        #: before.
        self._deadlines: dict[int, float] = {}
        self._clock: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone: str | None = None  # why, once it is
        self.broken = False  # the peer broke the protocol

    # --- Receiver ----------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        self._transport = transport

    def message(self, data: str | bytes | bytearray) -> None:
        self._heard += 1
        self.silent = False
        self._unbroken += len(data)
        if self._unbroken > BREATH_BYTES:
            self._breathe()
        try:
            head = data[:_BEGINNING]
            known = _NEWS.get(bytes(head) if isinstance(head, bytearray) else head)
            if known is not None:
                method, read = known
                self._notified(method, read(data).params)
                return
            message = codec.decode(data)
            if type(message) is Notification:
                self._notified(message.method, message.params)
            elif type(message) is Request:
                self._requested(message)
            else:
                self._replied(message)
        except (RemoteProtocolError, RpcError, msgspec.DecodeError) as error:
            # RpcError: the params of a notification do not fit its shape.
            self.broken = True
            self.drop(f"the server broke the protocol: {error}")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake_writers()

    def disconnected(self, why: str) -> None:
        if self.gone is None:
            self.gone = why
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self._wake_writers()
        if not self._over.done():
            self._over.set_result(None)
        for waiter in self._peer.abandon():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(f"the connection ended: {self.gone}"))
        self._closed(self, self.gone)

    # --- calls -------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        reserved: bool = False,
        prompt: bool = True,
    ) -> Any:
        """Make one call and return its result.

        ``prompt``: the server answers at once, so that a connection on which no message arrives
        within ``timeout`` (seconds) is ``silent`` from then on, until one does.

        Raises RpcError for the server's refusal, ConnectionLost when the connection is lost before
        the reply, CallTimedOut after ``timeout`` seconds, LocalProtocolError when too many
        calls are open, UsageError for a string that is no text.
        """
        most = MOST_CALLS + (RESERVED_CALLS if reserved else 0)
        if self._peer.pending >= most:
            raise LocalProtocolError(f"{most} calls are under way; wait for some of them")
        loop = asyncio.get_running_loop()
        heard, number = self._heard, 0
        deadline = None if timeout is None else loop.time() + timeout
        try:
            if self._paused and not reserved:
                await self._unpaused(deadline)
            if self.gone is not None or self._transport is None:
                raise ConnectionLost(f"the connection ended: {self.gone or 'never begun'}")
            waiter: asyncio.Future[Any] = loop.create_future()
            number = self._peer.call(waiter)
            self._transport.send(_message(number, method, params))
            if deadline is not None:
                self._end_by(number, deadline)
            return await waiter
        except _Late:
            # A connection that we do not read is silent because of us.
            self.silent |= prompt and heard == self._heard and not self._held
            raise CallTimedOut(
                f"no answer to {method} within {round(timeout or 0, 3):g} s"
            ) from None
        finally:
            self._peer.give_up(number)
            self._deadlines.pop(number, None)

    async def _unpaused(self, deadline: float | None) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                while self._paused and self.gone is None:
                    await self._writable()
        except TimeoutError:
            raise _Late from None

    def _end_by(self, number: int, deadline: float) -> None:
        self._deadlines[number] = deadline
        if self._clock is None or deadline < self._clock.when():
            self._wait_until(deadline)

    def _wait_until(self, deadline: float) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_at(deadline, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._clock = None
        now = asyncio.get_running_loop().time() + _EARLY
        for number, deadline in list(self._deadlines.items()):
            if deadline <= now:
                del self._deadlines[number]
                waiter = self._peer.give_up(number)
                if waiter is not None and not waiter.done():
                    waiter.set_exception(_Late())
        if self._deadlines:
            self._wait_until(min(self._deadlines.values()))

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        if self._transport is not None:
            self._transport.send(codec.notification_message(method, params))

    def mention(self, method: str, params: Any) -> None:
        """Make a call and ignore its answer."""
        if self._transport is not None and self.gone is None:
            number = self._peer.call(asyncio.get_running_loop().create_future())
            self._peer.give_up(number)
            self._transport.send(codec.request_message(number, method, params))

    @property
    def crowded(self) -> bool:
        """Whether half of the allowed calls are open."""
        return self._peer.pending >= MOST_CALLS // 2

    def close(self) -> None:
        """Close with a goodbye."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, without a goodbye."""
        if self._transport is not None:
            self._transport.abort()

    async def ended(self) -> None:
        """Wait until the connection is closed."""
        if self._transport is not None:
            await asyncio.shield(self._over)

    def drop(self, why: str) -> None:
        """Close this connection; with a goodbye unless the peer is silent."""
        if self.gone is None and self._transport is not None:
            log.warning("dropping a connection: %s", why)
            self.gone = why
            if self.silent:
                self._transport.abort()
            else:
                self._transport.close(CLOSE_POLICY, why[:100])

    # --- receiving -----------------------------------------------------------------------------

    def _breathe(self) -> None:
        """Let readers of the output run before more is read.

        A connection that is faster than this program delivers without a pause; a reader that only
        iterates must not lose output by that.
        """
        transport = self._transport
        if transport is not None and not self._breathing:
            self._breathing = True
            transport.pause_reading()
            self._go_on(turns=3)

    def _go_on(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._go_on, turns - 1)
            return
        self._breathing = False
        self._unbroken = 0
        if self._transport is not None and not self._held:
            self._transport.resume_reading()

    def hold(self, back: bool) -> None:
        """Stop reading from the socket, or read again."""
        self._held = back
        if self._transport is None:
            return
        if back:
            self._transport.pause_reading()
        elif not self._breathing:
            self._transport.resume_reading()

    async def _writable(self) -> None:
        writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers.append(writer)
        await writer

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def _replied(self, message: Any) -> None:
        waiter = self._peer.reply(message)
        if waiter is None or waiter.done():
            return  # late
        if type(message) is ErrorResponse:
            waiter.set_exception(RpcError(message.code, message.message, message.data))
        else:
            waiter.set_result(message.result)

    def _requested(self, request: Request) -> None:
        """Answer a call of the peer, of which we offer one; a malformed id breaks the protocol."""
        number = request.id
        if type(number) is not int or number < 0 or number in self._inbound:
            raise RemoteProtocolError(f"a call with the id {str(number)[:40]!r}")
        self._inbound.add(number)
        if len(self._inbound) > 4096:
            self._inbound = set(sorted(self._inbound)[-1024:])
        respond = partial(self._respond, number)
        asked = self._asked if request.method == POLICY_REQUEST else None
        if asked is not None and asked(request.params, respond):
            return
        text = f"this client does not offer {request.method[:80]}"
        if self._transport is not None:
            self._transport.send(codec.error_message(number, METHOD_NOT_FOUND, text))

    def _respond(self, number: int, result: Any) -> None:
        if self._transport is not None and self.gone is None:
            self._transport.send(codec.result_message(number, result))


def _message(number: int, method: str, params: Any) -> bytes:
    try:
        return codec.request_message(number, method, params)
    except UnicodeEncodeError as error:
        shown = error.object[max(0, error.start - 20) : error.end + 20]
        raise UsageError(
            f"{shown!r} is not UTF-8, which cannot be said in {method}; use text"
        ) from None
