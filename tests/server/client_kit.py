"""A client for tests, and two ways to a server: inside this process, or as a process of its own.

Every server is asked for under ``nothing_left``: whatever of its family is alive when it has
ended fails the test and is ended by us.  There are no sleeps here; whoever waits, waits for a
message, a pidfd or a descriptor, and never longer than ``WAIT``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from handrail.config import Listen, ServerSettings
from handrail.process.keeper_program import start_keeper
from handrail.process.launcher import Launcher
from handrail.server.app import Server
from handrail.server.auth import AuthSettings
from handrail.server.connection import Connection
from handrail.telemetry import prometheus
from handrail.transport.base import Transport
from handrail.transport.memory import memory_pair

WAIT = 30.0
SERVE = [sys.executable, "-m", "handrail", "serve"]
PATH = os.environ.get("PATH", "/usr/bin:/bin")
_PR_SET_CHILD_SUBREAPER = 36


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- clients ---------------------------------------------------------------------------------


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']} {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Client:
    """One connection: calls, and everything that came back.  Sending is left to subclasses."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.messages: list[dict[str, Any]] = []
        self.pending: dict[Any, asyncio.Future[Any]] = {}
        self.session = ""
        self.secret: str | None = None
        #: Why the line ended: a sentence, or a close code and a reason.
        self.end: Any = None
        self._news: list[asyncio.Future[None]] = []

    def send_text(self, text: str | bytes) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """Drop the line without a goodbye."""
        raise NotImplementedError

    # --- what comes in --------------------------------------------------------------------

    def take(self, data: str | bytes) -> None:
        message = json.loads(data)
        self.messages.append(message)
        waiter = self.pending.pop(message.get("id"), None) if "method" not in message else None
        if waiter is not None and not waiter.done():
            if "error" in message:
                waiter.set_exception(Refused(message["error"]))
            else:
                waiter.set_result(message["result"])
        self.tell()

    def ended(self, why: Any) -> None:
        self.end = why
        for waiter in self.pending.values():
            if not waiter.done():
                waiter.cancel()
        self.pending.clear()
        self.tell()

    def tell(self) -> None:
        news, self._news = self._news, []
        for future in news:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], Any]) -> Any:
        """What ``condition`` says once it says something; asked again at each message."""
        async with asyncio.timeout(WAIT):
            while not (said := condition()):
                future = asyncio.get_running_loop().create_future()
                self._news.append(future)
                await future
        return said

    async def until_ended(self) -> Any:
        await self.until(lambda: self.end is not None)
        return self.end

    # --- calls ----------------------------------------------------------------------------

    def post(self, method: str, params: Any = None, **members: Any) -> asyncio.Future[Any]:
        """Send a request and do not wait; ``members`` are its params if those are not given."""
        number = next(self.ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # An answer that nobody looks at is no fault of the test.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.pending[number] = future
        message = {"id": number, "method": method, "params": members if params is None else params}
        self.send_text(json.dumps(message))
        return future

    async def call(self, method: str, params: Any = None, **members: Any) -> Any:
        async with asyncio.timeout(WAIT):
            return await self.post(method, params, **members)

    def notify(self, method: str, params: Any = None) -> None:
        self.send_text(json.dumps({"method": method, "params": params}))

    async def refused(self, method: str, params: Any = None, **members: Any) -> tuple[int, str]:
        """The code and text of an answer that must be an error."""
        try:
            result = await self.call(method, params, **members)
        except Refused as error:
            return error.code, error.message
        raise AssertionError(f"{method} was not refused but answered {result!r}")

    async def handshake(self, **members: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.call("initialize", clientName="test", **members)
        self.session = result["sessionId"]
        self.secret = result.get("resumeSecret")
        self.notify("initialized")
        return result

    # --- processes ------------------------------------------------------------------------

    def start_params(self, process_id: str, *argv: str, **members: Any) -> dict[str, Any]:
        return {
            "processId": process_id,
            "argv": list(argv),
            "cwd": "file:///tmp",
            "env": {"PATH": PATH},
            "tty": False,
            **members,
        }

    async def start(self, process_id: str, *argv: str, **members: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.call(
            "process/start", self.start_params(process_id, *argv, **members)
        )
        return result

    async def shell(self, process_id: str, script: str, **members: Any) -> dict[str, Any]:
        return await self.start(process_id, "sh", "-c", script, **members)

    async def write(self, process_id: str, data: bytes, write_id: str) -> str:
        result = await self.call(
            "process/write", processId=process_id, chunk=b64(data), writeId=write_id
        )
        return str(result["status"])

    async def read(self, process_id: str, **members: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.call("process/read", processId=process_id, **members)
        return result

    def events(self, process_id: str) -> list[dict[str, Any]]:
        """The notifications about one process, by number."""
        found = [
            {"kind": message["method"].removeprefix("process/"), **message["params"]}
            for message in self.messages
            if message.get("method", "").startswith("process/")
            and message["params"]["processId"] == process_id
        ]
        return sorted(found, key=lambda event: event["seq"])

    def output(self, process_id: str, stream: str | None = None) -> bytes:
        """What was notified of a process's output so far."""
        return b"".join(
            base64.b64decode(event["chunk"])
            for event in self.events(process_id)
            if event["kind"] == "output" and stream in (None, event["stream"])
        )

    async def until_output(self, process_id: str, part: bytes) -> None:
        await self.until(lambda: part in self.output(process_id))

    async def until_exited(self, process_id: str) -> dict[str, Any]:
        event: dict[str, Any] = await self.until(lambda: self._event(process_id, "exited"))
        return event

    async def until_closed(self, process_id: str) -> list[dict[str, Any]]:
        """All events of a process that has closed; their numbers have no gap."""
        await self.until(lambda: self._event(process_id, "closed"))
        events = self.events(process_id)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["kind"] for event in events].count("exited") == 1
        assert events[-1]["kind"] == "closed"
        return events

    def _event(self, process_id: str, kind: str) -> dict[str, Any] | None:
        return next((e for e in self.events(process_id) if e["kind"] == kind), None)

    async def read_to_close(self, process_id: str, after: int = 0) -> bytes:
        """All output above a number, by reading until the process has closed."""
        data = b""
        while True:
            page = await self.read(process_id, afterSeq=after, waitMs=60_000)
            data += chunks_of(page)
            after = page["nextSeq"] - 1
            if page["closed"]:
                return data


def chunks_of(page: dict[str, Any]) -> bytes:
    return b"".join(base64.b64decode(chunk["chunk"]) for chunk in page["chunks"])


class MemoryClient(Client):
    """The other end of a memory transport."""

    transport: Transport

    def connected(self, transport: Transport) -> None:
        self.transport = transport

    def message(self, data: str | bytes) -> None:
        self.take(data)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None:
        self.ended(why)

    def send_text(self, text: str | bytes) -> None:
        self.transport.send(text.encode() if isinstance(text, str) else text)

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        self.transport.close()
        await self.until_ended()


class SocketClient(Client):
    """A WebSocket of the ``websockets`` library.  Reads unless ``reading`` is cleared."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__()
        self.socket = socket
        self.reading = asyncio.Event()
        self.reading.set()
        self._sends: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._write()),
        ]

    def send_text(self, text: str | bytes) -> None:
        self._sends.put_nowait(text)

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.socket.send(await self._sends.get())

    async def _read(self) -> None:
        try:
            while True:
                await self.reading.wait()
                self.take(await self.socket.recv())
        except ConnectionClosed as closed:
            frame = closed.rcvd
            self.ended((frame.code, frame.reason) if frame is not None else (1006, ""))

    def abort(self) -> None:
        """A reset, not an orderly end."""
        raw = self.socket.transport.get_extra_info("socket")
        linger = b"\x01\0\0\0\0\0\0\0"
        raw.setsockopt(1, 13, linger)  # SOL_SOCKET, SO_LINGER: on, 0 seconds
        self.socket.transport.abort()

    async def close(self) -> None:
        async with asyncio.timeout(WAIT):
            await self.socket.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def dialled(
    url: str, *, handshake: bool = True, **options: Any
) -> AsyncIterator[SocketClient]:
    """A client of a server that listens."""
    options = {"compression": None, "max_size": None, "ping_interval": None, **options}
    async with asyncio.timeout(WAIT):
        socket = await connect(url, proxy=None, close_timeout=2, **options)
    client = SocketClient(socket)
    try:
        if handshake:
            await client.handshake()
        yield client
    finally:
        await client.close()


# --- a server in this process -------------------------------------------------------------------


@dataclass
class Served:
    """A server of this process, and its clients."""

    server: Server
    clients: list[MemoryClient] = field(default_factory=list)

    def dial(self, owner: str = "test") -> MemoryClient:
        """A new connection, before its handshake."""
        client = MemoryClient()
        memory_pair(Connection(self.server, owner), client)
        self.clients.append(client)
        return client

    async def client(self, owner: str = "test", **members: Any) -> MemoryClient:
        client = self.dial(owner)
        await client.handshake(**members)
        return client

    def connection(self, client: MemoryClient) -> Connection:
        """The server's side of a client."""
        return client.transport._other._receiver  # type: ignore[attr-defined, no-any-return]

    def metrics(self) -> dict[str, float]:
        return samples(prometheus.render(self.server.measures.registry).decode())


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    """A server in this process; it and its family are gone afterwards, and every descriptor."""
    loop = asyncio.get_running_loop()
    with nothing_left():
        before = descriptors()
        launcher = Launcher(start_keeper(), loop)
        listen = settings.pop("listen", Listen("stdio"))
        given = ServerSettings(listen, AuthSettings(), **settings)
        served = Served(Server(given, launcher, loop))
        try:
            async with asyncio.timeout(WAIT):
                await launcher.hello()
            yield served
        finally:
            async with asyncio.timeout(WAIT):
                await served.server.stop()
                for client in served.clients:
                    await client.until_ended()
                while served.server._connections:
                    await asyncio.sleep(0)
        assert descriptors() == before


def samples(text: str) -> dict[str, float]:
    """Prometheus text as a table, by the whole name with its labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# --- a server of its own ----------------------------------------------------------------------


class ServerProcess:
    """``handrail serve`` as a child of ours, with a state directory of its own."""

    def __init__(
        self,
        state: Path,
        *args: str,
        listen: str = "ws://127.0.0.1:0",
        env: dict[str, str] | None = None,
    ) -> None:
        self.state = state
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*SERVE, "--listen", listen, "--state-dir", str(state), *args],
            stdin=subprocess.PIPE if listen == "stdio" else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, **(env or {})},
        )
        self.url = "" if listen == "stdio" else self.line()

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line of its stdout; raises when it ends or stays silent."""
        assert self.process.stdout is not None
        line = b""
        deadline = time.monotonic() + WAIT
        while not line.endswith(b"\n"):
            ready = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            assert ready[0], f"no line within {WAIT} s; {self.words()}"
            piece = os.read(self.process.stdout.fileno(), 1)
            assert piece, f"it ended; {self.words()}"
            line += piece
        return line.decode().rstrip("\n")

    def words(self) -> str:
        """What it said on stderr."""
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    def keeper(self) -> int:
        """The pid of its keeper."""
        (keeper,) = children(self.pid)
        return keeper

    def rss(self) -> int:
        """Its resident memory in bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metrics(self) -> dict[str, float]:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            self.url.replace("ws://", "http://") + "/metrics", timeout=WAIT
        ) as answer:
            return samples(answer.read().decode())

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(WAIT)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, bytes]:
        """Its exit code, and what else it wrote to stdout."""
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.wait()
        finally:
            self.process.kill()
            self.process.wait()
        rest = self.process.stdout.read()
        return code, rest

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def server_process(state: Path, *args: str, **options: Any) -> Iterator[ServerProcess]:
    """A server that is stopped at the end, if the test has not done it, and leaves nothing."""
    with nothing_left():
        server = ServerProcess(state, *args, **options)
        try:
            yield server
            server.stop()
        finally:
            server.process.kill()
            server.process.wait()
            server.close()


# --- gates ------------------------------------------------------------------------------------


class Gate:
    """A named pipe that children wait at: ``read line < path`` goes on when it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open(self, times: int = 1) -> None:
        os.write(self._fd, b"go\n" * times)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def gate(path: Path) -> Iterator[Gate]:
    made = Gate(path)
    try:
        yield made
    finally:
        made.close()


async def spin(condition: Callable[[], Any]) -> None:
    """Turn the loop until something is so: for what a server does without telling anybody."""
    async with asyncio.timeout(WAIT):
        while not condition():
            await asyncio.sleep(0)


# --- processes and descriptors -------------------------------------------------------------------


@contextmanager
def nothing_left() -> Iterator[None]:
    """Orphans come to us meanwhile; at the end there is no child that was not there before."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(children(os.getpid()))
    try:
        yield
    finally:
        left = []
        deadline = time.monotonic() + 10.0
        while pids := set(children(os.getpid())) - before:
            for pid in pids:
                if not ended(pid, deadline - time.monotonic()):
                    left.append(command_line(pid))
                    os.kill(pid, signal.SIGKILL)
                    ended(pid, WAIT)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert not left, f"left behind: {left}"


def children(pid: int) -> list[int]:
    """The direct children of a process, the dead that wait for us too."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    return found


def ended(pid: int, timeout: float = WAIT) -> bool:
    """Wait for the end of a process that is ours or somebody's."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], max(0.0, timeout))[0])
    finally:
        os.close(handle)


async def until_ended(pid: int) -> None:
    """The same without stopping the loop, which a server may live on."""
    assert await asyncio.to_thread(ended, pid), f"{pid} is still alive: {command_line(pid)}"


def alive(pid: int) -> bool:
    return not ended(pid, 0.0)


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
            return f"{pid} {words}".strip()
    except OSError:
        return str(pid)


def descriptors() -> dict[str, str]:
    """Our open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.endswith("/fd"):  # the listing itself
                found[name] = target
    return found
