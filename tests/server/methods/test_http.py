"""``http/request`` against a scripted server on loopback; the connection is a stub."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pytest

from handrail.errors import ConnectionLost, RpcError
from handrail.protocol import codec, http_url
from handrail.protocol.http import HttpRequestParams
from handrail.server.http_out import proxy_env
from handrail.server.http_out.client import HttpClient
from handrail.server.methods import http
from handrail.server.methods.http import ConnectionHttp, http_request
from tests.support.eventually import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# --- the other side ----------------------------------------------------------------------------


@dataclass
class Seen:
    """One request as it came in."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


Reply = bytes | Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """Answers by path; what is not listed is ok."""

    replies: dict[str, Reply] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            while True:
                seen = await self._request(reader)
                self.seen.append(seen)
                target = seen.line.split(" ")[1].removeprefix(self.url)
                reply = self.replies.get(target.partition("?")[0], OK)
                if isinstance(reply, bytes):
                    writer.write(reply)
                    await writer.drain()
                else:
                    await reply(seen, writer)
        except (OSError, asyncio.IncompleteReadError):
            self.gone.set()
        except asyncio.CancelledError:
            pass  # the site is closed; the streams of the library complain about it else
        finally:
            writer.close()
            self.serving.discard(task)

    async def _request(self, reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = [(name, value) for name, _, value in (h.partition(": ") for h in head[1:])]
        length = int(dict(headers).get("content-length", "0"))
        return Seen(head[0], headers, await reader.readexactly(length))


@asynccontextmanager
async def site(**replies: Reply) -> AsyncIterator[Site]:
    """A site whose paths are the names given."""
    it = Site({f"/{name}": reply for name, reply in replies.items()})
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    it.url = f"http://{host}:{port}"
    try:
        yield it
    finally:
        server.close()
        for task in list(it.serving):
            task.cancel()
        await asyncio.gather(*it.serving)


def moved(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def cut(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nxx")
    await writer.drain()
    raise ConnectionResetError


async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"y" * 65536)
        await writer.drain()


# --- our side ----------------------------------------------------------------------------------


class Stub:
    """A connection as the handlers see it; answers and notifications in the order sent."""

    def __init__(self, environment: dict[str, str], allowed: tuple[str, ...]) -> None:
        self.sent: list[Any] = []
        self.more = asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []
        self.parked = 0
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Event()
        self.lost = False
        self.transport = SimpleNamespace(send=self._send)
        self.calls = SimpleNamespace(park=self._park, unpark=self._unpark)
        self.server = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            settings=SimpleNamespace(http_header_env=allowed),
            own_environment=environment,
            http_client=HttpClient(environment),
            spawn_task=self._spawn,
        )
        self.http = ConnectionHttp(self)  # type: ignore[arg-type]

    def _send(self, *parts: bytes) -> None:
        self.sent.append(json.loads(b"".join(parts)))
        self.more.set()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def _park(self, lane: object) -> None:
        self.parked += 1

    def _unpark(self, lane: object) -> None:
        self.parked -= 1

    async def writable(self) -> None:
        if self.lost:
            raise ConnectionLost("gone")
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()

    async def call(self, url: str, method: str = "GET", **params: Any) -> Any:
        """The answer, sent as a connection does: in the turn in which the handler returns."""
        given = {"requestId": "r", "method": method, "url": url, **params}
        shape = codec.convert(given, HttpRequestParams)
        answer = await http_request(self, shape)  # type: ignore[arg-type]
        self._send(*answer.parts)
        return self.sent[-1]

    async def refused(self, url: str, method: str = "GET", **params: Any) -> RpcError:
        with pytest.raises(RpcError) as caught:
            await self.call(url, method, **params)
        return caught.value

    async def until_done(self, request_id: str = "r") -> list[dict[str, Any]]:
        """The deltas of a stream, to its end."""
        while True:
            deltas = [m["params"] for m in self.sent if m.get("method")]
            mine = [d for d in deltas if d["requestId"] == request_id]
            if mine and mine[-1]["done"]:
                return mine
            self.more.clear()
            await self.more.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.http.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.http_client.close()
        assert self.parked == 0


def connection(environment: dict[str, str] | None = None, *allowed: str) -> Stub:
    return Stub(environment or {}, allowed)


def body(answer: Any) -> bytes:
    return base64.b64decode(answer["bodyBase64"])


# --- what is sent ------------------------------------------------------------------------------


async def test_callers_headers_go_out_with_what_http_needs_and_nothing_else() -> None:
    headers = [
        {"name": "X-A", "value": "1"},
        {"name": "x-a", "value": "\t2 "},
        {"name": "User-Agent", "value": "é"},
    ]
    async with site() as web, connection() as conn:
        await conn.call(f"{web.url}/a?b#c")
        await conn.call(f"{web.url}/a", headers=headers)
        host = ("host", web.url.removeprefix("http://"))
        assert web.seen[0].line == "GET /a?b HTTP/1.1"
        assert sorted(web.seen[0].headers) == [("accept", "*/*"), host]
        assert sorted(web.seen[1].headers) == [
            ("accept", "*/*"),
            host,
            ("user-agent", "é"),
            ("x-a", "1"),
            ("x-a", "2"),
        ]


async def test_a_body_goes_out_with_its_length_and_no_body_without() -> None:
    async with site() as web, connection() as conn:
        await conn.call(f"{web.url}/a", "POST", bodyBase64="Ym9keQ==")
        await conn.call(f"{web.url}/a", "POST", bodyBase64="")
        chunked = [{"name": "Transfer-Encoding", "value": "chunked"}]
        await conn.call(f"{web.url}/a", "PUT", bodyBase64="YQ==", headers=chunked)
        assert [seen.body for seen in web.seen] == [b"body", b"", b"a"]
        assert [seen.header("content-length") for seen in web.seen] == ["4", None, "1"]
        assert web.seen[2].header("transfer-encoding") is None


async def test_method_host_and_credentials_are_the_callers() -> None:
    async with site() as web, connection() as conn:
        url = web.url.replace("//", "//u%40:p@")
        await conn.call(f"{url}/a", "patCH", headers=[{"name": "Host", "value": "other"}])
        await conn.call(f"{url}/a", headers=[{"name": "Authorization", "value": "mine"}])
        assert web.seen[0].line == "patCH /a HTTP/1.1"
        assert web.seen[0].header("host") == "other"
        assert web.seen[0].header("authorization") == "Basic dUA6cA=="
        assert web.seen[1].header("authorization") == "mine"


# --- what comes back ---------------------------------------------------------------------------


async def test_headers_are_kept_in_order_and_those_without_a_text_are_dropped() -> None:
    reply = (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nX-Bad: \xff\r\nX-Utf: \xc3\xa9\r\n"
        b"Content-Encoding: gzip\r\nX-Tab: a\tb\r\nX-None:\r\nContent-Length: 4\r\n\r\nabcd"
    )
    async with site(gz=reply) as web, connection() as conn:
        answer = await conn.call(f"{web.url}/gz")
        assert [(h["name"], h["value"]) for h in answer["headers"]] == [
            ("x-a", "1"),
            ("x-a", "2"),
            ("content-encoding", "gzip"),
            ("x-tab", "a\tb"),
            ("x-none", ""),
            ("content-length", "4"),
        ]
        assert body(answer) == b"abcd"


async def test_statuses_of_failure_are_answers() -> None:
    missing = b"HTTP/1.1 404 No\r\nContent-Length: 7\r\n\r\nmissing"
    empty = b"HTTP/1.1 204 No\r\n\r\n"
    async with site(missing=missing, empty=empty) as web, connection() as conn:
        answer = await conn.call(f"{web.url}/missing")
        assert (answer["status"], body(answer)) == (404, b"missing")
        answer = await conn.call(f"{web.url}/empty")
        assert (answer["status"], body(answer)) == (204, b"")


async def test_a_body_sent_with_head_does_not_become_the_next_answer() -> None:
    async with site() as web, connection() as conn:
        assert body(await conn.call(f"{web.url}/a", "HEAD")) == b""
        assert body(await conn.call(f"{web.url}/a")) == b"ok"


async def test_cookies_are_not_kept() -> None:
    reply = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    async with site(set=reply) as web, connection() as conn:
        await conn.call(f"{web.url}/set")
        await conn.call(f"{web.url}/a")
        assert web.seen[1].header("cookie") is None


async def test_large_bodies_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 4000
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    async with site(big=reply) as web, connection() as conn:
        assert body(await conn.call(f"{web.url}/big")) == content
        monkeypatch.setattr(http, "LARGEST_BODY", len(content) - 1)
        error = await conn.refused(f"{web.url}/big")
        assert error.code == -32603
        assert "streamResponse" in str(error)


# --- redirects ---------------------------------------------------------------------------------


def chain(length: int) -> dict[str, Reply]:
    return {f"r{n}": moved(302, f"/r{n - 1}") for n in range(1, length + 1)}


async def test_ten_redirects_are_followed_and_not_eleven() -> None:
    async with site(**chain(11)) as web, connection() as conn:
        assert (await conn.call(f"{web.url}/r10"))["status"] == 200
        assert web.seen[1].header("referer") == f"{web.url}/r10"
        error = await conn.refused(f"{web.url}/r11")
        assert (error.code, str(error)) == (-32603, "http/request failed: too many redirects")


async def test_stop_answers_the_redirect_itself() -> None:
    async with site(r=moved(302, "/a")) as web, connection() as conn:
        answer = await conn.call(f"{web.url}/r", redirectPolicy="stop")
        assert answer["status"] == 302
        assert {"name": "location", "value": "/a"} in answer["headers"]
        assert len(web.seen) == 1


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "GET", "GET"),
        (303, "HEAD", "HEAD"),
        (301, "PUT", "PUT"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ],
)
async def test_methods_after_a_redirect(status: int, method: str, then: str) -> None:
    async with site(r=moved(status, "/a")) as web, connection() as conn:
        kind = [{"name": "content-type", "value": "t"}]
        await conn.call(f"{web.url}/r", method, bodyBase64="Ym9keQ==", headers=kind)
        last = web.seen[-1]
        assert last.line == f"{then} /a HTTP/1.1"
        kept = then in ("PUT", "POST")
        assert (last.body, last.header("content-type")) == ((b"body", "t") if kept else (b"", None))


async def test_secrets_stay_at_their_place() -> None:
    names = ("Authorization", "Cookie", "Proxy-Authorization", "Host", "X-Kept")
    headers = [{"name": name, "value": "v"} for name in names]
    async with site() as there, site(r=moved(302, f"{there.url}/a")) as web, connection() as conn:
        await conn.call(f"{web.url}/r?secret", headers=headers)
        last = there.seen[-1]
        assert {name for name, _ in last.headers} == {"accept", "host", "referer", "x-kept"}
        assert last.header("referer") == f"{web.url}/"
        assert last.header("host") == there.url.removeprefix("http://")


async def test_a_location_that_leads_nowhere_is_an_answer_and_another_scheme_an_error() -> None:
    replies = {
        "bad": moved(302, "http://["),
        "latin": b"HTTP/1.1 302 X\r\nLocation: /\xe9\r\nContent-Length: 0\r\n\r\n",
        "none": b"HTTP/1.1 302 X\r\nContent-Length: 0\r\n\r\n",
        "file": moved(302, "file:///etc/passwd"),
    }
    async with site(**replies) as web, connection() as conn:
        for name in ("bad", "latin", "none"):
            assert (await conn.call(f"{web.url}/{name}"))["status"] == 302
        error = await conn.refused(f"{web.url}/file")
        text = "http/request failed: redirect target uses unsupported URL scheme: file"
        assert (error.code, str(error)) == (-32603, text)


# --- refusals ----------------------------------------------------------------------------------

BAD_NAME = {"name": "a b", "value": "1"}
BAD_VALUE = {"name": "X-A", "value": "1\n"}


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"method": "G T", "url": "nope"}, "method is invalid: invalid HTTP method"),
        ({"method": ""}, "method is invalid: invalid HTTP method"),
        (
            {"url": "nope", "headers": [BAD_NAME]},
            "url is invalid: relative URL without a base",
        ),
        ({"url": "FTP://x/"}, "only supports http and https URLs, got ftp"),
        ({"headers": [BAD_NAME, BAD_VALUE]}, "header name is invalid: invalid HTTP header name"),
        (
            {"headers": [BAD_VALUE, BAD_NAME]},
            "header value is invalid for X-A: failed to parse header value",
        ),
        (
            {"headers": [{"name": "a", "value": "\n", "valueEnvVar": "NOT_SET"}]},
            "header a requires executor environment variable NOT_SET",
        ),
        (
            {"headers": [{"name": "Content-Length", "value": "3"}]},
            "header content-length must be the length of the body, 0",
        ),
        (
            {"headers": [{"name": "Host", "value": "a"}, {"name": "host", "value": "b"}]},
            "header host may be given only once",
        ),
    ],
)
async def test_bad_parameters_are_named(params: dict[str, Any], text: str) -> None:
    async with connection() as conn:
        error = await conn.refused(**{"url": "http://127.0.0.1:1/", **params})
        assert (error.code, str(error)) == (-32602, f"http/request {text}")


@pytest.mark.parametrize(
    "params",
    [
        {"bodyBase64": "YQ"},
        {"bodyBase64": "YR=="},
        {"bodyBase64": " YQ=="},
        {"bodyBase64": "-_-_"},
        {"timeoutMs": 2**64},
        {"timeoutMs": -1},
        {"redirectPolicy": "x"},
        {"redirectPolicy": None},
        {"headers": None},
        {"streamResponse": None},
        {"requestId": None},
    ],
)
async def test_shapes_are_checked(params: dict[str, Any]) -> None:
    async with connection() as conn:
        assert (await conn.refused("http://127.0.0.1:1/", **params)).code == -32602


async def test_variables_go_into_headers_and_secret_ones_only_if_listed() -> None:
    secrets = ("UNLISTED_TOKEN", "my_api_key", "AWS_SECRET_ACCESS_KEY", "HANDRAIL_TOKEN",
               "GOOGLE_APPLICATION_CREDENTIALS", "OPENAI_FEDERATION_RULE_ID")  # fmt: skip
    environment = {"LISTED_TOKEN": "s3cret", "PLAIN": "p", "EMPTY": "", "LINES": "s3cret\n"}
    environment |= dict.fromkeys(secrets, "s3cret")

    def header(variable: str) -> dict[str, Any]:
        return {"headers": [{"name": "X-K", "value": "Bearer ", "valueEnvVar": variable}]}

    async with site() as web, connection(environment, "LISTED_TOKEN") as conn:
        await conn.call(f"{web.url}/a", **header("LISTED_TOKEN"))
        await conn.call(f"{web.url}/a", **header("PLAIN"))
        assert [one.header("x-k") for one in web.seen] == ["Bearer s3cret", "Bearer p"]
        for variable, text in {
            **{
                name: f"header X-K cannot use executor environment variable {name}"
                for name in secrets
            },
            "EMPTY": "header X-K requires a non-empty executor environment variable EMPTY",
            "MISSING": "header X-K requires executor environment variable MISSING",
            "LINES": "header value is invalid for X-K: failed to parse header value",
        }.items():
            error = await conn.refused(f"{web.url}/a", **header(variable))
            assert (error.code, str(error)) == (-32602, f"http/request {text}")
        assert len(web.seen) == 2


# --- failures ----------------------------------------------------------------------------------


async def test_no_answer_is_an_error_that_names_the_url_without_its_credentials() -> None:
    async with connection() as conn:
        error = await conn.refused("http://user:secret@127.0.0.1:1/a?b")
        text = "http/request failed: error sending request for url (http://127.0.0.1:1/a?b)"
        assert (error.code, str(error)) == (-32603, text)
        assert isinstance(error.data, dict)
        assert "secret" not in str(error.data)


async def test_a_name_that_cannot_be_resolved_is_an_error() -> None:
    async with connection() as conn:
        assert (await conn.refused(f"http://{'a' * 300}/")).code == -32603


async def test_a_timeout_covers_the_answer_and_its_body() -> None:
    async def half(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxx")
        await never(seen, writer)

    async with site(never=never, half=half) as web, connection() as conn:
        error = await conn.refused(f"{web.url}/never", timeoutMs=50)
        text = f"http/request failed: error sending request for url ({web.url}/never)"
        assert (error.code, str(error)) == (-32603, text)
        for seconds in PATIENCE:
            error = await conn.refused(f"{web.url}/half", timeoutMs=int(seconds * 1000))
            if "error sending request" not in str(error):  # else its head took too long
                break
        text = "failed to read http/request response body: error decoding response body"
        assert (error.code, str(error)) == (-32603, text)
        assert (await conn.call(f"{web.url}/a", timeoutMs=2**64 - 1))["status"] == 200


async def test_a_body_that_breaks_off_is_an_error() -> None:
    async with site(cut=cut) as web, connection() as conn:
        error = await conn.refused(f"{web.url}/cut")
        text = "failed to read http/request response body: error decoding response body"
        assert (error.code, str(error)) == (-32603, text)


# --- streams -----------------------------------------------------------------------------------


async def test_the_answer_comes_before_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LARGEST_DELTA", 4)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
    async with site(a=reply) as web, connection() as conn:
        await conn.call(f"{web.url}/a", streamResponse=True)
        deltas = await conn.until_done()
        assert conn.sent[0]["status"] == 200
        assert conn.sent[0]["bodyBase64"] == ""
        assert [d["seq"] for d in deltas] == [1, 2, 3, 4]
        pieces = [base64.b64decode(d["deltaBase64"]) for d in deltas]
        assert pieces == [b"0123", b"4567", b"89", b""]
        assert [d["done"] for d in deltas] == [False, False, False, True]
        assert {d["error"] for d in deltas} == {None}


async def test_a_stream_that_breaks_off_says_so_at_its_end() -> None:
    async def half(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxx")
        await never(seen, writer)

    async with site(cut=cut, half=half) as web, connection() as conn:
        await conn.call(f"{web.url}/cut", requestId="cut", streamResponse=True)
        for seconds in PATIENCE:  # for the head; what follows it is what takes too long
            given = {"requestId": "half", "streamResponse": True, "timeoutMs": int(seconds * 1000)}
            try:
                await conn.call(f"{web.url}/half", **given)
            except RpcError:
                continue
            break
        for name in ("cut", "half"):
            deltas = await conn.until_done(name)
            assert base64.b64decode(deltas[0]["deltaBase64"]) == b"xx"
            assert deltas[-1] == {
                "requestId": name,
                "seq": 2,
                "deltaBase64": "",
                "done": True,
                "error": "error decoding response body",
            }


async def test_a_request_id_serves_one_stream_at_a_time() -> None:
    released = asyncio.Event()

    async def held(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await released.wait()
        writer.write(b"ok")

    async with site(held=held) as web, connection() as conn:
        await conn.call(f"{web.url}/held", streamResponse=True)
        # Checked before anything else about the request.
        error = await conn.refused("nope", "G T", streamResponse=True)
        text = "http/request streamResponse requestId `r` is already active"
        assert (error.code, str(error)) == (-32602, text)
        assert (await conn.call(f"{web.url}/a"))["status"] == 200  # whole ones have no such rule
        released.set()
        await conn.until_done()
        assert (await conn.refused("nope", streamResponse=True)).code == -32602
        assert (await conn.refused("http://127.0.0.1:1/", streamResponse=True)).code == -32603
        assert (await conn.call(f"{web.url}/a", streamResponse=True))["status"] == 200


async def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_STREAMS", 1)
    async with site(endless=endless) as web, connection() as conn:
        conn.gate = asyncio.Event()
        await conn.call(f"{web.url}/endless", streamResponse=True)
        error = await conn.refused(f"{web.url}/a", requestId="s", streamResponse=True)
        assert "at most 1 http/request streams" in str(error)


async def test_nothing_is_read_while_the_client_does_not_keep_up() -> None:
    async with site(endless=endless) as web, connection() as conn:
        conn.gate = asyncio.Event()
        await conn.call(f"{web.url}/endless", streamResponse=True)
        await conn.waiting.wait()
        assert len(conn.sent) == 1
        conn.waiting.clear()
        conn.gate.set()
        conn.gate = asyncio.Event()
        await conn.waiting.wait()
        assert len(conn.sent) == 2  # one piece for one turn


async def test_a_stream_ends_with_its_connection() -> None:
    async with site(endless=endless) as web, connection() as conn:
        await conn.call(f"{web.url}/endless", streamResponse=True)
        while len(conn.sent) < 3:
            conn.more.clear()
            await conn.more.wait()
        conn.http.close()
        await web.gone.wait()
        assert not any(m.get("params", {}).get("done") for m in conn.sent)


async def test_a_stream_that_is_stopped_before_its_first_step_lets_go() -> None:
    async with site(endless=endless) as web, connection() as conn:
        await conn.call(f"{web.url}/endless", streamResponse=True)
        conn.http.close()
        await web.gone.wait()
        assert len(conn.sent) == 1


async def test_a_lost_connection_ends_the_stream_quietly() -> None:
    async with site(endless=endless) as web, connection() as conn:
        conn.lost = True
        await conn.call(f"{web.url}/endless", streamResponse=True)
        await web.gone.wait()
        await conn.tasks[0]
        assert len(conn.sent) == 1


# --- proxies -----------------------------------------------------------------------------------

PROXY = "http://p:1"


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://h", None),
        ({"HTTP_PROXY": PROXY}, "http://h", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://h", None),
        ({"http_proxy": "p:1"}, "http://h", PROXY),
        ({"HTTP_PROXY": PROXY, "http_proxy": "http://q"}, "http://h", PROXY),
        ({"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, "http://h", None),
        ({"http_proxy": "", "ALL_PROXY": PROXY}, "http://h", PROXY),
        ({"all_proxy": PROXY}, "https://h", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "h"}, "http://h", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": ".H.test"}, "http://h.test", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "x, h.test"}, "http://a.h.test", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "h.test"}, "http://ah.test", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*.h.test"}, "http://a.h.test", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "h.test:80"}, "http://h.test", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*"}, "http://127.0.0.1", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "127.0.0.0/8"}, "http://127.0.0.1", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "127.0.0.1/33"}, "http://127.0.0.1", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "::1"}, "http://[::1]", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "", "no_proxy": "h"}, "http://h", PROXY),
    ],
)
def test_the_environment_names_the_proxy(
    environment: dict[str, str], url: str, proxy: str | None
) -> None:
    parsed = http_url.parse(url)
    proxies = proxy_env.from_environment(environment)
    assert proxies.choose(parsed.scheme, parsed.host) == proxy


async def test_requests_go_through_the_proxy() -> None:
    async with site() as web:
        environment = {"http_proxy": web.url.replace("//", "//u:p@")}
        async with connection(environment) as conn:
            assert (await conn.call("http://far.test/a?b"))["status"] == 200
    assert web.seen[0].line == "GET http://far.test/a?b HTTP/1.1"
    headers = {name.lower(): value for name, value in web.seen[0].headers}
    assert (headers["host"], headers["proxy-authorization"]) == ("far.test", "Basic dTpw")


async def test_a_proxy_that_cannot_be_used_is_not_gone_around() -> None:
    async with site() as web, connection({"ALL_PROXY": "socks5://127.0.0.1:1"}) as conn:
        error = await conn.refused(f"{web.url}/a")
        assert error.code == -32603
        assert "socks5" in str(error)
        assert web.seen == []


# --- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h", "http://h/"),
        (" HTTP://H:80/a/../b/./c ", "http://h/b/c"),
        ("http:\\\\h\\a", "http://h/a"),
        ("http:h", "http://h/"),
        ("http:///h", "http://h/"),
        ("https://h:443/%2e%2E/b?", "https://h/b?"),
        ("http://u:p@h:8/?q#f", "http://h:8/?q#f"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://[0:0::1]:1/", "http://[::1]:1/"),
        ("http://%41_b/", "http://a_b/"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("http://１.2.3.4/", "http://1.2.3.4/"),
        ("http://h/ é\"<>`{}|^%zz'", "http://h/%20%C3%A9%22%3C%3E%60%7B%7D|^%zz'"),
        ("http://h/?' é\"<>`{}|\\", "http://h/?%27%20%C3%A9%22%3C%3E`{}|\\"),
        ("ht\ntp://h/\ta", "http://h/a"),
    ],
)
def test_urls_are_read_as_a_browser_does(text: str, url: str) -> None:
    assert str(http_url.parse(text)) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "relative URL without a base"),
        ("h/a", "relative URL without a base"),
        ("http://", "empty host"),
        ("http://:80/", "empty host"),
        ("http://u@/", "empty host"),
        ("http://\u00ad/", "empty host"),
        ("http://[::1", "invalid IPv6 address"),
        ("http://[1::2::3]/", "invalid IPv6 address"),
        ("http://[fe80::1%25eth0]/", "invalid IPv6 address"),
        ("http://1.2.3.4.5/", "invalid IPv4 address"),
        ("http://256.1.1.1/", "invalid IPv4 address"),
        ("http://a b/", "invalid international domain name"),
        ("http://a%00b/", "invalid international domain name"),
        ("http://xn--/", "invalid international domain name"),
        ("http://h:65536/", "invalid port number"),
        ("http://h:x/", "invalid port number"),
    ],
)
def test_bad_urls_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(http_url.BadUrl) as caught:
        http_url.parse(text)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("c", "http://h/a/c"),
        ("../c?d", "http://h/c?d"),
        ("/c#d", "http://h/c#d"),
        ("?x", "http://h/a/b?x"),
        ("#y", "http://h/a/b?q#y"),
        ("//z/w", "http://z/w"),
        ("https://z", "https://z/"),
        ("http:c", "http://h/a/c"),
        ("http:/c", "http://h/c"),
    ],
)
def test_locations_are_relative_to_where_they_came_from(reference: str, url: str) -> None:
    assert str(http_url.parse("http://h/a/b?q").join(reference)) == url


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, handrail.server.methods.http; print('httpx2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == b"False\n"
