"""An executor of a user's own, with no more than the contract asks for (docs/executors.md)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from handrail import AsyncWorkspace, ExitInfo, ExitKind, Limits, UsageError
from handrail.errors import ExecutorSpawnFailed, ProcessUnknown
from handrail.executor.base import (
    Denied,
    Executor,
    ExecutorFeatures,
    OutputKind,
    Place,
    SpawnRequest,
    WrappedExecutor,
)
from handrail.executor.local_files import LocalFiles
from handrail.executor.output.buffered_session import BufferedSession


class PlainSession(BufferedSession):
    """A child of asyncio's."""

    def __init__(self, process_id: str, child: asyncio.subprocess.Process) -> None:
        super().__init__(process_id)
        self._child = child
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        assert self._child.stdout is not None
        seq = 0
        while data := await self._child.stdout.read(65536):
            seq += 1
            self._history.add(OutputKind.STDOUT, data, seq)
        code = await self._child.wait()
        if code < 0:
            self._exit = ExitInfo(ExitKind.SIGNALED, 128 - code, signal.Signals(-code).name)
        else:
            self._exit = ExitInfo(ExitKind.EXITED, code)
        self._history.end()

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(data)
        await self._child.stdin.drain()

    async def close_stdin(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()

    async def resize(self, rows: int, cols: int) -> None:
        raise NotImplementedError

    async def signal(self, name: str) -> None:
        raise NotImplementedError

    async def terminate(self, grace: float = 0.0) -> None:
        if self._exit is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        await self.wait()

    async def denied(self) -> Denied:
        return Denied(likely=False)


class PlainExecutor(Executor):
    """Refuses sandboxes, and offers nothing that is not asked of all."""

    def __init__(self) -> None:
        self._files = LocalFiles()
        self._sessions: dict[str, PlainSession] = {}

    async def spawn(self, request: SpawnRequest) -> PlainSession:
        if request.sandbox is not None:
            raise ExecutorSpawnFailed("there are no sandboxes here")
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *request.argv,
            cwd=request.cwd,
            env={**os.environ, **request.env},
            stdin=pipe if request.pipe_stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        session = self._sessions[request.process_id] = PlainSession(request.process_id, child)
        return session

    async def attach(self, process_id: str) -> PlainSession:
        if process_id not in self._sessions:
            raise ProcessUnknown(process_id)
        return self._sessions[process_id]

    async def place(self) -> Place:
        return Place("/bin/sh", "/", None, "/tmp", "linux")

    @property
    def files(self) -> LocalFiles:
        return self._files

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.terminate()
        await self._files.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_workspace_works_with_it(tmp_path: Path, wrapped: bool) -> None:
    async def main() -> None:
        own: Executor = WrappedExecutor(PlainExecutor()) if wrapped else PlainExecutor()
        async with AsyncWorkspace(tmp_path, sandbox="off", executor=own) as ws:
            done = await ws.run("cat; pwd; exit 3", input="in\n")
            assert (done.stdout, done.exit_code) == (f"in\n{tmp_path}\n", 3)
            # The workspace itself ends what is out of time.
            assert (await ws.run("sleep 600", timeout=0.1)).timed_out
            process = await ws.start("echo ready; read x; echo got $x")
            assert await process.wait_for("ready", timeout=20)
            await process.send("word\n")
            assert (await process.result()).stdout.endswith("got word\n")
            with pytest.raises(UsageError, match="limits"):
                await ws.run("true", limits=Limits(open_files=20))
            with pytest.raises(ExecutorSpawnFailed, match="no sandboxes"):
                await ws.run("true", sandbox="read-only")
            with pytest.raises(UsageError, match="server"):
                await ws.detach()
            await ws.start("sleep 600")
        await own.close()

    asyncio.run(asyncio.wait_for(main(), 50))


def test_a_wrapper_forwards_every_member() -> None:
    members = {name for name in vars(Executor) if not name.startswith("_")}
    assert members == {name for name in vars(WrappedExecutor) if not name.startswith("_")}


def test_nothing_is_promised_by_default() -> None:
    assert ExecutorFeatures() == PlainExecutor().features
    with pytest.raises(TypeError, match="abstract"):
        Executor()  # type: ignore[abstract]
