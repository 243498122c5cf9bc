"""Unix sockets: a safe place, the right people, and either framing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import unix_connect as their_unix_connect

from handrail import private_places
from handrail.errors import ConnectionLost, UsageError
from handrail.transport import unix_socket
from handrail.transport.connection_limits import ListenLimits
from handrail.transport.http_head import HttpRequest, HttpResponse, upgrade_problem
from handrail.transport.message_limits import MESSAGE_LIMIT
from handrail.transport.unix_socket import UnixListener, connect, listen
from tests.support.coroutines import run
from tests.support.eventually import LIMIT
from tests.support.raw_sockets import UPGRADE, RawSocket, client_frame
from tests.transport.transport_kit import Recorder, echo, ok, open_connections


@asynccontextmanager
async def serving(
    path: Path, receiver: Recorder | None, **limits: Any
) -> AsyncIterator[UnixListener]:
    def route(request: HttpRequest) -> HttpResponse | Recorder:
        return receiver if upgrade_problem(request) is None and receiver else ok(request)

    listener = await listen(
        str(path),
        route,
        accept=lambda who: receiver,
        limits=ListenLimits(**{"close_timeout": 0.2} | limits),
    )
    try:
        yield listener
    finally:
        listener.abort()
        async with asyncio.timeout(LIMIT):
            await listener.wait_closed()


@asynccontextmanager
async def raw(path: Path) -> AsyncIterator[RawSocket]:
    peer = RawSocket(*await asyncio.open_unix_connection(str(path)))
    try:
        yield peer
    finally:
        await peer.close()


# -- speaking -----------------------------------------------------------------------------


async def test_lines_between_our_own(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "s"
    server, client = Recorder(echo), Recorder()
    async with serving(path, server) as listener:
        assert listener.sockname == str(path)
        line = await connect(str(path), client)
        assert (line.kind, line.peer) == ("unix", str(path))
        line.send(b'{"a":', b"1}")
        line.send(b"x" * 1_000_000)
        await client.until_messages(2)
        assert server.messages == client.messages == ['{"a":1}', "x" * 1_000_000]
        assert (server.transport.kind, server.transport.peer) == (
            "unix",
            f"uid {os.geteuid()}",
        )
        assert open_connections(listener) == 1
        line.close(1001, "bye")
        assert await client.until_lost() == "closed by this side: 1001 bye"
        assert await server.until_lost() == "end of input"
        assert open_connections(listener) == 0
    assert not path.exists()


async def test_a_last_line_without_its_end_is_delivered(tmp_path: Path) -> None:
    server = Recorder(echo)
    async with serving(tmp_path / "s", server), raw(tmp_path / "s") as peer:
        peer.write(b"{}\n{1}")
        peer.writer.write_eof()
        assert await peer.read_all() == b"{}\n{1}\n"
        assert await server.until_lost() == "end of input"


async def test_a_line_over_the_limit_ends_it(tmp_path: Path) -> None:
    server = Recorder()
    async with serving(tmp_path / "s", server), raw(tmp_path / "s") as peer:
        peer.write(b"{}\n" + b"x" * (MESSAGE_LIMIT + 2))
        assert await peer.read_all() == b""
        assert str(MESSAGE_LIMIT) in await server.until_lost()
        assert server.messages == ["{}"]


async def test_websocket_and_http_over_the_same_socket(tmp_path: Path) -> None:
    server = Recorder(echo)
    path = tmp_path / "s"
    async with serving(path, server) as listener:
        async with their_unix_connect(str(path), "ws://localhost/", compression=None) as them:
            await them.send("hi")
            assert await them.recv() == "hi"
            assert open_connections(listener) == 1
            assert server.transport.kind == "websocket"
        for request in (b"GET / HTTP/1.1\r\n\r\n", b"OPTIONS * HTTP/1.1\r\n\r\n"):
            async with raw(path) as peer:
                for byte in request:
                    peer.write(bytes((byte,)))
                    await peer.writer.drain()
                assert (await peer.read_all()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"GETX\n", b"G\n", b"get / HTTP/1.1\n", b"{}\n", b"POST\n"])
async def test_everything_else_is_a_line(tmp_path: Path, first: bytes) -> None:
    server = Recorder()
    async with serving(tmp_path / "s", server), raw(tmp_path / "s") as peer:
        for byte in first:
            peer.write(bytes((byte,)))
            await peer.writer.drain()
        await server.until_messages(1)
        assert server.messages == [first.decode().strip()]


async def test_pausing_is_honoured_between_lines(tmp_path: Path) -> None:
    server = Recorder(lambda self, _: self.transport.pause_reading())
    async with serving(tmp_path / "s", server), raw(tmp_path / "s") as peer:
        peer.write(b"1\n2\n")
        await server.until_messages(1)
        peer.write(b"3\n" * 10_000)
        for count in (1, 2, 3, 4):
            await server.until_messages(count)
            await asyncio.sleep(0)
            assert len(server.messages) == count
            server.transport.resume_reading()
        peer.writer.transport.abort()


# -- who may connect ----------------------------------------------------------------------


async def test_other_users_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unix_socket.secret_proof, "peer", lambda sock: (1, os.geteuid() + 1))

    server = Recorder()
    async with serving(tmp_path / "s", server):
        for data in (b"{}\n", UPGRADE):
            async with raw(tmp_path / "s") as peer:
                peer.write(data)
                assert await peer.read_all() == b""
        assert server.calls == []

    assert caplog.text.count("may not use this socket") == 1


async def test_accept_sees_who_it_is_and_may_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def accept(who: int) -> None:
        seen.append(who)
        if len(seen) == 2:
            raise ValueError("the secret")

    listener = await listen(str(tmp_path / "s"), ok, accept=accept)
    for _ in range(2):
        async with raw(tmp_path / "s") as peer:
            peer.write(b"{}\n")
            assert await peer.read_all() == b""
    assert seen == [os.geteuid()] * 2
    listener.close()
    await listener.wait_closed()

    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_the_caps_hold_here_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = Recorder()
    limits = {"max_connections": 1, "handshake_timeout": 0.1}
    async with serving(path, server, **limits), raw(path) as first:
        first.write(b"{}\n")
        await server.until_messages(1)
        async with raw(path) as second, raw(path) as third, raw(path) as silent:
            second.write(b"{}\n")
            assert await second.read_all() == b""
            third.write(UPGRADE)
            assert (await third.read_all()).startswith(b"HTTP/1.1 503 ")
            assert await silent.read_all() == b""
        assert server.why is None


async def test_a_violation_over_unix_has_its_code(tmp_path: Path) -> None:
    server = Recorder()
    async with serving(tmp_path / "s", server), raw(tmp_path / "s") as peer:
        await peer.upgrade()
        peer.write(client_frame(3, b"x"))
        opcode, payload = await peer.read_frame()
        assert (opcode, payload[:2]) == (8, (1002).to_bytes(2, "big"))


# -- the file -----------------------------------------------------------------------------


@pytest.mark.both_loops
def test_the_socket_is_ours_alone_from_the_first_instant(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made" / "s"
    modes = []
    original = socket.socket.listen

    def spying(self: socket.socket, backlog: int) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        original(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", spying)

    async def main() -> None:
        async with serving(path, None):
            assert modes[0] == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    old = os.umask(0)
    try:
        run(main(), loop)
    finally:
        assert os.umask(old) == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777 | stat.S_ISVTX])
async def test_a_directory_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(mode)

    with pytest.raises(UsageError, match="0700"):
        await listen(str(parent / "s"), ok, accept=lambda who: None)

    assert list(parent.iterdir()) == []


async def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)

    with pytest.raises(UsageError, match="does not belong"):
        await listen(str(tmp_path / "s"), ok, accept=lambda who: None)


async def test_a_live_socket_is_refused_and_a_stale_one_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    server = Recorder(echo)
    async with serving(path, server):
        with pytest.raises(UsageError, match="another server listens"):
            await listen(str(path), ok, accept=lambda who: None)
        async with raw(path) as peer:
            peer.write(b"alive\n")
            assert await peer.read(6) == b"alive\n"
    assert not path.exists()


async def test_something_else_at_the_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")

    with pytest.raises(UsageError, match="not a socket"):
        await listen(str(path), ok, accept=lambda who: None)
    with pytest.raises(UsageError, match="107 bytes"):
        await listen(str(tmp_path / ("x" * 200)), ok, accept=lambda who: None)
    with pytest.raises(UsageError, match="cannot use"):
        await listen(str(path / "below" / "s"), ok, accept=lambda who: None)

    assert path.read_text() == "precious"


async def test_a_socket_that_replaced_ours_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async with serving(path, None):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


async def test_two_servers_that_start_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s"

    starts = [listen(str(path), ok, accept=lambda who: None) for _ in range(5)]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    listeners = [o for o in outcomes if isinstance(o, UnixListener)]
    assert len(listeners) == 1
    assert sum(isinstance(o, UsageError) for o in outcomes) == 4
    async with raw(path) as peer:
        peer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await peer.read_all()).startswith(b"HTTP/1.1 200 ")
    listeners[0].close()
    await listeners[0].wait_closed()


async def test_a_start_waits_for_another_start_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    path = str(tmp_path / "s")
    runtime = Path(private_places.runtime_directory())
    other = os.open(runtime / "listen.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(unix_socket, "_LOCK_TRIES", 3)
        with pytest.raises(UsageError, match="stays locked"):
            await listen(path, ok, accept=lambda who: None)
        monkeypatch.setattr(unix_socket, "_LOCK_TRIES", 1000)
        starting = asyncio.ensure_future(listen(path, ok, accept=lambda who: None))
        asyncio.get_running_loop().call_later(0.05, fcntl.flock, other, fcntl.LOCK_UN)
        listener = await asyncio.wait_for(starting, LIMIT)
    finally:
        os.close(other)
    listener.close()
    await listener.wait_closed()


async def test_connecting_to_nobody(tmp_path: Path) -> None:
    client = Recorder()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await connect(str(tmp_path / "s"), client)
    assert client.calls == []


async def test_a_server_that_sends_at_once_is_heard(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawSocket(reader, writer)
        peer.write(b"welcome\n")
        await peer.read_all()
        await peer.close()
        gone.set()

    server = await asyncio.start_unix_server(greet, str(tmp_path / "s"))
    client = Recorder()
    line = await connect(str(tmp_path / "s"), client)
    await client.until_messages(1)
    line.close()
    await client.until_lost()
    await asyncio.wait_for(gone.wait(), LIMIT)
    server.close()
    await server.wait_closed()


# -- what has taken the place of a server --------------------------------------------------


async def test_what_listens_where_a_server_of_ours_was_has_to_know_its_secret(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with serving(path, Recorder()):
        line = await connect(str(path), Recorder())
        line.close()
    heard = bytearray()
    gone = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readline())
        writer.write(bytes(heard))
        heard.extend(await reader.read())
        writer.close()
        gone.set()

    server = await asyncio.start_unix_server(hear, str(path))
    with pytest.raises(ConnectionLost, match=r"does not prove .* remove .*/sockets/"):
        await connect(str(path), Recorder())
    await asyncio.wait_for(gone.wait(), LIMIT)
    assert heard.startswith(b"handrail-proof ")
    assert heard.count(b"\n") == 1
    server.close()
    await server.wait_closed()


async def test_secrets_of_directories_that_are_gone_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # other servers come and go
    kept = Path(private_places.state_home()) / "sockets"

    (tmp_path / "a").mkdir(mode=0o700)
    async with serving(tmp_path / "a" / "s", Recorder()):
        known = {place.name for place in kept.iterdir()}
    (tmp_path / "a").rmdir()
    async with serving(tmp_path / "s", Recorder()):
        now = {place.name for place in kept.iterdir()}
    assert len(known - now) == 1
    assert len(now - known) == 1


_LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listening", flush=True)
    with listening.accept()[0] as peer:
        print(peer.recv(100), flush=True)
"""


@pytest.mark.both_loops
def test_a_sandboxed_command_is_no_server(loop: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    argv = [sys.executable, "-m", "handrail", "sandbox", "--", "/usr/bin/python3", "-Ic", _LISTEN]
    with subprocess.Popen([*argv, path], cwd=tmp_path, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"listening\n"

        async def main() -> None:
            with pytest.raises(ConnectionLost, match="sandboxed command; remove the socket"):
                await connect(path, Recorder())

        run(main(), loop)
        assert command.stdout.readline() == b"b''\n"
