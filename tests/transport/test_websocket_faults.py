"""Peers without manners: violations, silence, floods, and those who never read.

The ids in the names (C1, B13 ...) are those of the fault matrix in the reliability spec.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import tracemalloc

import pytest
from websockets.asyncio.client import connect as their_connect
from websockets.exceptions import ConnectionClosed

from handrail.transport.frames import BINARY, CLOSE, PING, PONG, TEXT
from handrail.transport.http_head import HttpRequest, HttpResponse, upgrade_problem
from handrail.transport.message_limits import HIGH_WATER, MESSAGE_LIMIT
from handrail.transport.websocket import connect
from handrail.transport.websocket_connection import ConnectionLimits
from tests.support.coroutines import run
from tests.support.eventually import LIMIT
from tests.support.raw_sockets import UPGRADE, RawSocket, client_frame, raw_socket
from tests.transport.transport_kit import Recorder, echo, http, listening, ok, open_connections


async def expect_close(peer: RawSocket, code: int) -> str:
    """Read up to the close frame and the end behind it."""
    while True:
        opcode, payload = await peer.read_frame()
        if opcode == CLOSE:
            break
    assert int.from_bytes(payload[:2], "big") == code
    assert await peer.read_all() == b""
    return payload[2:].decode()


# -- violations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\x81\x01x", 1002, id="C5 unmasked"),
        pytest.param(client_frame(3, b"x"), 1002, id="C5 opcode"),
        pytest.param(client_frame(TEXT, b"x", first=0xC1), 1002, id="C5 reserved bit"),
        pytest.param(client_frame(TEXT, b"\xff"), 1007, id="C4 not UTF-8"),
        pytest.param(b"\x82\xff" + (2**62).to_bytes(8, "big"), 1009, id="C2 2^62 bytes"),
        pytest.param(b"\x82\xff" + (MESSAGE_LIMIT + 1).to_bytes(8, "big"), 1009, id="limit + 1"),
    ],
)
async def test_violations_are_closed_with_code_and_reason(data: bytes, code: int) -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        peer.send_frame(TEXT, b"fine")
        peer.write(data)
        assert await expect_close(peer, code) != ""
        await peer.close()
        assert (await server.until_lost()).startswith("the peer broke the protocol: ")
        assert server.messages == ["fine"]


async def test_the_limit_is_exact_for_their_client() -> None:
    server = Recorder()
    async with listening(server) as (_, port):
        # Not as a context manager: their close() trips over a line that is gone.
        them = await their_connect(f"ws://127.0.0.1:{port}", compression=None)
        await them.send(b"x" * MESSAGE_LIMIT)
        await server.until_messages(1)
        assert len(server.messages[0]) == MESSAGE_LIMIT
        server.messages.clear()
        with pytest.raises(ConnectionClosed):
            await them.send(b"x" * (MESSAGE_LIMIT + 1))
            await them.recv()
        assert them.close_code == 1009
        await asyncio.wait_for(them.wait_closed(), LIMIT)
        await server.until_lost()
        assert server.messages == []


@pytest.mark.both_loops
def test_c1_a_frame_over_the_limit_takes_no_memory(loop: str) -> None:
    async def main() -> None:
        server = Recorder()
        async with listening(server, close_timeout=5.0) as (_, port):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                loop = asyncio.get_running_loop()
                sock.setblocking(False)
                await loop.sock_sendall(sock, UPGRADE)
                assert (await loop.sock_recv(sock, 1000)).startswith(b"HTTP/1.1 101")
                size = 70 << 20
                await loop.sock_sendall(sock, b"\x82\xff" + size.to_bytes(8, "big") + b"mask")
                block = bytes(1 << 20)
                for _ in range(size >> 20):
                    await loop.sock_sendall(sock, block)
                assert (await loop.sock_recv(sock, 4))[2:] == (1009).to_bytes(2, "big")
            await server.until_lost()

    tracemalloc.start()
    try:
        run(main(), loop)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


async def test_c6_a_truncated_frame_and_an_end() -> None:
    server = Recorder()
    async with listening(server) as (listener, port):
        async with raw_socket(port) as peer:
            peer.send_frame(TEXT, b"whole")
            peer.write(client_frame(TEXT, b"x" * 100)[:50])
            peer.writer.write_eof()
            assert await peer.read_all() == b""
        assert await server.until_lost() == "the peer closed without a close frame"
        assert server.messages == ["whole"]
        assert open_connections(listener) == 0


async def test_a_reset_is_told() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.writer.transport.abort()
        assert "reset" in await server.until_lost()


async def test_the_peers_close_is_echoed() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        peer.send_frame(CLOSE, (4000).to_bytes(2, "big") + b"r\x1b[0m")
        peer.send_frame(TEXT, b"after")
        assert await peer.read_frame() == (CLOSE, (4000).to_bytes(2, "big"))
        assert await peer.read_all() == b""
        assert await server.until_lost() == "closed by the peer: 4000 r\\x1b[0m"
        assert server.messages == []


async def test_an_empty_close_gets_an_empty_echo() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        peer.send_frame(CLOSE, b"")
        assert await peer.read_frame() == (CLOSE, b"")
        assert await server.until_lost() == "closed by the peer: 1005"


async def test_after_our_close_everything_but_a_close_is_ignored() -> None:
    server = Recorder()
    async with listening(server, close_timeout=5.0) as (_, port):
        async with raw_socket(port) as peer:
            server.transport.close(1001, "x" * 500)
            opcode, payload = await peer.read_frame()
            assert (opcode, len(payload)) == (CLOSE, 125)
            peer.send_frame(TEXT, b"late")
            peer.send_frame(PING, b"late")
            peer.send_frame(CLOSE, payload)
            assert await peer.read_all() == b""
        await server.until_lost()
        assert server.messages == []


async def test_nonsense_after_our_close_is_thrown_away() -> None:
    server = Recorder()
    async with listening(server, close_timeout=5.0) as (_, port):
        async with raw_socket(port) as peer:
            server.transport.close()
            peer.write(b"\xff" * 100)
            await expect_close(peer, 1000)
            peer.write(b"\xff" * 100)
        assert (await server.until_lost()).startswith("closed by this side")


async def test_a_peer_that_does_not_answer_our_close_is_dropped() -> None:
    server = Recorder()
    async with listening(server, close_timeout=0.05) as (_, port):
        async with raw_socket(port) as peer:
            server.transport.close(1000, "bye")
            await expect_close(peer, 1000)
        await server.until_lost()


# -- the receiver's faults ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["connected", "message"])
async def test_a_receiver_that_fails_is_closed_with_1011(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    class Failing(Recorder):
        def connected(self, transport: object) -> None:
            super().connected(transport)  # type: ignore[arg-type]
            if where == "connected":
                raise ValueError("mine")

        def message(self, data: str | bytes | bytearray) -> None:
            super().message(data)
            raise ValueError("mine")

        def disconnected(self, why: str) -> None:
            super().disconnected(why)
            raise ValueError("even here")

    server = Failing()
    async with listening(server) as (listener, port), raw_socket(port) as peer:
        peer.write(client_frame(TEXT, b"1") + client_frame(TEXT, b"2"))
        await expect_close(peer, 1011)
        await peer.close()
        assert "1011" in await server.until_lost()
        assert server.messages == (["1"] if where == "message" else [])
        assert open_connections(listener) == 0

    assert "ValueError: mine" in caplog.text
    assert "ValueError: even here" in caplog.text


async def test_a_receiver_may_abort_or_close_inside_a_message() -> None:
    for end in ("abort", "close"):
        server = Recorder(lambda self, _, end=end: getattr(self.transport, end)())
        async with listening(server) as (_, port), raw_socket(port) as peer:
            peer.write(client_frame(TEXT, b"1") + client_frame(TEXT, b"2"))
            await peer.read_all()
            await peer.close()
            await server.until_lost()
            assert server.messages == ["1"]


# -- back-pressure ------------------------------------------------------------------------


async def test_pausing_is_honoured_between_the_frames_of_one_read() -> None:
    server = Recorder(lambda self, _: self.transport.pause_reading())
    async with listening(server) as (_, port), raw_socket(port) as peer:
        names = [str(n) for n in range(20)]
        peer.write(b"".join(client_frame(TEXT, name.encode()) for name in names[:10]))
        await server.until_messages(1)
        # More reads while paused: the socket is stopped, and nothing is lost.
        for name in names[10:]:
            peer.write(client_frame(TEXT, name.encode()))
            await peer.writer.drain()
            await asyncio.sleep(0)
        for count in range(1, 21):
            await server.until_messages(count)
            for _ in range(3):
                await asyncio.sleep(0)
            assert server.messages == names[:count]
            server.transport.resume_reading()
        peer.write(client_frame(TEXT, b"last"))
        await server.until_messages(21)


async def test_pausing_and_resuming_inside_a_message_goes_on() -> None:
    def on_message(recorder: Recorder, data: str | bytes) -> None:
        recorder.transport.pause_reading()
        recorder.transport.resume_reading()

    server = Recorder(on_message)
    async with listening(server) as (_, port), raw_socket(port) as peer:
        peer.write(b"".join(client_frame(TEXT, b"x") for _ in range(5)))
        await server.until_messages(5)


async def test_a_paused_server_holds_a_bounded_amount() -> None:
    server = Recorder(lambda self, _: self.transport.pause_reading())
    async with listening(server) as (_, port), raw_socket(port) as peer:
        block = client_frame(TEXT, b"x" * 1000) * 1000
        transport = peer.writer.transport
        for _ in range(10):  # more than the kernel keeps for us
            peer.write(block)
        # Taking one message after the other must not let it read far ahead.
        decoder = server.transport._decoder  # type: ignore[attr-defined]
        for count in range(1, 1000):
            await server.until_messages(count)
            server.transport.resume_reading()
            assert decoder.backlog <= 256_000 + 65536  # one read, of either loop
        transport.abort()
        server.transport.abort()
        await server.until_lost()


async def test_b7_a_slow_reader_presses_back() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        chunk = (b'{"a":"', b"x" * 65536, b'"}')
        sent = 0
        while server.calls[-1] != "pause_writing":
            server.transport.send(*chunk)
            sent += 1
        assert HIGH_WATER < server.transport.buffered < HIGH_WATER + 200_000
        for _ in range(sent):
            opcode, payload = await peer.read_frame()
            assert (opcode, payload) == (TEXT, b"".join(chunk))
        await server.until(lambda: server.calls[-1] == "resume_writing")
        assert server.transport.buffered == 0


async def test_closing_flushes_to_a_slow_reader() -> None:
    server = Recorder()
    async with listening(server, close_timeout=2.0) as (_, port):
        async with raw_socket(port) as peer:
            sent = 0
            while server.calls[-1] != "pause_writing":
                server.transport.send(b"x" * 65536)
                sent += 1
            server.transport.close(1001)
            for _ in range(sent):
                assert (await peer.read_frame())[0] == TEXT
            assert (await peer.read_frame())[0] == CLOSE
        await server.until_lost()


async def test_a_peer_that_does_not_read_cannot_hold_it_open() -> None:
    server = Recorder()
    async with listening(server, close_timeout=0.05) as (_, port):
        async with raw_socket(port) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while server.calls[-1] != "pause_writing":
                server.transport.send(b"x" * 1_000_000)
            server.transport.close(1001)
            await server.until_lost()
            peer.writer.transport.abort()


async def test_pings_without_reading_do_not_hoard_pongs() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        server.transport.pause_reading()
        while server.calls[-1] != "pause_writing":
            server.transport.send(b"x" * 1_000_000)
        before = server.transport.buffered
        server.transport.resume_reading()
        for _ in range(1000):
            peer.send_frame(PING, b"x" * 125)
        peer.send_frame(TEXT, b"done")
        await server.until_messages(1)
        assert server.transport.buffered == before
        peer.writer.transport.abort()


# -- liveness -----------------------------------------------------------------------------


async def test_pings_are_answered_with_their_payload() -> None:
    async with listening(Recorder()) as (_, port), raw_socket(port) as peer:
        peer.send_frame(PING, b"abc")
        assert await peer.read_frame() == (PONG, b"abc")


async def test_b4_a_silent_peer_is_pinged_and_dropped() -> None:
    server = Recorder()
    limits = {"ping_interval": 0.1, "silence_timeout": 0.25}
    async with listening(server, **limits) as (_, port):
        async with raw_socket(port) as peer:
            assert await peer.read_frame() == (PING, b"")
            assert await peer.read_frame() == (PING, b"")
            assert await server.until_lost() == "nothing came from the peer for 0.25 s"


async def test_our_client_drops_a_silent_server() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server) as (_, port):
        limits = ConnectionLimits(ping_interval=10.0, silence_timeout=0.1)
        await connect(f"ws://127.0.0.1:{port}", client, limits=limits)
        assert await client.until_lost() == "nothing came from the peer for 0.1 s"


async def test_peers_that_answer_pings_stay() -> None:
    server = Recorder()
    async with listening(server, ping_interval=0.02, silence_timeout=0.1) as (_, port):
        async with raw_socket(port) as peer:
            for _ in range(20):  # 0.4 s: four times the silence that would end it
                assert await peer.read_frame() == (PING, b"")
                peer.send_frame(PONG, b"")
            assert server.calls == ["connected"]


async def test_two_idle_ends_of_ours_keep_each_other() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server, ping_interval=0.02, silence_timeout=0.1) as (_, port):
        # The client never speaks by itself; it only answers.
        limits = ConnectionLimits(ping_interval=3600.0, silence_timeout=3600.0)
        line = await connect(f"ws://127.0.0.1:{port}", client, limits=limits)
        loop = asyncio.get_running_loop()
        later = loop.create_future()
        loop.call_later(0.4, later.set_result, None)
        await later
        assert server.calls == client.calls == ["connected"]
        line.close()
        await client.until_lost()
        await server.until_lost()


async def test_standing_still_ourselves_is_not_held_against_the_peer() -> None:
    server, client = Recorder(), Recorder()
    async with listening(server, ping_interval=0.05, silence_timeout=0.2) as (_, port):
        line = await connect(f"ws://127.0.0.1:{port}", client)
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251  the fault: a blocked loop, or a SIGSTOP
        line.send(b"still here")
        await server.until_messages(1)
        line.close()
        await client.until_lost()


async def test_a_peer_we_do_not_listen_to_is_not_called_silent() -> None:
    server = Recorder()
    async with listening(server, ping_interval=0.02, silence_timeout=0.05) as (_, port):
        async with raw_socket(port) as peer:
            server.transport.pause_reading()
            peer.send_frame(TEXT, b"unheard")
            for _ in range(10):  # pings every 0.02 s: four times the silence
                assert (await peer.read_frame())[0] == PING
            server.transport.resume_reading()
            await server.until_messages(1)
            assert server.why is None


async def test_a_paused_peer_that_takes_nothing_is_dropped() -> None:
    server = Recorder()
    async with listening(server, ping_interval=0.05, silence_timeout=0.2) as (_, port):
        async with raw_socket(port) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            server.transport.pause_reading()
            while server.calls[-1] != "pause_writing":
                server.transport.send(b"x" * 1_000_000)
            assert "nothing came" in await server.until_lost()
            peer.writer.transport.abort()


# -- the door -----------------------------------------------------------------------------


def half_route(request: HttpRequest) -> HttpResponse | Recorder:
    return Recorder(echo) if upgrade_problem(request) is None else ok(request)


async def test_b13_half_handshakes_end_at_the_deadline_and_hurt_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(half_route, handshake_timeout=0.8) as (listener, port):
        halves = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        try:
            for sock in halves[::2]:
                sock.sendall(b"GET / HTTP/1.1\r\nHost:")
            await hello(port)  # with all of them open
            answers = await asyncio.to_thread(drain_all, halves)
            await hello(port)
            starts = [answer[:12] for answer in answers]
            # The oldest had to make room; the others were asked to hurry, then dropped.
            assert starts[:236] == [b"HTTP/1.1 503"] * 236
            assert starts[236:] == [b"HTTP/1.1 408", b""] * 32
            assert open_connections(listener) == 0
        finally:
            for sock in halves:
                sock.close()

    assert caplog.text.count("unfinished handshakes") == 1


async def hello(port: int) -> None:
    client = Recorder()
    line = await connect(f"ws://127.0.0.1:{port}", client)
    line.send(b"hi")
    await client.until_messages(1)
    line.close()
    await client.until_lost()


def drain_all(socks: list[socket.socket]) -> list[bytes]:
    answers = []
    for sock in socks:
        sock.settimeout(LIMIT)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        answers.append(answer)
    return answers


async def test_an_honest_burst_is_let_in() -> None:
    async with listening(half_route, max_handshakes=4) as (listener, port):
        clients = [Recorder() for _ in range(40)]
        url = f"ws://127.0.0.1:{port}"
        lines = await asyncio.gather(*(connect(url, client) for client in clients))
        assert open_connections(listener) == 40
        for line in lines:
            line.abort()
        for client in clients:
            await client.until_lost()


async def test_a_flood_is_refused_at_the_door() -> None:
    async with listening(half_route, max_handshakes=1, handshake_timeout=5.0) as (_, port):
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        try:
            answers = await asyncio.to_thread(drain_all, socks[16:17])
            assert answers[0].startswith(b"HTTP/1.1 503 ")
        finally:
            for sock in socks:
                sock.close()


async def test_b14_the_connection_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(half_route, max_connections=50) as (listener, port):
        url = f"ws://127.0.0.1:{port}"
        clients = [Recorder() for _ in range(50)]
        for client in clients:
            await connect(url, client)
        for _ in range(3):
            status, _, body = await http(port, UPGRADE)
            assert (status, body) == (503, b"too many connections; try again later")
        assert (await http(port, b"GET /readyz HTTP/1.1\r\n\r\n"))[0] == 200
        for client in clients:
            client.transport.send(b"hi")
            await client.until_messages(1)
        clients[0].transport.close()
        await clients[0].until_lost()
        line = await connect(url, Recorder())
        assert open_connections(listener) == 50
        line.abort()

    assert caplog.text.count("50 connections are open") == 1


async def test_many_messages_in_one_read_stay_in_order() -> None:
    server = Recorder()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        wanted: list[str | bytes] = []
        for n in range(2000):
            body = os.urandom(n % 50)
            wanted.append(str(n) if n % 2 else body)
            peer.send_frame(TEXT if n % 2 else BINARY, str(n).encode() if n % 2 else body)
        await server.until_messages(2000)
        assert server.messages == wanted
