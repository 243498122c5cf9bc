"""A thin, fast client for the exec-server wire (JSON-RPC over WebSocket).

Output notifications are not parsed as JSON: the frame is scanned for the few fields that are
needed (process id, seq, base64 length).  Anything that does not look as expected falls back
to a full parse, so key order or white space of a different server do not matter.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any

import orjson
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from pybase64 import b64decode, b64encode

__all__ = [
    "Connection",
    "Process",
    "RpcError",
    "b64decode",
    "b64encode",
    "connect",
    "now",
    "session",
    "workspace_sandbox",
]

now = time.perf_counter

#: Called on each chunk with the process, the frame, and where the base64 begins and ends in it.
Hook = Callable[["Process", bytes, int, int], None]

MESSAGE_TYPES = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION)


class RpcError(Exception):
    """The server answered a call with an error; the argument is the error object."""


class Process:
    """What the client has seen of one process through notifications."""

    __slots__ = (
        "bytes",
        "closed_at",
        "closed_before_exited",
        "done",
        "duplicates",
        "exit_code",
        "exit_event",
        "exited_at",
        "expected",
        "frames",
        "hook",
        "missing",
        "output_after_closed",
        "pid",
        "reordered",
        "sandbox_denied",
    )

    def __init__(self, pid: str, loop: asyncio.AbstractEventLoop, hook: Hook | None = None) -> None:
        self.pid = pid
        self.bytes = 0
        self.frames = 0
        self.expected = 1
        self.missing: set[int] = set()
        self.reordered = 0
        self.duplicates = 0
        self.exited_at: float | None = None
        self.closed_at: float | None = None
        self.exit_code: int | None = None
        self.closed_before_exited = False
        self.output_after_closed = 0
        self.sandbox_denied: bool | None = None
        self.hook = hook
        self.exit_event: asyncio.Future[float] = loop.create_future()
        self.done: asyncio.Future[float] = loop.create_future()

    def saw_seq(self, seq: int) -> None:
        """Note one sequence number: in order, a gap, the filling of a gap, or a repetition."""
        if seq == self.expected:
            self.expected = seq + 1
        elif seq > self.expected:
            self.missing.update(range(self.expected, seq))
            self.expected = seq + 1
        elif seq in self.missing:
            self.missing.discard(seq)
            self.reordered += 1
        else:
            self.duplicates += 1

    @property
    def lost_seqs(self) -> int:
        """How many sequence numbers never came."""
        return len(self.missing)

    def saw_exited(self, params: dict[str, Any], at: float) -> None:
        """The process has ended; its output may still be coming."""
        self.saw_seq(params["seq"])
        self.exited_at = at
        self.exit_code = params.get("exitCode")
        self.sandbox_denied = params.get("sandboxDenied")
        if not self.exit_event.done():
            self.exit_event.set_result(at)
        if self.closed_at is not None and not self.done.done():
            self.done.set_result(at)

    def saw_closed(self, params: dict[str, Any], at: float) -> None:
        """Nothing more will come."""
        self.saw_seq(params["seq"])
        self.closed_at = at
        if self.exited_at is None:
            self.closed_before_exited = True
        elif not self.done.done():
            self.done.set_result(at)


class Connection(WSListener):
    """One WebSocket to a server: calls going out, processes watched coming in."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: WSTransport = None
        self.procs: dict[bytes, Process] = {}
        self.pending: dict[int, asyncio.Future] = {}
        self.ids = itertools.count(1)
        self.closed = self.loop.create_future()
        self.partial: bytes | None = None
        self.session_id: str | None = None
        self.stray: list[Any] = []
        self.frames = 0
        self.wire_bytes = 0

    # What picows calls.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        lost = ConnectionError("server closed the connection")
        for future in self.pending.values():
            if not future.done():
                future.set_exception(lost)
        self.pending.clear()
        for process in self.procs.values():
            for future in (process.done, process.exit_event):
                if not future.done():
                    future.set_exception(lost)
                    future.exception()  # not every workload asks; that is no reason for a log line
        if not self.closed.done():
            self.closed.set_result(None)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type not in MESSAGE_TYPES:
            if frame.msg_type == WSMsgType.CLOSE:
                reason = str(frame.get_close_message())[:200]
                self.stray.append(("close", frame.get_close_code(), reason))
                transport.disconnect()
            return
        data = frame.get_payload_as_bytes()
        if not frame.fin or self.partial is not None:
            self.partial = data if self.partial is None else self.partial + data
            if not frame.fin:
                return
            data, self.partial = self.partial, None
        self.frames += 1
        self.wire_bytes += len(data)
        if data.find(b'"process/output"', 0, 80) < 0 or not self.scan_output(data):
            self.parse(data)

    def scan_output(self, data: bytes) -> bool:
        """Take an output notification without parsing it; False when it looks unusual."""
        chunk = data.find(b'"chunk":"')
        seq_at = data.find(b'"seq":')
        id_at = data.find(b'"processId":"')
        if chunk < 0 or seq_at < 0 or id_at < 0:
            return False
        chunk += 9
        chunk_end = data.find(b'"', chunk)
        id_at += 13
        process = self.procs.get(data[id_at : data.find(b'"', id_at)])
        if process is None:
            return False
        seq_at += 6
        seq_end = seq_at
        while 48 <= data[seq_end] <= 57:
            seq_end += 1
        if seq_end == seq_at:
            return False
        length = chunk_end - chunk
        size = (length >> 2) * 3
        if length and data[chunk_end - 1] == 61:  # "="
            size -= 2 if data[chunk_end - 2] == 61 else 1
        process.bytes += size
        process.frames += 1
        seq = int(data[seq_at:seq_end])
        if seq == process.expected:
            process.expected = seq + 1
        else:
            process.saw_seq(seq)
        if process.closed_at is not None:
            process.output_after_closed += 1
        if process.hook is not None:
            process.hook(process, data, chunk, chunk_end)
        return True

    def parse(self, data: bytes) -> None:
        """Take any message the ordinary way."""
        at = now()
        message = orjson.loads(data)
        method = message.get("method")
        if method is None:
            self.take_answer(message, at)
            return
        params = message.get("params") or {}
        process = self.procs.get(str(params.get("processId", "")).encode())
        if process is None:
            self.stray.append(message)
        elif method == "process/output":
            chunk = params["chunk"].encode()
            process.bytes += len(b64decode(chunk))
            process.frames += 1
            process.saw_seq(params["seq"])
            if process.closed_at is not None:
                process.output_after_closed += 1
            if process.hook is not None:
                process.hook(process, chunk, 0, len(chunk))
        elif method == "process/exited":
            process.saw_exited(params, at)
        elif method == "process/closed":
            process.saw_closed(params, at)
        else:
            self.stray.append(message)

    def take_answer(self, message: dict[str, Any], at: float) -> None:
        """Hand an answer, and when it came, to whoever asked."""
        future = self.pending.pop(message.get("id"), None)
        if future is None:
            self.stray.append(message)
        elif future.done():
            return
        elif "error" in message:
            future.set_exception(RpcError(message["error"]))
        else:
            future.set_result((message["result"], at))

    # What a workload calls.

    def send(self, message: dict[str, Any]) -> None:
        """Send one message as it is."""
        self.transport.send(WSMsgType.TEXT, orjson.dumps(message))

    def request(self, method: str, params: Any) -> asyncio.Future:
        """Send a request; the future gives (result, time of arrival)."""
        request_id = next(self.ids)
        future = self.loop.create_future()
        self.pending[request_id] = future
        self.send({"id": request_id, "method": method, "params": params})
        return future

    async def call(self, method: str, params: Any, timeout: float = 30.0) -> Any:
        """Send a request and wait for its result."""
        return (await asyncio.wait_for(self.request(method, params), timeout))[0]

    async def initialize(self, resume: str | None = None) -> Any:
        """The handshake, or the resumption of an earlier session."""
        params = {"clientName": "bench"}
        if resume:
            params["resumeSessionId"] = resume
        result = await self.call("initialize", params)
        self.session_id = result.get("sessionId")
        self.send({"method": "initialized", "params": {}})
        return result

    def watch(self, pid: str, hook: Hook | None = None) -> Process:
        """Register a process id before it is started: its output may precede the answer."""
        process = Process(pid, self.loop, hook)
        self.procs[pid.encode()] = process
        return process

    def start_request(
        self,
        pid: str,
        argv: list[str],
        cwd: str = "file:///tmp",
        env: dict[str, str] | None = None,
        tty: bool = False,
        pipe_stdin: bool = False,
        sandbox: dict[str, Any] | None = None,
        hook: Hook | None = None,
    ) -> tuple[Process, asyncio.Future]:
        """Send process/start; the process is watched from now on."""
        process = self.watch(pid, hook)
        params = {
            "processId": pid,
            "argv": argv,
            "cwd": cwd,
            "env": {"PATH": "/usr/bin:/bin"} if env is None else env,
            "tty": tty,
            "pipeStdin": pipe_stdin,
            "arg0": None,
        }
        if sandbox is not None:
            params["sandbox"] = sandbox
        return process, self.request("process/start", params)

    async def start(self, pid: str, argv: list[str], **options: Any) -> tuple[Process, Any]:
        """Start a process and wait for the answer."""
        process, future = self.start_request(pid, argv, **options)
        result, _ = await asyncio.wait_for(future, 60)
        return process, result

    def write_request(self, pid: str, data: bytes, write_id: str) -> asyncio.Future:
        """Send process/write."""
        chunk = b64encode(data).decode()
        params = {"processId": pid, "chunk": chunk, "writeId": write_id}
        return self.request("process/write", params)

    def forget(self, pid: str) -> None:
        """Stop watching a process."""
        self.procs.pop(pid.encode(), None)

    async def close(self) -> None:
        """Drop the connection and wait until it is gone."""
        self.transport.disconnect()
        await asyncio.wait_for(self.closed, 5)


class QuickAckConnection(Connection):
    """Acknowledges every packet at once.

    A server that leaves Nagle's algorithm on waits for the acknowledgement of its last
    small packet, which Linux delays by 40 ms; this client shows the server without that wait.
    """

    def on_ws_connected(self, transport: WSTransport) -> None:
        super().on_ws_connected(transport)
        self.sock = transport.underlying_transport.get_extra_info("socket")
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        super().on_ws_frame(transport, frame)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


async def connect(url: str, timeout: float = 10.0, quickack: bool = False) -> Connection:
    """Open a connection; the handshake of the protocol is left to the caller."""
    _, connection = await ws_connect(
        QuickAckConnection if quickack else Connection,
        url,
        max_frame_size=256 << 20,
        read_buffer_init_size=1 << 20,
        websocket_handshake_timeout=timeout,
    )
    return connection


async def session(url: str, resume: str | None = None, quickack: bool = False) -> Connection:
    """Open a connection and shake hands."""
    connection = await connect(url, quickack=quickack)
    await connection.initialize(resume)
    return connection


def workspace_sandbox(root_uri: str, network: str = "restricted") -> dict[str, Any]:
    """The portable sandbox intent of the wire: read everywhere, write in one root."""
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    workspace = {"path": {"type": "path", "path": root_uri}, "access": "write"}
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": [root, workspace]},
            "network": network,
        },
        "cwd": root_uri,
        "workspaceRoots": [root_uri],
        "windowsSandboxLevel": "disabled",
        "windowsSandboxPrivateDesktop": False,
        "useLegacyLandlock": False,
    }
