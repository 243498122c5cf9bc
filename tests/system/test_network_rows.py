"""What becomes of a managed network when server, porter, keeper, process or client are gone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.arena import managed_network
from tests.support.clients import SocketClient, chunks_of, dialled
from tests.support.eventually import eventually_so
from tests.support.processes import (
    bearing,
    children,
    command_line,
    descriptors,
    nothing_left,
    until_ended,
)
from tests.support.servers import ServerProcess
from tests.system.permissions import sandbox

pytestmark = [pytest.mark.system, pytest.mark.fault]

#: Opens a tunnel to the origin, reads it to its end and says what has come.
DOWNLOAD = """
import hashlib, os, socket, sys
proxy = socket.create_connection(("127.0.0.1", 800), 30)
proxy.sendall(b"CONNECT 127.0.0.1:%s HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\n\\r\\n")
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += proxy.recv(1)
print(head.split()[1].decode(), flush=True)
found = hashlib.sha256()
while data := proxy.recv(65536):
    found.update(data)
print("ALL", found.hexdigest(), flush=True)
"""
#: Sends a request to the proxy for each line of stdin, on one connection, and prints the status.
REQUESTS = """
import http.client, socket, sys
print("ready", flush=True)
proxy = None
for line in sys.stdin:
    proxy = proxy or http.client.HTTPConnection("127.0.0.1", 800, timeout=30)
    try:
        proxy.request("GET", line.strip())
        answer = proxy.getresponse()
        body = answer.read()
        print(answer.status, body[:99].decode(), flush=True)
    except (OSError, http.client.HTTPException) as error:
        print("broken", flush=True)
        proxy.close()
        proxy = None
"""


#: Lines come by a file, so that none has to pass a server.
LINES = """
import os, time
def lines():
    while True:
        try:
            with open("gate") as file:
                line = file.read()
        except FileNotFoundError:
            line = ""
        if line.endswith("\\n"):
            os.truncate("gate", 0)
            yield line
        time.sleep(0.01)
"""


#: A host of loopback that is on no list is asked about.
ASKING = {"proxy": {"policyDecisionTimeoutMs": 60_000}, "network": {"allowLocalBinding": True}}


class Origin:
    """A server outside: a download whose pieces the test lets go, and an answer to requests."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(3)) == b"GET":
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nORIGIN")

    async def download(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (piece := await self.pieces.get()) is not None:
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def origin(kind: str = "talk") -> AsyncIterator[Origin]:
    made = Origin()
    serve = getattr(made, kind)
    serving: set[asyncio.Task[Any] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
        made.pieces.put_nowait(None)  # for one that still waits
        await asyncio.gather(*filter(None, serving))


class Rig:
    """A server with a state directory that is killed and started again, and its client."""

    def __init__(self, directory: Path) -> None:
        self.state, self.ws = directory / "state", directory / "w"
        self.ws.mkdir()
        self.server = ServerProcess(self.state)
        self.keeper = self.server.keeper()
        self.session = ""

    def again(self) -> None:
        """Another server on the same state, after the last one was killed."""
        self.server.close()
        self.server = ServerProcess(self.state)

    def kill_server(self) -> None:
        self.server.process.kill()
        self.server.process.wait()

    def porter(self) -> int:
        """The pid of the porter; 0: there is none."""
        parents = [self.keeper, 1, os.getpid()]
        found = [pid for parent in parents for pid in children(parent)]
        ours = [pid for pid in found if "network/porter/__main__.py" in command_line(pid)]
        return ours[0] if ours else 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[SocketClient]:
        async with dialled(self.server.url, handshake=not self.session) as client:
            if self.session:
                await client.resume(self.session)
            self.session = client.session
            yield client

    async def start(
        self, client: SocketClient, script: str, domains: dict[str, str], **members: Any
    ) -> None:
        network = managed_network(domains, **members.pop("network", {}))
        network["networkProxy"] |= members.pop("proxy", {})
        await client.start(
            "p",
            *(sys.executable, "-I", "-c", script),
            cwd=self.ws.as_uri(),
            sandbox=sandbox(self.ws),
            pipeStdin=True,
            **network,
            **members,
        )


@asynccontextmanager
async def rigged(directory: Path) -> AsyncIterator[Rig]:
    with nothing_left():
        rig = Rig(directory)
        try:
            yield rig
        finally:
            rig.server.stop()
            rig.server.close()


async def said(client: SocketClient, word: bytes) -> bytes:
    """All output of the process so far, once it has said this."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        page = await client.read("p", waitMs=500)
        text = chunks_of(page)
        if word in text:
            return text
        assert not page["closed"], text
        assert asyncio.get_running_loop().time() < deadline, text


def allow(port: int) -> dict[str, str]:
    return {f"127.0.0.1:{port}": "allow"}


PIECES = [bytes([number]) * 300_000 for number in range(4)]
EXPECTED = hashlib.sha256(b"".join(PIECES)).hexdigest().encode()


async def test_a_download_outlives_the_server(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin("download") as far:
        async with rig.client() as client:
            await rig.start(client, DOWNLOAD.replace("%s", str(far.port)), allow(far.port))
            await said(client, b"200")
            far.pieces.put_nowait(PIECES[0])
            rig.kill_server()
        far.pieces.put_nowait(PIECES[1])
        rig.again()
        async with rig.client() as client:
            far.pieces.put_nowait(PIECES[2])
            far.pieces.put_nowait(PIECES[3])
            far.pieces.put_nowait(None)
            assert EXPECTED in await said(client, b"ALL")


async def test_a_download_outlives_an_upgrade(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin("download") as far:
        async with rig.client() as client:
            await rig.start(client, DOWNLOAD.replace("%s", str(far.port)), allow(far.port))
            await said(client, b"200")
            porter = rig.porter()
            far.pieces.put_nowait(PIECES[0])
            os.kill(rig.server.pid, signal.SIGUSR2)
            await asyncio.to_thread(rig.server.wait)
        (successor,) = bearing(str(rig.state))
        try:
            async with rig.client() as client:
                for piece in (*PIECES[1:], None):
                    far.pieces.put_nowait(piece)
                assert EXPECTED in await said(client, b"ALL")
            assert rig.porter() == porter
        finally:
            os.kill(successor, signal.SIGTERM)
            await until_ended(successor)


async def test_a_download_outlives_the_keeper_and_then_the_server(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin("download") as far:
        async with rig.client() as client:
            await rig.start(client, DOWNLOAD.replace("%s", str(far.port)), allow(far.port))
            await said(client, b"200")
            far.pieces.put_nowait(PIECES[0])
            first = rig.keeper
            os.kill(first, signal.SIGKILL)

            def next_keeper() -> int:
                return next((pid for pid in children(rig.server.pid) if pid != first), 0)

            rig.keeper = await eventually_so(next_keeper)
            await client.call("process/list")  # which the new keeper answers
            far.pieces.put_nowait(PIECES[1])
            rig.kill_server()
        rig.again()
        async with rig.client() as client:
            far.pieces.put_nowait(PIECES[2])
            far.pieces.put_nowait(PIECES[3])
            far.pieces.put_nowait(None)
            assert EXPECTED in await said(client, b"ALL")


async def test_rules_hold_while_no_server_is_there(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin() as far:
        script = LINES + REQUESTS.replace("sys.stdin", "lines()")
        async with rig.client() as client:
            await rig.start(client, script, allow(far.port))
            gate = rig.ws / "gate"
            gate.write_text(f"http://127.0.0.1:{far.port}/\n")
            await said(client, b"200 ORIGIN")
            rig.kill_server()
        # On the connection that is open: nothing has to be asked of a server.
        gate.write_text("http://denied.example/\n")
        await eventually_so(lambda: not gate.exists() or gate.stat().st_size == 0)
        rig.again()
        async with rig.client() as client:
            assert b'"host":"denied.example"' in await said(client, b"403")


async def test_an_open_question_is_asked_again_by_the_next_server(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin() as far:
        async with rig.client() as client:
            await rig.start(client, REQUESTS, {"ok.example": "allow"}, **ASKING)
            await client.write("p", f"http://127.0.0.1:{far.port}/\n".encode(), "w")
            first = await client.until(lambda: _question(client))
            rig.kill_server()
        rig.again()
        async with rig.client() as client:
            again = await client.until(lambda: _question(client))
            assert again["params"] == first["params"]
            answer = {"id": again["id"], "result": {"decision": {"type": "allow"}}}
            client.send_text(json.dumps(answer))
            assert b"200 ORIGIN" in await said(client, b"200")


async def test_a_client_that_is_gone_says_no(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin() as far:
        async with rig.client() as client:
            await rig.start(client, REQUESTS, {"ok.example": "allow"}, **ASKING)
            await client.write("p", f"http://127.0.0.1:{far.port}/\n".encode(), "w")
            await client.until(lambda: _question(client))
        async with rig.client() as client:
            assert b"not_allowed" in await said(client, b"403")


def _question(client: SocketClient) -> dict[str, Any] | None:
    asked = (m for m in client.messages if m.get("method") == "network/policyRequest")
    return next(asked, None)


@pytest.mark.parametrize("both", [False, True], ids=["porter", "porter and server"])
async def test_a_porter_that_dies_is_replaced(tmp_path: Path, both: bool) -> None:
    async with rigged(tmp_path) as rig, origin() as far:
        url = f"http://127.0.0.1:{far.port}/\n".encode()
        async with rig.client() as client:
            await rig.start(client, REQUESTS, allow(far.port))
            await client.write("p", url, "w1")
            await said(client, b"200 ORIGIN")
            await client.write("p", b"http://denied.example/\n", "w2")
            await said(client, b"403")
            first = rig.porter()
            if both:
                rig.kill_server()
            os.kill(first, signal.SIGKILL)
        if both:
            rig.again()
        async with rig.client() as client:
            await client.write("p", url, "w3")
            await client.write("p", url, "w4")  # the first may have met the dying one
            text = await said(client, b"403")
            while text.count(b"200 ORIGIN") < 2:
                text = await said(client, b"ORIGIN")
            assert rig.porter() not in (0, first)
            await client.call("process/closeStdin", processId="p")
            page = await client.read("p", waitMs=30_000, afterSeq=10_000)
            while not page["closed"]:
                page = await client.read("p", waitMs=500)
            (denial,) = page["denials"]
            assert (denial["host"], denial["source"]) == ("denied.example", "proxy")


@pytest.mark.skipif(os.getuid() != 0, reason="keeper and porter let no other process look in")
async def test_the_end_of_a_process_closes_what_it_had(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, origin() as far, rig.client() as client:
        await rig.start(client, REQUESTS, allow(far.port))
        await client.write("p", f"http://127.0.0.1:{far.port}/\n".encode(), "w")
        await said(client, b"200")
        holders = (rig.server.pid, rig.keeper, rig.porter())
        # The listener, the resolver's socket and the namespace.
        shared = await eventually_so(lambda: _in_all(holders))
        assert len(shared) == 3, shared
        assert sum(name.startswith("net:") for name in shared) == 1
        await client.call("process/terminate", processId="p")
        await client.until_closed("p")
        for pid in holders:
            await eventually_so(lambda pid=pid: not shared & _held(pid), str(pid))  # type: ignore[misc]


def _in_all(holders: tuple[int, ...]) -> set[str]:
    """What all of them hold, once the namespace is among it."""
    shared = set.intersection(*map(_held, holders))
    return shared if any(name.startswith("net:") for name in shared) else set()


def _held(pid: int) -> set[str]:
    names = descriptors(pid).values()
    return {name for name in names if name.startswith(("socket:", "net:"))}


async def test_a_proxy_without_a_sandbox_goes_on_with_the_next_server(tmp_path: Path) -> None:
    script = REQUESTS.replace('"127.0.0.1", 800', '*os.environ["HTTP_PROXY"][7:].split(":")')
    async with rigged(tmp_path) as rig, origin() as far:
        url = f"http://127.0.0.1:{far.port}/\n".encode()
        async with rig.client() as client:
            network = {**managed_network(allow(far.port)), "enforceManagedNetwork": False}
            words = (sys.executable, "-I", "-c", "import os\n" + script)
            await client.start("p", *words, pipeStdin=True, **network)
            await client.write("p", url, "w1")
            await said(client, b"200 ORIGIN")
            porter = rig.porter()
            rig.kill_server()
        rig.again()
        async with rig.client() as client:
            await client.write("p", url, "w2")
            text = await said(client, b"ORIGIN")
            while text.count(b"200 ORIGIN") < 2:
                text = await said(client, b"ORIGIN")
            assert rig.porter() == porter
