"""C of the fault matrix: frames and messages no client should send, against a real server."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import dialled
from tests.support.eventually import LIMIT, eventually_so
from tests.support.raw_sockets import BINARY, TEXT, RawSocket, frame, header, raw_socket
from tests.support.servers import ServerProcess, server_process

MIB = 1024 * 1024
#: What one hostile message may leave behind; the heap of an allocator is not exact.
SLACK = 40 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all: what one test does to it, the next would see."""
    state: Path = tmp_path_factory.mktemp("input") / "state"
    with server_process(state) as server:
        yield server
        assert server.stop() == (0, b"")
        assert "Traceback" not in server.words()
        assert "a bug" not in server.words()


async def well(url: str) -> None:
    """Somebody else is served as ever."""
    async with dialled(url) as client:
        await client.shell("p", "echo well")
        await client.until_closed("p")
        assert client.output("p") == b"well\n"


async def alive(raw: RawSocket) -> None:
    """The same connection goes on."""
    await raw.request("environment/status", number=99)
    assert await raw.answer() == {"id": 99, "result": {"status": "ready"}}


@pytest.mark.parametrize("size", [16 * MIB + 1, 17 * MIB, 70 * MIB])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_c1_a_frame_over_the_limit(server: ServerProcess, size: int, opcode: int) -> None:
    before = server.rss()
    async with raw_socket(server.url) as raw:
        # Not asked for, so not sent either: the head says enough.
        await raw.send(header(0x80 | opcode, size))
        code, reason = await raw.closed()
        assert code == 1009
        assert reason
        await raw.read_all()
    assert server.rss() < before + SLACK
    await well(server.url)


async def test_c1_fragments_over_the_limit(server: ServerProcess) -> None:
    before = server.rss()
    piece = bytes(MIB)
    async with raw_socket(server.url) as raw:
        await raw.send(frame(TEXT, piece, first=TEXT))
        for _ in range(64):  # as many as with the peer
            await raw.send(frame(0, piece, first=0))
        code, _ = await raw.closed()
        assert code == 1009
    await eventually_so(lambda: server.rss() < before + SLACK)


async def test_c1_the_limit_itself_is_fine(server: ServerProcess) -> None:
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        message = b'{"id":5,"method":"environment/status"}'
        await raw.send(frame(TEXT, message.ljust(16 * MIB)))
        assert await raw.answer() == {"id": 5, "result": {"status": "ready"}}
        await raw.send(frame(BINARY, message))
        assert await raw.answer() == {"id": 5, "result": {"status": "ready"}}


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**40])
async def test_c2_a_head_that_announces_the_impossible(server: ServerProcess, size: int) -> None:
    before = server.rss()
    async with raw_socket(server.url) as raw:
        await raw.send(header(0x81, size))
        code, _ = await raw.closed()
        assert code in (1002, 1009)
        await raw.read_all()
    assert server.rss() < before + SLACK
    await well(server.url)


HOSTILE = {
    "5,000,000 levels": ("[", 5_000_000, ""),
    "as params": ('{"id":1,"method":"m","params":', 1, "[" * 5_000_000),
    "arrays": ('{"id":1,"method":"m","params":[' + "[]," * 5_000_000, 1, "[]]}"),
    "objects": ('{"id":1,"method":"m","params":[' + "{}," * 5_000_000, 1, "{}]}"),
    "keys": ("{" + '"a":1,' * 2_500_000, 1, '"b":1}'),
    "an open string": ('"' + '\\"' * 8_000_000, 1, ""),
    "digits": ('{"id":1,"method":"m","params":' + "9" * 1_000_000, 1, "}"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_c3_messages_made_to_hurt(server: ServerProcess, name: str) -> None:
    again, times, last = HOSTILE[name]
    payload = (again * times + last).encode()
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        await raw.send(frame(TEXT, b"warm up"))
        assert (await raw.answer())["id"] == -1
        before = server.rss()
        for _ in range(2):
            await raw.send(frame(TEXT, payload))
            answer = await raw.answer()
            assert answer["id"] == -1
            assert answer["error"]["code"] == -32600
            assert len(answer["error"]["message"]) < 500
        await alive(raw)
        # The message, its text and a copy; its values would be hundreds.
        assert server.rss() < before + SLACK + 3 * len(payload)


@pytest.mark.parametrize("payload", [b"\xff", b'{"a":"\xc3"}', b"\xed\xa0\x80", b"\xf8\x88\x80"])
async def test_c4_text_that_is_not_utf8(server: ServerProcess, payload: bytes) -> None:
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        await raw.send(frame(TEXT, payload))
        code, _ = await raw.closed()
        assert code == 1007
        await raw.read_all()
    await well(server.url)


async def test_c4_bytes_that_are_not_utf8_are_a_malformed_message(server: ServerProcess) -> None:
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        await raw.send(frame(BINARY, b"\xff"))
        assert (await raw.answer())["id"] == -1
        await alive(raw)


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"{}", masked=False),
        frame(TEXT, b"{}", first=0xC1),
        frame(TEXT, b"{}", first=0xA1),
        frame(TEXT, b"{}", first=0x91),
        frame(TEXT, b"{}", first=0x83),
        frame(TEXT, b"{}", first=0x8B),
        frame(TEXT, b"{}", first=0x80),  # a continuation of nothing
        frame(TEXT, b"{}", first=0x01) + frame(TEXT, b"{}"),  # a message within a message
        frame(9, b"x" * 126),  # a ping that is too long
        frame(9, b"x", first=0x09),  # a ping in pieces
        frame(8, b"\x03"),  # half a close code
    ],
)
async def test_c5_frames_that_are_none(server: ServerProcess, data: bytes) -> None:
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        await raw.send(data)
        code, _ = await raw.closed()
        assert code == 1002
        await raw.read_all()
    await well(server.url)


@pytest.mark.parametrize("cut", [1, 5, 10, 100])
async def test_c6_half_a_frame_and_the_end(server: ServerProcess, cut: int) -> None:
    async with raw_socket(server.url) as raw:
        session = (await raw.handshake())["sessionId"]
        await raw.send(frame(TEXT, b'{"id":1,"method":"process/list"}'.ljust(200))[:cut])
        raw.writer.write_eof()
        await raw.read_all()
    async with raw_socket(server.url) as raw:
        assert (await raw.handshake(resumeSessionId=session))["sessionId"] == session
        await alive(raw)


@pytest.mark.parametrize(
    "message", [b'{"method":"nosuch"}', b'{"id":7,"result":1}', '{"method":"😀%s"}' % ("ü" * 200)]
)
async def test_c8_what_ends_a_connection_and_not_its_session(
    server: ServerProcess, message: bytes | str
) -> None:
    payload = message if isinstance(message, bytes) else message.encode()
    async with raw_socket(server.url) as raw:
        session = (await raw.handshake())["sessionId"]
        await raw.send(frame(TEXT, payload))
        code, reason = await raw.closed()
        assert code == 1008
        assert reason.startswith(("unknown notification", "a reply to 7"))
        await raw.read_all()
    async with raw_socket(server.url) as raw:
        assert (await raw.handshake(resumeSessionId=session))["sessionId"] == session


async def test_c11_nothing_a_client_says_steers_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b[31m\x07\r\n\u202e\x9b" * 3
    with server_process(tmp_path / "state", "--log-level", "debug") as server:
        async with dialled(server.url, handshake=False) as client:
            await client.handshake()
            await client.start(evil, "cat", pipeStdin=True, name=evil)
            for data in (b"a", b"b"):  # a conflict, which is logged
                await client.write(evil, data, evil)
            await client.refused("process/read", processId=evil * 2)
            await client.refused(evil)
            client.send_text(evil)
            client.notify(evil)
            await client.until_ended()
        server.stop()
        words = server.words()
        assert "came again with other bytes" in words
        assert "unknown notification" in words
        assert not set(words) & set("\x1b\x07\r\u202e\x9b")


async def test_b15_requests_whose_answers_nobody_reads(server: ServerProcess) -> None:
    """The server stops reading, keeps its memory, and answers all of them in the end."""
    count = 30_000
    request = frame(TEXT, b'{"id":7,"method":"environment/info"}')
    async with raw_socket(server.url) as raw:
        await raw.handshake()
        before = server.rss()
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sending = asyncio.create_task(asyncio.to_thread(pump, raw, request * count))
        # Somebody else has all the time in the world meanwhile.
        for _ in range(20):
            await well(server.url)
        counts = await asyncio.to_thread(server.metrics)
        answered = counts['handrail_requests_total{method="environment/info",result="success"}']
        assert 0 < answered < count / 2
        assert server.rss() < before + SLACK
        raw.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(count):
            assert (await raw.answer())["id"] == 7
        await asyncio.wait_for(sending, LIMIT)
        await alive(raw)
    assert server.rss() < before + SLACK


def pump(raw: RawSocket, data: bytes) -> None:
    """Send from a thread of its own, blocking as long as the server does not read."""
    given = raw.writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(given.fileno())) as sock:
        sock.settimeout(LIMIT)
        sock.sendall(data)
