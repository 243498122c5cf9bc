"""Trivial WebSocket server in Python (picows + uvloop): the ceiling for a Python sender.

/flood?<chunk>&<total>  a constant prebuilt frame
/relay?<read>&<total>   head -c total /dev/zero -> base64 -> JSON frame, with flow control
/echo                   echoes text frames (RPC floor)
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys

import pybase64
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

HEAD = (
    b'{"method":"process/output","params":{"processId":"flood","seq":%d,"stream":"stdout","chunk":"'
)
TAIL = b'"}}'
EXITED = b'{"method":"process/exited","params":{"processId":"flood","seq":%d,"exitCode":0}}'
CLOSED = b'{"method":"process/closed","params":{"processId":"flood","seq":%d}}'
#: Reads in a row before the loop gets its turn.
READS = 8


class Listener(WSListener):
    """One client, served as its path says."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.alive = True
        self.task: asyncio.Task | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        mode, _, arguments = self.path[1:].partition("?")
        if mode in ("flood", "relay"):
            size, total = (int(x) for x in arguments.split("&"))
            self.task = asyncio.create_task(getattr(self, mode)(size, total))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self.path == "/echo" and frame.msg_type == WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.alive = False
        self.can_write.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def end(self, seq: int) -> None:
        """Say that the process is over."""
        self.transport.send(WSMsgType.TEXT, EXITED % seq)
        self.transport.send(WSMsgType.TEXT, CLOSED % (seq + 1))

    async def flood(self, size: int, total: int) -> None:
        """Only the send path."""
        frame = HEAD % 1 + pybase64.b64encode(bytes(size)) + TAIL
        sent = 0
        while sent < total and self.alive:
            self.transport.send(WSMsgType.TEXT, frame)
            sent += size
            if not self.can_write.is_set():
                await self.can_write.wait()
        self.end(2)

    async def relay(self, size: int, total: int) -> None:
        """Read a child, encode, send."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        child = subprocess.Popen(["/usr/bin/head", "-c", str(total), "/dev/zero"], stdout=writer)
        os.close(writer)
        os.set_blocking(reader, False)
        loop = asyncio.get_running_loop()
        pause = asyncio.Event()
        seq, more = 1, True

        def readable() -> None:
            nonlocal seq, more
            for _ in range(READS):
                try:
                    data = os.read(reader, size)
                except BlockingIOError:
                    return
                more = bool(data)
                if more:
                    parts = (HEAD % seq, pybase64.b64encode(data), TAIL)
                    self.transport.send(WSMsgType.TEXT, b"".join(parts))
                    seq += 1
                if not more or not self.can_write.is_set():
                    loop.remove_reader(reader)
                    pause.set()
                    return

        while more and self.alive:
            pause.clear()
            loop.add_reader(reader, readable)
            await pause.wait()
            await self.can_write.wait()
        os.close(reader)
        child.wait()
        self.end(seq)


def listener(request: WSUpgradeRequest) -> Listener:
    """Whoever connects gets one."""
    path = request.path
    return Listener(path.decode() if isinstance(path, bytes) else path)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await ws_create_server(listener, "127.0.0.1", port)
    await server.serve_forever()


uvloop.run(main(int(sys.argv[1])))
