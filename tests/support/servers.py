"""Two ways to a server: inside this process, or as a process of its own.

Either way nothing of it may be left when it has ended, neither a process nor a descriptor.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import start_keeper
from handrail.server.app import Server
from handrail.server.auth.tokens import AuthSettings
from handrail.server.connection import Connection
from handrail.server_settings import Listen, ResultBounds, ServerSettings
from handrail.telemetry import prometheus
from handrail.transport.memory import memory_pair
from tests.support.clients import MemoryClient
from tests.support.eventually import LIMIT, spin
from tests.support.processes import descriptors, keeper_pid, nothing_left

SERVE = [sys.executable, "-m", "handrail", "serve"]

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
        settings.setdefault("results", ResultBounds(each=0))  # or they would be in the user's home
        given = ServerSettings(listen, AuthSettings(), **settings)
        served = Served(Server(given, launcher, loop))
        try:
            async with asyncio.timeout(LIMIT):
                await launcher.hello()
            yield served
        finally:
            async with asyncio.timeout(LIMIT):
                await served.server.stop()
                for client in served.clients:
                    await client.until_ended()
                await spin(lambda: not served.server._connections)
        # Files may be closed by threads that still run; and what somebody else had left open
        # before us may be gone meanwhile.
        left = lambda: descriptors().items() - before.items()  # noqa: E731
        try:
            await spin(lambda: not left())
        except TimeoutError:
            raise AssertionError(f"left open: {left()}") from None


def samples(text: str) -> dict[str, float]:
    """Prometheus text as a table, by the whole name with its labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# --- a server of its own ----------------------------------------------------------------------


class ServerProcess:
    """``handrail serve`` as a child of ours, with a state directory of its own."""

    def __init__(
        self,
        state: Path | None,
        *args: str,
        listen: str = "ws://127.0.0.1:0",
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.state = state
        self.stderr = tempfile.TemporaryFile()
        named = () if state is None else ("--state-dir", str(state))
        self.process = subprocess.Popen(
            [*prefix, *SERVE, "--listen", listen, *named, *args],
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
        deadline = time.monotonic() + LIMIT
        while not line.endswith(b"\n"):
            ready = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            assert ready[0], f"no line within {LIMIT} s; {self.words()}"
            piece = os.read(self.process.stdout.fileno(), 1)
            assert piece, f"it ended; {self.words()}"
            line += piece
        return line.decode().rstrip("\n")

    def words(self) -> str:
        """What it said on stderr."""
        # Not by seeking: the position is the server's too, and it may write in between.
        fd = self.stderr.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")

    def keeper(self) -> int:
        """The pid of its keeper."""
        return keeper_pid(self.pid)

    def rss(self) -> int:
        """Its resident memory in bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metrics(self, headers: dict[str, str] | None = None) -> dict[str, float]:
        url = self.url.replace("ws://", "http://") + "/metrics"
        request = urllib.request.Request(url, headers=headers or {})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=LIMIT
        ) as answer:
            return samples(answer.read().decode())

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(LIMIT)

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
        finally:
            server.stop()
            server.close()
