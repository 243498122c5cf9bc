"""The ways into a real server besides TCP: stdio and Unix sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import unix_connect

from tests.support.clients import Client, Refused, SocketClient
from tests.support.eventually import LIMIT
from tests.support.processes import alive, until_ended
from tests.support.servers import SERVE, ServerProcess, server_process


class LineClient(Client):
    """One message a line, over any pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self.reader = reader
        self.writer = writer
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while line := await self.reader.readline():
                self.take(line)
        except ConnectionError:
            pass
        self.ended("end of file")

    def send_text(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.writer.write(data + b"\n")

    async def close(self) -> None:
        self.writer.close()
        await self.until_ended()
        await self.task


class StdioClient(Client):
    """The parent of a server on stdio."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        assert server.process.stdin is not None
        assert server.process.stdout is not None
        self.stdin = server.process.stdin
        self.out = server.process.stdout.fileno()
        self.rest = b""
        asyncio.get_running_loop().add_reader(self.out, self._readable)

    def _readable(self) -> None:
        data = os.read(self.out, 1 << 20)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.take(line)
        if not data:
            asyncio.get_running_loop().remove_reader(self.out)
            self.ended("end of file")

    def send_text(self, text: str | bytes) -> None:
        self.stdin.write((text.encode() if isinstance(text, str) else text) + b"\n")
        self.stdin.flush()

    async def close(self) -> None:
        self.stdin.close()
        await self.until_ended()


async def pid_of(client: Client, process_id: str) -> int:
    rows = (await client.call("process/list"))["processes"]
    return next(int(row["pid"]) for row in rows if row["processId"] == process_id)


# --- stdio ------------------------------------------------------------------------------------


async def test_the_end_of_input_ends_everything(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", listen="stdio") as server:
        client = StdioClient(server)
        await client.handshake()
        await client.shell("p", "trap '' TERM HUP; setsid sleep 600 & echo $!; exec sleep 600")
        await client.until_output("p", b"\n")
        family = [await pid_of(client, "p"), int(client.output("p"))]
        await client.close()
        assert await asyncio.to_thread(server.wait) == 0
        for pid in family:
            assert not alive(pid)
        # Nothing but messages went to stdout, which the client has parsed; and no complaints.
        assert server.words() == ""


@pytest.mark.parametrize(
    "violation",
    [b'{"method":"nosuch"}', b'{"id":1,"result":1}', b'{"method":"initialized"}', b"\xff\xfe"],
)
async def test_a_violation_ends_the_server_without_more_input(
    tmp_path: Path, violation: bytes
) -> None:
    with server_process(tmp_path / "state", listen="stdio") as server:
        client = StdioClient(server)
        client.send_text(violation)
        await client.until_ended()
        assert await asyncio.to_thread(server.wait) == 0
        await client.close()


async def test_lines_may_end_in_any_way(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", listen="stdio") as server:
        client = StdioClient(server)
        client.send_text('{"id":1,"method":"initialize","params":{"clientName":"x"}}\r')
        client.send_text("   \t")
        client.send_text("")
        client.send_text("\r")
        client.send_text('{"method":"initialized"}')
        client.send_text('{"id":2,"method":"environment/status"} {"id":3,"method":"x"}')
        client.send_text("nonsense")
        client.send_text('{"id":4,"method":"environment/status"}')
        await client.until(lambda: len(client.messages) == 4)
        assert [message["id"] for message in client.messages] == [1, -1, -1, 4]
        await client.close()


def test_requests_before_the_end_of_input_are_answered(tmp_path: Path) -> None:
    lines = [
        {"id": 1, "method": "initialize", "params": {"clientName": "x"}},
        {"method": "initialized"},
        {"id": 2, "method": "environment/status"},
        {"id": 3, "method": "nosuch"},
    ]
    said = subprocess.run(
        [*SERVE, "--listen", "stdio", "--state-dir", str(tmp_path / "state")],
        input="\n".join(map(json.dumps, lines)).encode() + b"\n",
        capture_output=True,
        check=False,
        timeout=LIMIT,
    )
    assert said.returncode == 0
    assert said.stderr == b""
    assert [json.loads(line)["id"] for line in said.stdout.splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_server_on_stdio(tmp_path: Path, number: int) -> None:
    with server_process(tmp_path / "state", listen="stdio") as server:
        client = StdioClient(server)
        await client.handshake()
        await client.start("p", "sleep", "600")
        pid = await pid_of(client, "p")
        os.kill(server.pid, number)
        assert await asyncio.to_thread(server.wait) == 0
        assert not alive(pid)
        await client.close()


async def test_a_parent_that_does_not_read_is_not_a_reason_to_stay(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", listen="stdio") as server:
        assert server.process.stdin is not None
        stdin = server.process.stdin
        stdin.write(b'{"id":1,"method":"initialize","params":{"clientName":"x"}}\n')
        stdin.write(b'{"method":"initialized"}\n')
        stdin.flush()
        stdin.write(b'{"id":2,"method":"environment/info"}\n' * 2000)
        stdin.close()
        assert await asyncio.to_thread(server.wait) == 0


# --- Unix sockets --------------------------------------------------------------------------------


async def lines_to(path: str) -> LineClient:
    return LineClient(*await asyncio.open_unix_connection(path, limit=1 << 24))


async def test_a_socket_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "new" / "here.sock"
    with server_process(tmp_path / "state", listen=f"unix:{path}") as server:
        assert server.url == f"unix:{path}"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert server.stop() == (0, b"")
        assert not path.exists()


async def test_lines_and_websockets_on_one_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    with server_process(tmp_path / "state", listen=f"unix:{path}"):
        lines = await lines_to(path)
        await lines.handshake()
        await lines.shell("p", "echo lines")
        socket_ = await unix_connect(path, "ws://localhost/", compression=None)
        web = SocketClient(socket_)
        await web.handshake()
        await web.shell("p", "echo web")
        for client, word in ((lines, b"lines\n"), (web, b"web\n")):
            await client.until_closed("p")
            assert client.output("p") == word
        await web.close()
        await lines.close()


async def test_a_session_is_resumed_on_a_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    with server_process(tmp_path / "state", listen=f"unix:{path}"):
        first = await lines_to(path)
        await first.handshake()
        await first.start("p", "cat", pipeStdin=True)
        await first.write("p", b"one ", "1")
        await first.close()
        again = await lines_to(path)
        # The server may not have noticed yet.
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    await again.handshake(resumeSessionId=first.session)
                    break
                except Refused as error:
                    if error.code != -32010:
                        raise
        await again.write("p", b"two", "2")
        await again.call("process/closeStdin", processId="p")
        assert await again.read_to_close("p") == b"one two"
        await again.close()


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "here.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with server_process(tmp_path / "state", listen=f"unix:{path}"):
        said: Any = await asyncio.to_thread(
            subprocess.run,
            [*SERVE, "--listen", f"unix:{path}", "--state-dir", str(tmp_path / "other")],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert said.returncode == 1
        assert said.stdout == ""
        assert "another server listens" in said.stderr
        client = await lines_to(str(path))
        await client.handshake()
        await client.close()


async def test_metrics_over_a_socket_and_the_kinds_of_connections(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    with server_process(tmp_path / "state", listen=f"unix:{path}"):
        client = await lines_to(path)
        await client.handshake()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(LIMIT):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'handrail_connections_active{transport="unix"} 1' in answer
        await client.close()


async def test_the_end_of_the_server_is_the_end_of_its_children(tmp_path: Path) -> None:
    path = str(tmp_path / "here.sock")
    with server_process(tmp_path / "state", listen=f"unix:{path}") as server:
        client = await lines_to(path)
        await client.handshake()
        await client.start("p", "sleep", "600")
        pid = await pid_of(client, "p")
        os.kill(server.pid, signal.SIGTERM)
        await client.until_ended()
        await until_ended(pid)
        assert await asyncio.to_thread(server.wait) == 0
        await client.close()
