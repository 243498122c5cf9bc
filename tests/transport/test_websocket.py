"""WebSockets between well-behaved peers: ours with ours, and ours with `websockets`."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as their_connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as their_serve
from websockets.exceptions import ConnectionClosed

from handrail.errors import ConnectionLost, TransportError, UsageError
from handrail.transport.http_head import HttpRequest, HttpResponse
from handrail.transport.message_limits import MESSAGE_LIMIT
from handrail.transport.websocket import connect, listen
from handrail.transport.websocket_connection import ConnectionLimits
from handrail.transport.websocket_handshake import HandshakeError
from tests.support.eventually import LIMIT
from tests.support.raw_sockets import UPGRADE, RawSocket, raw_socket
from tests.transport.transport_kit import (
    Recorder,
    echo,
    http,
    listening,
    ok,
    open_connections,
    scripted,
)


async def test_ours_with_ours() -> None:
    server, client = Recorder(echo), Recorder()
    async with listening(server) as (listener, port):
        line = await connect(f"ws://127.0.0.1:{port}/?x=1", client)
        assert client.calls == ["connected"]
        assert client.transport is line
        assert (line.kind, line.peer) == ("websocket", f"127.0.0.1:{port}")
        line.send('{"grüß":'.encode(), b"", b"1}")
        line.send(b"")
        await client.until_messages(2)
        assert client.messages == server.messages == ['{"grüß":1}', ""]
        assert open_connections(listener) == 1
        assert server.transport.peer.startswith("127.0.0.1:")
        line.close(1001, "going\n")
        assert await client.until_lost() == "closed by this side: 1001 going\\n"
        assert await server.until_lost() == "closed by the peer: 1001 going\\n"
        assert open_connections(listener) == 0
        assert line.buffered == 0
        line.send(b"late")
        line.close()
        line.abort()


async def test_the_server_closes() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server) as (_, port):
        await connect(f"ws://127.0.0.1:{port}", client)
        server.transport.send(b"last words")
        server.transport.close(1012, "restart")
        server.transport.send(b"too late")
        assert await client.until_lost() == "closed by the peer: 1012 restart"
        assert await server.until_lost() == "closed by this side: 1012 restart"
        assert client.messages == ["last words"]


async def test_abort_tells_both_sides() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server) as (_, port):
        line = await connect(f"ws://127.0.0.1:{port}", client)
        line.abort()
        line.send(b"late")
        assert await client.until_lost() == "dropped by this side"
        assert await server.until_lost() == "the peer closed without a close frame"


@pytest.mark.parametrize("size", [65536, MESSAGE_LIMIT])
async def test_large_messages_both_ways(size: int) -> None:
    server, client = Recorder(echo), Recorder()
    async with listening(server) as (_, port):
        line = await connect(f"ws://127.0.0.1:{port}", client)
        line.send(b"x" * size)
        await client.until_messages(1)
        assert client.messages == ["x" * size]
        line.close()
        await client.until_lost()
        await server.until_lost()


async def test_nagle_is_off_on_both_sides() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server) as (_, port):
        await connect(f"ws://127.0.0.1:{port}", client)
        for end in (server, client):
            sock = end.transport._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        client.transport.abort()
        await client.until_lost()
        await server.until_lost()


async def test_ipv6_and_names() -> None:
    server, client = Recorder(), Recorder()
    try:
        listener = await listen("::1", 0, lambda request: server)
    except OSError:
        pytest.skip("no IPv6 here")
    assert isinstance(listener.sockname, tuple)
    line = await connect(f"ws://[::1]:{listener.sockname[1]}", client)
    assert server.transport.peer.startswith("[::1]:")
    line.close()
    await client.until_lost()
    await server.until_lost()
    listener.close()
    await listener.wait_closed()


# -- with `websockets` --------------------------------------------------------------------


async def test_their_client_with_our_listener() -> None:
    server = Recorder(echo)
    async with listening(server) as (_, port):
        url = f"ws://127.0.0.1:{port}"
        async with their_connect(url, subprotocols=["x"], compression="deflate") as them:
            assert them.subprotocol is None
            assert "Sec-WebSocket-Extensions" not in them.response.headers
            await them.send("text ü")
            assert await them.recv() == "text ü"
            await them.send(b"\x00binary")
            assert await them.recv() == "\x00binary"
            await them.send(["in ", "three ", "parts"])
            assert await them.recv() == "in three parts"
            await asyncio.wait_for(await them.ping(), LIMIT)
            await them.send("y" * 1_000_000)
            assert await them.recv() == "y" * 1_000_000
        assert them.close_code == 1000
        assert await server.until_lost() == "closed by the peer: 1000"


async def test_our_close_reaches_their_client() -> None:
    server = Recorder()
    async with listening(server) as (_, port):
        async with their_connect(f"ws://127.0.0.1:{port}", compression=None) as them:
            server.transport.close(1008, "no")
            with pytest.raises(ConnectionClosed):
                await them.recv()
            assert (them.close_code, them.close_reason) == (1008, "no")
            await server.until_lost()


@asynccontextmanager
async def their_server(ssl: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def handler(them: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in them:
                if message == "ping me":
                    await them.ping(b"payload")
                elif message == "close me":
                    await them.close(4001, "asked for")
                else:
                    await them.send(message)

    async with their_serve(handler, "127.0.0.1", 0, compression="deflate", ssl=ssl) as server:
        scheme = "ws" if ssl is None else "wss"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_our_client_with_their_server() -> None:
    client = Recorder()
    async with their_server() as url:
        line = await connect(url, client, headers=[("X-Test", "1")])
        line.send(b"hello ", "ü".encode())
        line.send(b"ping me")
        line.send(b"z" * 500_000)
        await client.until_messages(2)
        assert client.messages == ["hello ü", "z" * 500_000]
        line.send(b"close me")
        assert await client.until_lost() == "closed by the peer: 4001 asked for"


async def test_our_client_closes_their_server() -> None:
    client = Recorder()
    async with their_server() as url:
        line = await connect(url, client)
        line.close(1000, "bye")
        assert await client.until_lost() == "closed by this side: 1000 bye"


async def test_their_refusal_has_its_status_and_body() -> None:
    def refuse(them: ServerConnection, request: object) -> object:
        return them.respond(401, "missing token\n")

    client = Recorder()
    serve = their_serve(ServerConnection.wait_closed, "127.0.0.1", 0, process_request=refuse)
    async with serve as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="status 401: missing token") as caught:
            await connect(f"ws://127.0.0.1:{port}", client)
    assert caught.value.status == 401
    assert caught.value.body == b"missing token\n"
    assert client.calls == []


# -- the HTTP surface ---------------------------------------------------------------------


def route(request: HttpRequest) -> HttpResponse | Recorder:
    if request.path == "/fail":
        raise ValueError("the secret")
    if request.path == "/ws":
        return Recorder()
    if request.method == "POST":
        return HttpResponse(405, headers=(("Allow", "GET"),))
    return ok(request)


async def test_plain_http_is_answered_and_closed() -> None:
    async with listening(route) as (listener, port):
        status, head, body = await http(port, b"GET /readyz?x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, body) == (200, b"fine")
        status, head, body = await http(port, b"HEAD / HTTP/1.1\r\n\r\n")
        assert (status, body) == (200, b"")
        assert b"Content-Length: 4" in head
        big = b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)
        status, head, body = await http(port, big)
        assert (status, body) == (405, b"")
        assert (await http(port, b"nonsense\r\n\r\n"))[0] == 400
        assert (await http(port, b"GET / HTTP/1.1\r\nx: " + b"x" * 20_000))[0] == 431
        assert open_connections(listener) == 0


async def test_a_receiver_needs_a_valid_upgrade() -> None:
    server = Recorder()
    async with listening(server) as (_, port):
        status, _, body = await http(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == 400
        assert b"Upgrade: websocket" in body
        status, _, body = await http(port, UPGRADE.replace(b": 13", b": 12"))
        assert (status, body) == (400, b"only WebSocket version 13 is spoken here")
        assert server.calls == []


async def test_a_route_that_fails_gives_500_and_logs_no_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(route) as (_, port):
        request = b"GET /fail?token HTTP/1.1\r\n\r\n"
        assert (await http(port, request))[::2] == (500, b"internal error")

    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
    assert "token" not in caplog.text


async def test_frames_right_behind_the_request_are_not_lost() -> None:
    server = Recorder(echo)
    async with listening(server) as (_, port), raw_socket(port, upgraded=False) as peer:
        peer.write(UPGRADE + b"\x81\x82\x00\x00\x00\x00hi")
        assert (await peer.read_head()).startswith(b"HTTP/1.1 101 ")
        assert await peer.read_frame() == (1, b"hi")


async def test_closing_the_listener_keeps_open_connections() -> None:
    server, client = Recorder(echo), Recorder()
    async with listening(server) as (listener, port):
        line = await connect(f"ws://127.0.0.1:{port}", client)
        async with raw_socket(port, upgraded=False) as unfinished:
            unfinished.write(b"GET / HT")
            refused = await http(port, b"GET / HTTP/1.1\r\n\r\n")
            assert refused[0] == 400
            listener.close()
            assert await unfinished.read_all() == b""
        with pytest.raises(ConnectionLost):
            await connect(f"ws://127.0.0.1:{port}", Recorder())
        line.send(b"still here")
        await client.until_messages(1)
        line.close()
        await asyncio.wait_for(listener.wait_closed(), LIMIT)


# -- connecting ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://x/",
        "ws://",
        "ws://u:p@x/",
        "ws://x/#f",
        "ws://x:99999/",
        "ws://x/a b",
        "ws://x/ü",
        "ws://[::1",
        "x",
    ],
)
async def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(UsageError):
        await connect(url, Recorder())


async def test_a_tls_context_needs_wss() -> None:
    with pytest.raises(UsageError, match="wss"):
        await connect("ws://127.0.0.1:1", Recorder(), ssl=ssl.create_default_context())
    with pytest.raises(UsageError, match="handshake"):
        await connect("ws://127.0.0.1:1", Recorder(), headers=[("Host", "x")])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 and its key in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x"
    extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run([openssl, *command.split(), *extra], check=True, capture_output=True)
    with path.open("a") as both:
        both.write(Path(f"{path}.crt").read_text())
    return path


async def test_wss_with_their_server(certificate: Path) -> None:
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate)
    client = Recorder()
    async with their_server(ssl=server_tls) as url:
        with pytest.raises(TransportError, match="certificate") as caught:
            await connect(url, client)
        assert not isinstance(caught.value, ConnectionLost)
        trusting = ssl.create_default_context(cafile=certificate)
        line = await connect(url, client, ssl=trusting)
        line.send(b"v" * 300_000)
        await client.until_messages(1)
        assert client.messages == ["v" * 300_000]
        line.close()
        await client.until_lost()


async def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        said = f"^cannot connect to 127.0.0.1:{port}: Connection refused$"
        with pytest.raises(ConnectionLost, match=said):
            await connect(f"ws://127.0.0.1:{port}", Recorder())


async def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        client = Recorder()
        with pytest.raises(ConnectionLost, match=r"did not answer within 0\.05 s"):
            await connect(f"ws://127.0.0.1:{port}", client, open_timeout=0.05)
        assert client.calls == []


async def test_cancelling_a_connect_leaves_nothing_open() -> None:
    async def hold(peer: RawSocket) -> None:
        await peer.read_head()
        task.cancel()
        assert await peer.read_all() == b""

    async with scripted(hold) as port:
        task = asyncio.ensure_future(connect(f"ws://127.0.0.1:{port}", Recorder()))
        with pytest.raises(asyncio.CancelledError):
            await task


ANSWERS = {
    "not HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", TransportError, "does not speak HTTP"),
    "closed": (b"", ConnectionLost, "closed the connection during the handshake"),
    "half a head": (b"HTTP/1.1 101 Sw", ConnectionLost, "closed the connection"),
    "wrong accept": (
        (
            b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\n"
        ),
        TransportError,
        "does not fit our key",
    ),
    "body to the end": (b"HTTP/1.1 403 x\r\n\r\nno \x1b[31m", HandshakeError, r"403: no \\x1b"),
    "no body": (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", HandshakeError, "status 302$"),
    "a long body": (b"HTTP/1.1 500 x\r\n\r\n" + b"x" * 50_000, HandshakeError, "500: xxx"),
}


@pytest.mark.parametrize(("answer", "kind", "text"), ANSWERS.values(), ids=ANSWERS)
async def test_servers_that_answer_something_else(
    answer: bytes, kind: type[Exception], text: str
) -> None:
    async def play(peer: RawSocket) -> None:
        await peer.read_head()
        peer.write(answer)
        await peer.writer.drain()

    client = Recorder()
    async with scripted(play) as port:
        with pytest.raises(kind, match=text) as caught:
            await connect(f"ws://127.0.0.1:{port}", client)
    assert type(caught.value) is kind
    assert client.calls == []


async def test_a_refusal_in_pieces_is_read_to_its_length() -> None:
    async def play(peer: RawSocket) -> None:
        await peer.read_head()
        head = b"HTTP/1.1 401 x\r\nContent-Length: 13\r\n\r\n"
        for piece in (head, b"missing", b" token", b" and more"):
            peer.write(piece)
            await peer.writer.drain()
            await asyncio.sleep(0)
        await peer.read_all()  # kept open: the length alone says where it ends

    async with scripted(play) as port:
        with pytest.raises(HandshakeError) as caught:
            await connect(f"ws://127.0.0.1:{port}", Recorder())
        assert caught.value.body == b"missing token"


async def test_limits_of_the_client_are_its_own() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server) as (_, port):
        limits = ConnectionLimits(message_limit=10, close_timeout=0.2)
        await connect(f"ws://127.0.0.1:{port}", client, limits=limits)
        server.transport.send(b"x" * 11)
        assert "at most 10 bytes" in await client.until_lost()
        assert "1009" in await server.until_lost()
