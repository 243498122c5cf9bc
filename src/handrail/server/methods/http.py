"""``http/request``: checks in the wire's words, answers whole or in pieces.

How a body is streamed.  The answer goes out first: the stream's task is made in the same
turn of the loop in which the handler returns, so its first step comes after it.  From then on
one piece is read from the network, sent, and the next one read when the client has read enough.
A stream ends with its connection.

Values of headers may be secrets: they are neither logged nor put into a sentence.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from handrail.errors import ConnectionLost, RpcError
from handrail.process.env_policy import IDENTITY
from handrail.protocol import codec, http_url
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS
from handrail.protocol.http import HeaderParams, HeaderShape, HttpRequestParams
from handrail.protocol.methods import Lane
from handrail.secret_variables import looks_secret
from handrail.server.http_out.client import Answer, BodyFailed, Header, HttpCall, HttpFailed
from handrail.server.raw_results import Parts

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: The largest body that is answered whole.
LARGEST_BODY = 64 * 1024 * 1024
#: The largest piece of a streamed body, before base64 (exec-server 0.166.0).
LARGEST_DELTA = 1024 * 1024
#: Limits of one connection: concurrent requests, and streamed bodies.
MOST_REQUESTS = 64
MOST_STREAMS = 256
#: A longer timeout counts as none.
LONGEST_TIMEOUT = 365 * 86_400.0

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_LONGEST_NAME = 65_535
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: Header values of answers that are passed on; others are dropped.
_READABLE = re.compile(rb"[\t\x20-\x7e]*")
#: The peer's sentence for a body that broke off.
_BROKEN = "error decoding response body"


class ConnectionHttp:
    """The requests and streams of one connection; closed with it."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.permits = asyncio.Semaphore(MOST_REQUESTS)
        self._streams: dict[str, Stream | None] = {}

    def claim(self, request_id: str) -> None:
        """Reserve a request id for a stream until it ends."""
        if request_id in self._streams:
            text = f"http/request streamResponse requestId `{request_id}` is already active"
            raise RpcError(INVALID_PARAMS, text)
        if len(self._streams) >= MOST_STREAMS:
            text = f"at most {MOST_STREAMS} http/request streams may be open per connection"
            raise RpcError(INTERNAL_ERROR, text)
        self._streams[request_id] = None

    def release(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def start(self, stream: Stream) -> None:
        self._streams[stream.request_id] = stream
        self.conn.server.spawn_task(stream.run())

    def close(self) -> None:
        """Stop all requests; the client is gone, so nothing is sent."""
        for stream in self._streams.values():
            if stream is not None:
                stream.stop()


def http_request(conn: Connection, params: HttpRequestParams) -> Coroutine[Any, Any, Parts]:
    body = b""
    if params.body_base64 is not None:
        body = codec.decode_base64(params.body_base64, "bodyBase64")
    if not params.stream_response:
        return _whole(conn, _call(conn, params, body), params.timeout_ms)
    request_id = params.request_id
    conn.http.claim(request_id)
    try:
        call = _call(conn, params, body)
    except RpcError:
        conn.http.release(request_id)
        raise
    return _begin_stream(conn, call, request_id, params.timeout_ms)


async def _whole(conn: Connection, call: HttpCall, timeout_ms: int | None) -> Parts:
    conn.calls.park(Lane.ORDINARY)
    try:
        async with conn.http.permits:
            deadline = _deadline(conn, timeout_ms)
            answer = await _send(conn, call, deadline)
            try:
                body = await _read_whole(answer, deadline)
            finally:
                await answer.close()
    finally:
        conn.calls.unpark(Lane.ORDINARY)
    return Parts([*_head(answer), *body, b'"}'])


async def _begin_stream(
    conn: Connection, call: HttpCall, request_id: str, timeout_ms: int | None
) -> Parts:
    conn.calls.park(Lane.ORDINARY)
    try:
        async with conn.http.permits:
            deadline = _deadline(conn, timeout_ms)
            answer = await _send(conn, call, deadline)
    except BaseException:
        conn.http.release(request_id)
        raise
    finally:
        conn.calls.unpark(Lane.ORDINARY)
    # No await between here and the answer, which must go out before the first piece.
    conn.http.start(Stream(conn, request_id, answer, deadline))
    return Parts([*_head(answer), b'"}'])


def _deadline(conn: Connection, timeout_ms: int | None) -> float | None:
    if timeout_ms is None or timeout_ms / 1000 > LONGEST_TIMEOUT:
        return None
    return conn.server.loop.time() + timeout_ms / 1000


async def _send(conn: Connection, call: HttpCall, deadline: float | None) -> Answer:
    try:
        async with asyncio.timeout_at(deadline):
            return await conn.server.http_client.send(call)
    except TimeoutError:
        text = f"http/request failed: error sending request for url ({call.url})"
        raise RpcError(INTERNAL_ERROR, text, {"cause": "the request timed out"}) from None
    except HttpFailed as error:
        data = {"cause": error.cause} if error.cause else None
        raise RpcError(INTERNAL_ERROR, f"http/request failed: {error}", data) from None


async def _read_whole(answer: Answer, deadline: float | None) -> list[bytes]:
    """The body as base64, in parts: encoded as it arrives, so that no turn of the loop is long."""
    parts: list[bytes] = []
    size, rest = 0, b""
    try:
        async with asyncio.timeout_at(deadline), aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > LARGEST_BODY:
                    raise _too_large()
                piece = rest + piece
                cut = len(piece) - len(piece) % 3
                parts.append(codec.encode_base64(piece[:cut]))
                rest = piece[cut:]
    except (BodyFailed, TimeoutError) as error:
        text = f"failed to read http/request response body: {_BROKEN}"
        cause = "the request timed out" if isinstance(error, TimeoutError) else str(error)
        raise RpcError(INTERNAL_ERROR, text, {"cause": cause}) from None
    parts.append(codec.encode_base64(rest))
    return parts


def _too_large() -> RpcError:
    text = (
        "failed to read http/request response body: it is larger than "
        f"{LARGEST_BODY} bytes; ask with streamResponse"
    )
    return RpcError(INTERNAL_ERROR, text)


def _head(answer: Answer) -> tuple[bytes, ...]:
    headers = [
        HeaderShape(name=name.decode("ascii"), value=value.decode("ascii"))
        for name, value in answer.headers
        if _READABLE.fullmatch(value)
    ]
    return (
        b'{"status":%d,"headers":' % answer.status,
        codec.encode(headers),
        b',"bodyBase64":"',
    )


# --- streams ------------------------------------------------------------------------------------


class Stream:
    """One body being streamed to the client."""

    def __init__(
        self, conn: Connection, request_id: str, answer: Answer, deadline: float | None
    ) -> None:
        self.request_id = request_id
        self._conn = conn
        self._answer = answer
        self._deadline = deadline
        self._seq = 0
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        error: str | None = None
        try:
            if self._stopped:
                return
            async with asyncio.timeout_at(self._deadline):
                await self._forward()
        except (BodyFailed, TimeoutError):
            error = _BROKEN
        except ConnectionLost:
            return
        finally:
            self._conn.http.release(self.request_id)
            await self._answer.close()
        self._say(b"", done=True, error=error)

    async def _forward(self) -> None:
        async with aclosing(self._answer.pieces()) as pieces:
            while True:
                await self._conn.writable()
                piece = await anext(pieces, b"")
                if not piece:
                    return
                for start in range(0, len(piece), LARGEST_DELTA):
                    self._say(piece[start : start + LARGEST_DELTA])

    def _say(self, piece: bytes, *, done: bool = False, error: str | None = None) -> None:
        self._seq += 1
        self._conn.transport.send(
            b'{"method":"http/request/bodyDelta","params":{"requestId":%b,"seq":%d,"deltaBase64":"'
            % (codec.encode(self.request_id), self._seq),
            codec.encode_base64(piece),
            b'","done":%b,"error":%b}}' % (codec.encode(done), codec.encode(error)),
        )


# --- parameters ----------------------------------------------------------------------------------


def _call(conn: Connection, params: HttpRequestParams, body: bytes) -> HttpCall:
    if not _TOKEN.fullmatch(params.method):
        raise _invalid("method is invalid: invalid HTTP method")
    try:
        url = http_url.parse(params.url)
    except http_url.OtherScheme as error:
        raise _invalid(f"only supports http and https URLs, got {error.scheme}") from None
    except http_url.BadUrl as error:
        raise _invalid(f"url is invalid: {error}") from None
    headers = tuple(_header(conn, header) for header in params.headers)
    _check_framing(headers, body)
    follow = params.redirect_policy == "follow"
    return HttpCall(params.method, url, headers, body, follow)


def _header(conn: Connection, header: HeaderParams) -> Header:
    name = header.name
    if not _TOKEN.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise _invalid("header name is invalid: invalid HTTP header name")
    text = header.value
    if header.value_env_var is not None:
        text += _variable(conn, name, header.value_env_var)
    value = text.encode("utf-8", "surrogateescape")
    if _NOT_IN_VALUE.search(value):
        raise _invalid(f"header value is invalid for {name}: failed to parse header value")
    return name.lower().encode("ascii"), value.strip(b" \t")


def _variable(conn: Connection, header: str, name: str) -> str:
    """The value of a variable of the server; one that is secret only if its flags name it."""
    value = conn.server.own_environment.get(name)
    if value is None:
        raise _invalid(f"header {header} requires executor environment variable {name}")
    secret = looks_secret(name) or name.upper() in IDENTITY
    if secret and name not in conn.server.settings.http_header_env:
        raise _invalid(f"header {header} cannot use executor environment variable {name}")
    if not value:
        raise _invalid(f"header {header} requires a non-empty executor environment variable {name}")
    return value


def _check_framing(headers: tuple[Header, ...], body: bytes) -> None:
    """Refuse what two readers could parse as two different requests; the peer sends it."""
    names = [name for name, _ in headers]
    if names.count(b"host") > 1:
        raise _invalid("header host may be given only once")
    lengths = {value for name, value in headers if name == b"content-length"}
    if lengths and lengths != {b"%d" % len(body)}:
        raise _invalid(f"header content-length must be the length of the body, {len(body)}")


def _invalid(what: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"http/request {what}")


HTTP_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {"http/request": http_request}
