"""One plain request and its response, between the client and the origin or another proxy.

Both bodies are read to their ends and framed anew.  The request's body goes on while the response
comes, for an origin may answer early.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

from handrail.network import bodies, heads
from handrail.network.bodies import BadBody, Body, ChunkedBody, LengthBody, OpenBody
from handrail.network.porter.far_end import FarEnd
from handrail.network.porter.streams import Stream
from handrail.transport.http_head import HeadError, HeadReader, ResponseHead, parse_response

#: How long a response is waited for when its client has ended the connection or its half.
GONE_SECONDS = 60.0
_NO_BODY = frozenset((204, 304))
_PHRASE = re.compile(rb"[\t -~]*")


class UpstreamNonsense(Exception):
    """The origin answered something that is no response, or nothing."""


class Exchange:
    """A request that was allowed, over a way that is open."""

    def __init__(self, client: Stream, way: FarEnd, request: heads.ProxyRequest) -> None:
        self._client = client
        self._way = way
        self._far = way.far
        self._request = request
        #: Whether the client has got the beginning of a response.
        self.answered = False
        #: Whether the connection to the origin can take another request.
        self.far_stays = False
        self._all_sent = False

    async def run(self) -> bool:
        """Carry it out; whether the client may send another.  Raises UpstreamNonsense, OSError."""
        sent, received = self._far.sent, self._far.received
        outcome = "failed"
        try:
            await self._send_head()
            stays = await (self._both() if self._request.has_body else self._watched())
            outcome = "closed"
            return stays
        finally:
            self._way.ended(self._far.sent - sent, self._far.received - received, outcome)

    async def _watched(self) -> bool:
        """Wait for the response, for a while only once the client has ended its way.

        It may still read, but most that end here have gone, and an origin can be silent for ever.
        """
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def give_up() -> None:
            with contextlib.suppress(OSError):
                self._far.sock.shutdown(socket.SHUT_RDWR)

        def ended() -> None:
            timers.append(loop.call_later(GONE_SECONDS, give_up))

        self._client.watch_end(ended)
        try:
            return await self._response()
        finally:
            self._client.unwatch()
            for timer in timers:
                timer.cancel()

    async def _both(self) -> bool:
        """Send the body while the response comes; whether the client may send another request."""
        loop = asyncio.get_running_loop()
        sending, answer = loop.create_task(self._send_body()), loop.create_task(self._response())
        try:
            await asyncio.wait((sending, answer), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # a client that has gone, or broken framing, ends both
            stays = await answer
        finally:
            sending.cancel()
            answer.cancel()
            await asyncio.gather(sending, answer, return_exceptions=True)
        # An origin that has answered may leave the rest of the body unread.
        self.far_stays = self.far_stays and self._all_sent
        return stays and self._all_sent

    async def _send_head(self) -> None:
        proxy = self._way.proxy
        head = heads.forwarded(
            self._request,
            absolute=proxy is not None,
            authorization=proxy.authorization if proxy is not None else "",
        )
        try:
            await self._far.write(head)
        except OSError as error:
            raise UpstreamNonsense(error.strerror or "the connection broke") from None

    async def _send_body(self) -> None:
        """Send the body; raises BadBody, or OSError when the client has gone."""
        body: Body
        length = self._request.length
        body = ChunkedBody() if length is None else LengthBody(length)
        chunked = length is None
        while not body.done:
            data = await self._client.read()
            if not data:
                raise ConnectionResetError("the client closed in the middle of a body")
            piece = body.feed(data)
            last = bodies.LAST_CHUNK if chunked and body.done else b""
            try:
                await self._far.write((bodies.chunk(piece) if chunked else piece) + last)
            except OSError:
                return  # its answer may have come before
        self._client.rest = body.rest
        self._all_sent = True

    async def _response(self) -> bool:
        while True:
            head, first = await self._response_head()
            if head.status >= 200:
                break
            if head.status == 101:
                raise UpstreamNonsense("it switched protocols without being asked")
            if self._request.version == "HTTP/1.1":
                await self._client.write(_encoded(first, heads.end_to_end(head.headers)))
        return await self._relay(head, first)

    async def _response_head(self) -> tuple[ResponseHead, bytes]:
        reader = HeadReader(heads.HEAD_LIMIT)
        try:
            while True:
                data = await self._far.read()
                if not data:
                    raise UpstreamNonsense("it closed the connection without an answer")
                raw = reader.feed(data)
                if raw is not None:
                    self._far.rest = reader.rest
                    return parse_response(raw, heads.FIELD_COUNT), raw.partition(b"\r\n")[0]
        except HeadError as error:
            raise UpstreamNonsense(error.sentence) from None
        except OSError as error:
            raise UpstreamNonsense(error.strerror or "the connection broke") from None

    async def _relay(self, head: ResponseHead, first: bytes) -> bool:
        body, declared = _response_body(head, self._request.method)
        fields = list(heads.end_to_end(head.headers))
        old_client = self._request.version == "HTTP/1.0"
        chunked = isinstance(body, ChunkedBody) and not old_client
        stays = self._request.keep
        if chunked:
            fields.append(("transfer-encoding", "chunked"))
        elif declared is not None:
            fields.append(("content-length", declared))
        elif not body.done:
            stays = False
        if not stays:
            fields.append(("connection", "close"))
        elif old_client:
            fields.append(("connection", "keep-alive"))
        self.answered = True
        await self._client.write(_encoded(first, tuple(fields)))
        try:
            whole = await self._relay_body(body, chunked)
        except BadBody:
            return False
        version = first[:8].decode("ascii")
        self.far_stays = whole and heads.wants_to_stay(head.headers, version) and not body.rest
        return stays and (whole or isinstance(body, OpenBody))

    async def _relay_body(self, body: Body, chunked: bool) -> bool:
        """Copy a body; whether it came to its end."""
        while not body.done:
            try:
                data = await self._far.read()
            except OSError:
                return False
            if not data:
                return False
            piece = body.feed(data)
            await self._client.write(bodies.chunk(piece) if chunked else piece)
        if chunked:
            await self._client.write(bodies.LAST_CHUNK)
        return True


def _response_body(head: ResponseHead, method: str) -> tuple[Body, str | None]:
    """The body of a response, and its declared length; raises UpstreamNonsense."""
    lengths = {value.strip() for key, value in head.headers if key == "content-length"}
    codings = [value.lower() for key, value in head.headers if key == "transfer-encoding"]
    if len(lengths) > 1 or not all(map(heads.is_length, lengths)):
        raise UpstreamNonsense("its Content-Length is no number")
    declared = lengths.pop() if lengths else None
    if method == "HEAD" or head.status in _NO_BODY:
        return LengthBody(0), None if codings or head.status == 204 else declared
    if codings:
        if codings != ["chunked"]:
            raise UpstreamNonsense("its transfer coding is unknown")
        return ChunkedBody(), None
    if declared is not None:
        return LengthBody(int(declared)), declared
    return OpenBody(), None


def _encoded(first: bytes, fields: tuple[tuple[str, str], ...]) -> bytes:
    """A response head with the origin's status and phrase."""
    status, phrase = first[9:12], first[13:]
    if not _PHRASE.fullmatch(phrase):
        phrase = b""
    lines = [b"HTTP/1.1 " + status + b" " + phrase]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"
