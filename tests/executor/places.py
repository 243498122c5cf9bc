"""One executor of each kind, with the server it needs, for the length of a test."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from handrail.executor.base import ExecSession, Executor, OutputKind, SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.executor.remote import RemoteExecutor
from tests.executor.sshd import Way, no_sshd, sshd
from tests.interop.codex import codex_folder, installed
from tests.support.coroutines import run
from tests.support.servers import ServerProcess

#: Long enough for a busy machine; nothing is measured by it.
LIMIT = 30.0
PATH = os.environ.get("PATH", "/usr/bin:/bin")
ENV = {"PATH": PATH, "LC_ALL": "C"}

Open = Callable[[Path], AbstractAsyncContextManager[Executor]]


@asynccontextmanager
async def local(base: Path) -> AsyncIterator[Executor]:
    executor = LocalExecutor()
    try:
        yield executor
    finally:
        await executor.close()


@asynccontextmanager
async def remote(where: Any, **how: Any) -> AsyncIterator[RemoteExecutor]:
    executor = await RemoteExecutor.connect(where, **how)
    try:
        yield executor
    finally:
        await executor.close()


@asynccontextmanager
async def serving(base: Path, *args: str, listen: str = "ws://127.0.0.1:0") -> AsyncIterator[str]:
    """``handrail serve`` as a process; its address."""
    server = await asyncio.to_thread(ServerProcess, base / "state", *args, listen=listen)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.stop)
        server.close()


@asynccontextmanager
async def websocket(base: Path) -> AsyncIterator[Executor]:
    async with serving(base) as url, dialled(url) as executor:
        yield executor


@asynccontextmanager
async def serving_unix(base: Path) -> AsyncIterator[str]:
    room = base / "sockets"
    room.mkdir(mode=0o700)
    async with serving(base, listen=f"unix:{room}/s") as url:
        yield url


@asynccontextmanager
async def unix(base: Path) -> AsyncIterator[Executor]:
    async with serving_unix(base) as url, dialled(url) as executor:
        yield executor


@asynccontextmanager
async def stdio(base: Path) -> AsyncIterator[Executor]:
    serve = [sys.executable, "-m", "handrail", "serve", "--listen", "stdio"]
    async with remote([*serve, "--state-dir", str(base / "state")]) as executor:
        yield executor


@asynccontextmanager
async def ssh(base: Path) -> AsyncIterator[Executor]:
    async with sshd(base) as way, dialled(way) as executor:
        yield executor


@asynccontextmanager
async def sshd_with_server(base: Path) -> AsyncIterator[Way]:
    """An sshd, and the server that the first connection starts."""
    async with sshd(base) as way:
        async with dialled(way):
            pass
        yield way


def dialled(where: str | Way) -> AbstractAsyncContextManager[RemoteExecutor]:
    """An executor of a server that runs."""
    if isinstance(where, str):
        return remote(where)
    return remote(where.url, ssh=where.ssh, ssh_command=where.proxy)


@asynccontextmanager
async def codex(base: Path) -> AsyncIterator[Executor]:
    async with codex_server(base) as url, remote(url) as executor:
        yield executor


@asynccontextmanager
async def codex_server(base: Path) -> AsyncIterator[str]:
    """The released exec-server; its address."""
    program = find_codex()
    assert program is not None
    home = base / "codex"
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        program,
        *("exec-server", "--listen", "ws://127.0.0.1:0"),
        env={**ENV, "HOME": str(home), "CODEX_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), LIMIT)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


def find_codex() -> str | None:
    """The released Codex, if it is on this machine; it is not fetched for this."""
    named = os.environ.get("CODEX")
    if named:
        return named if os.access(named, os.X_OK) else None
    return installed(codex_folder())


def why_not(kind: str) -> str | None:
    """Why an executor of this kind cannot be had here."""
    if kind == "codex" and find_codex() is None:
        return "no Codex here; set $CODEX, or run the interop tests once to have it fetched"
    if kind == "ssh":
        return no_sshd()
    return None


#: Servers that many tests can use one after the other.
SHARED: dict[str, Callable[[Path], AbstractAsyncContextManager[str | Way]]] = {
    "websocket": serving,
    "unix": serving_unix,
    "ssh": sshd_with_server,
}
KINDS: dict[str, Open] = {
    "local": local,
    "websocket": websocket,
    "unix": unix,
    "stdio": stdio,
    "ssh": ssh,
    "codex": codex,
}


class Place(NamedTuple):
    """A kind of executor, and the server that several tests use; None: each has its own."""

    name: str
    server: str | Way | None


@pytest.fixture(scope="module", params=list(KINDS))
def executor_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Each kind of executor, with the server of all tests of a module."""
    name = request.param
    if name not in SHARED or why_not(name) is not None:
        yield Place(name, None)
        return
    with asyncio.Runner() as runner:
        serving = SHARED[name](tmp_path_factory.mktemp(name))
        yield Place(name, runner.run(serving.__aenter__()))
        runner.run(serving.__aexit__(None, None, None))


class Room:
    """An executor, and shorter words for what tests ask of it."""

    def __init__(self, executor: Executor, kind: str, base: Path) -> None:
        self.executor = executor
        self.kind = kind
        self.base = base
        self._count = 0

    @property
    def ours(self) -> bool:
        """Whether the other side knows our extensions."""
        return self.kind != "codex"

    async def start(self, *argv: str | bytes, **how: Any) -> ExecSession:
        self._count += 1
        key = how.pop("process_id", f"p{self._count}")
        env = how.pop("env", ENV)
        cwd = how.pop("cwd", str(self.base))
        return await self.executor.spawn(SpawnRequest(key, argv, cwd, env, **how))

    async def sh(self, script: str, **how: Any) -> ExecSession:
        return await self.start("/bin/sh", "-c", script, **how)

    async def done(self, script: str, **how: Any) -> tuple[bytes, bytes, int | None]:
        """Run a script to its end: stdout, stderr, exit code."""
        session = await self.sh(script, **how)
        out, err = await collect(session)
        return out, err, (await session.wait()).code


async def collect(session: ExecSession) -> tuple[bytes, bytes]:
    """All output, which must be complete and in order."""
    parts = {OutputKind.STDOUT: bytearray(), OutputKind.STDERR: bytearray()}
    last = 0
    async for event in session.subscribe_output():
        assert event.omitted == 0
        assert event.seq > last
        last = event.seq
        parts[event.kind] += event.data
    return bytes(parts[OutputKind.STDOUT]), bytes(parts[OutputKind.STDERR])


async def said(session: ExecSession, text: bytes) -> None:
    """Wait until it has written this."""
    seen = b""
    async for event in session.subscribe_output():
        seen += event.data
        if text in seen:
            return
    raise AssertionError(f"it ended after {seen!r}")


Main = Callable[[Room], Awaitable[None]]


def run_in(
    kind: str, base: Path, main: Main, loop: str = "uvloop", *, server: str | Way | None = None
) -> None:
    """Run a test with an executor of this kind, of a server that runs or of one of its own."""
    why = why_not(kind)
    if why is not None:
        pytest.skip(why)

    async def inside() -> None:
        opened = KINDS[kind](base) if server is None else dialled(server)
        async with opened as executor, asyncio.timeout(LIMIT):
            await main(Room(executor, kind, base))

    run(inside(), loop)


def program(name: str) -> str:
    """Where a program of the system is."""
    found = shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin")
    assert found is not None, name
    return found
