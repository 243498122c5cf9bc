"""The outbound HTTP client of the server: one connection pool for all clients.

A caller's headers are sent as they are, with ``accept`` and what HTTP/1.1 needs after them;
bodies are returned as received, never decompressed, and there are no cookies.  Redirects are
followed here, not by the library, because the wire has its own rules about what is sent along.

The library is loaded with the first request, in a thread: its import takes longer than ours in
total.  Only its transports are used; its client would log URLs.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from handrail.errors import HandrailError
from handrail.protocol.http_url import BadUrl, HttpUrl, OtherScheme
from handrail.server.http_out import proxy_env

Header = tuple[bytes, bytes]

MOST_REDIRECTS = 10
#: Seconds that an idle connection is kept.
KEEP_IDLE = 30.0
#: A redirect's body up to this size is read, so that its connection can be reused; for this many
#: seconds at most.
WORTH_READING = 16 * 1024
WORTH_WAITING = 0.5

_MOVED = {301, 302, 303, 307, 308}
_SECRET = {b"authorization", b"cookie", b"cookie2", b"proxy-authorization", b"www-authenticate"}
_ABOUT_BODY = {b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"}


class HttpFailed(HandrailError):
    """No answer came.  ``cause`` has what the wire's sentence leaves out."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


class BodyFailed(HandrailError):
    """The answer began and broke off."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request; header names are in lower case."""

    method: str
    url: HttpUrl
    headers: tuple[Header, ...] = ()
    body: bytes = b""
    follow: bool = True


class Answer:
    """An answer with its body still to be read; always close it."""

    def __init__(self, library: ModuleType, method: str, response: Any) -> None:
        self._library = library
        self._method = method
        self._response = response
        self.status: int = response.status_code
        #: In order, with repeated ones; names in lower case.
        self.headers: list[Header] = [(n.lower(), v) for n, v in response.headers.raw]

    def header(self, name: bytes) -> bytes | None:
        return next((value for found, value in self.headers if found == name), None)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; the next piece is read only when it is asked for."""
        if self._method == "HEAD":
            # Not read to its end, so the connection is not reused: some servers do send a body,
            # which the library would take for the beginning of the next answer.
            return
        try:
            async for piece in self._response.stream:
                if piece:
                    yield piece
        except self._library.HTTPError as error:
            raise BodyFailed(_cause(error)) from None

    async def close(self) -> None:
        await self._response.aclose()


class HttpClient:
    """The outbound HTTP client of one server; ``close`` it at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._proxies = proxy_env.from_environment(environment)
        self._loading: asyncio.Task[tuple[ModuleType, ssl.SSLContext]] | None = None
        self._transports: dict[str | None, Any] = {}

    async def send(self, call: HttpCall) -> Answer:
        """Send a request, follow its redirects, and return the last answer; raises HttpFailed."""
        if call.url.credentials is not None and not _has(call, b"authorization"):
            basic = b"Basic " + base64.b64encode(call.url.credentials)
            call = replace(call, headers=((b"authorization", basic), *call.headers))
        for _ in range(MOST_REDIRECTS + 1):
            answer = await self._send_once(call)
            following = _redirected(call, answer) if call.follow else None
            if following is None:
                return answer
            await _finish(answer)
            if isinstance(following, HttpFailed):
                raise following
            call = following
        raise HttpFailed("too many redirects")

    async def close(self) -> None:
        """Drop all connections; running requests fail."""
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.aclose()

    async def _send_once(self, call: HttpCall) -> Answer:
        library, tls = await self._library()
        url = call.url
        failed = f"error sending request for url ({url})"
        target = url.authority if call.method == "CONNECT" else url.target
        try:
            request = library.Request(
                call.method,
                url.origin + "/",
                headers=_all_headers(call),
                stream=library.ByteStream(call.body),
                extensions={"target": target.encode("ascii")},
            )
            request.method = call.method  # the library has upper-cased it
            transport = self._transport(library, tls, url)
            return Answer(library, call.method, await transport.handle_async_request(request))
        except (library.HTTPError, library.InvalidURL, UnicodeError) as error:
            # UnicodeError: a name that the resolver's encoding refuses.
            raise HttpFailed(failed, _cause(error)) from None

    def _transport(self, library: ModuleType, tls: ssl.SSLContext, url: HttpUrl) -> Any:
        proxy = self._proxies.choose(url.scheme, url.host)
        transport = self._transports.get(proxy)
        if transport is None:
            if proxy is not None and not proxy.startswith(("http://", "https://")):
                # Never bypass a proxy that cannot be used.
                scheme = proxy.partition(":")[0]
                raise HttpFailed(f"the environment names a {scheme} proxy, and only http is spoken")
            transport = self._transports[proxy] = library.AsyncHTTPTransport(
                verify=tls,
                proxy=proxy,
                limits=library.Limits(max_keepalive_connections=64, keepalive_expiry=KEEP_IDLE),
            )
        return transport

    async def _library(self) -> tuple[ModuleType, ssl.SSLContext]:
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_load))
        return await asyncio.shield(self._loading)


def _load() -> tuple[ModuleType, ssl.SSLContext]:
    import httpx2

    # Their debug lines show the headers of answers.
    logging.getLogger("httpcore2").setLevel(logging.WARNING)
    return httpx2, httpx2.create_ssl_context()


def _cause(error: Exception) -> str:
    """The library's message, which may quote the other side at length; cut."""
    return (str(error) or type(error).__name__)[:200]


def _has(call: HttpCall, name: bytes) -> bool:
    return any(found == name for found, _ in call.headers)


def _all_headers(call: HttpCall) -> list[Header]:
    """The caller's headers, then ours, in the order of the peer."""
    headers = [
        (n, v) for n, v in call.headers if n not in (b"content-length", b"transfer-encoding")
    ]
    if not _has(call, b"accept"):
        headers.append((b"accept", b"*/*"))
    if not _has(call, b"host"):
        headers.append((b"host", call.url.authority.encode("ascii")))
    if call.body or _has(call, b"content-length"):
        headers.append((b"content-length", b"%d" % len(call.body)))
    return headers


# --- redirects ---------------------------------------------------------------------------------


def _redirected(call: HttpCall, answer: Answer) -> HttpCall | HttpFailed | None:
    """The request that follows a redirect; None when the answer is the last one."""
    location = answer.header(b"location")
    if answer.status not in _MOVED or location is None:
        return None
    try:
        url = call.url.join(location.decode())
    except (BadUrl, UnicodeDecodeError):
        return None
    except OtherScheme as error:
        return HttpFailed(f"redirect target uses unsupported URL scheme: {error.scheme}")
    method, dropped, body = call.method, {b"referer"}, call.body
    if _loses_body(answer.status, method):
        method, body = "HEAD" if method == "HEAD" else "GET", b""
        dropped |= _ABOUT_BODY
    strange = url.place != call.url.place
    if strange:
        dropped |= _SECRET | {b"host"}
    headers = [(name, value) for name, value in call.headers if name not in dropped]
    if not (call.url.scheme == "https" and url.scheme == "http"):
        referer = call.url.origin + ("/" if strange else call.url.target)
        headers.append((b"referer", referer.encode("ascii")))
    return replace(call, method=method, url=url, headers=tuple(headers), body=body)


def _loses_body(status: int, method: str) -> bool:
    return status == 303 or (status in (301, 302) and method == "POST")


async def _finish(answer: Answer) -> None:
    """Close an unneeded answer; keep its connection reusable if that is cheap."""
    length = answer.header(b"content-length") or b""
    try:
        if length.isdigit() and int(length[:16]) <= WORTH_READING:
            async with asyncio.timeout(WORTH_WAITING), aclosing(answer.pieces()) as pieces:
                async for _ in pieces:
                    pass
    except (BodyFailed, TimeoutError):
        pass  # then its connection is closed instead
    finally:
        await answer.close()
