"""A client for tests: one set of calls, over memory or over a real WebSocket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from handrail.transport.base import Transport
from tests.support.eventually import LIMIT
from tests.support.processes import PATH


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']} {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Client(ABC):
    """One connection: calls, and everything that came back.  Sending is left to subclasses."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.messages: list[dict[str, Any]] = []
        self.pending: dict[Any, asyncio.Future[Any]] = {}
        #: Processes whose output is only counted, by bytes: floods.
        self.counted: dict[str, int] = {}
        self.session = ""
        self.secret: str | None = None
        #: Why the line ended: a sentence, or a close code and a reason.
        self.end: Any = None
        self._news: list[asyncio.Future[None]] = []

    @abstractmethod
    def send_text(self, text: str | bytes) -> None: ...

    # --- what comes in --------------------------------------------------------------------

    def take(self, data: str | bytes) -> None:
        message = json.loads(data)
        if message.get("method") == "process/output":
            params = message["params"]
            if params["processId"] in self.counted:
                self.counted[params["processId"]] += len(base64.b64decode(params["chunk"]))
                self.tell()
                return
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
        async with asyncio.timeout(LIMIT):
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
        async with asyncio.timeout(LIMIT):
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

    async def resume(self, session: str) -> None:
        """Attach to a session; the server may not have noticed yet that its client has left."""
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    await self.handshake(resumeSessionId=session)
                    return
                except Refused as error:
                    if error.code != -32010:
                        raise

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

    def message(self, data: str | bytes | bytearray) -> None:
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
        async with asyncio.timeout(LIMIT):
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
    async with asyncio.timeout(LIMIT):
        socket = await connect(url, proxy=None, close_timeout=2, **options)
    client = SocketClient(socket)
    try:
        if handshake:
            await client.handshake()
        yield client
    finally:
        await client.close()
