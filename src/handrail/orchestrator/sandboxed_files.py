"""Files as a sandboxed process sees them: a sandboxed helper does every read and write.

The helper (``patch/file_helper.py``) is started by the executor under the intent of the run with an
empty environment, at the first use, and ends when it is idle for a moment.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from handrail import version
from handrail.errors import ExecutorError, FilesError
from handrail.executor.base import ExecSession, Executor, OutputEvent, OutputKind, SpawnRequest
from handrail.patch.file_helper import PIECE
from handrail.sandbox.profile import Intent

#: Seconds after which an idle helper ends.
IDLE = 1.0
_TAIL = 2000
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
#: Isolated (-I -S), so that neither the workspace, variables nor .pth files provide modules.
_PROGRAM = (
    f"import sys; sys.path.append({_ROOT!r}); import handrail; sys.path.pop();"
    " from handrail.patch.file_helper import main; main()"
)

Cover = Callable[[SpawnRequest], Awaitable[SpawnRequest]]


class SandboxedFiles:
    """``AsyncFiles`` of the patch tool, sandboxed."""

    def __init__(
        self,
        executor: Executor,
        process_id: str,
        cwd: str,
        sandbox: Intent,
        cover: Cover | None = None,
    ) -> None:
        """``cover`` adds what the rules hide to the request that starts the helper."""
        self._executor = executor
        self._cover = cover
        self._process_id = process_id
        self._cwd = cwd
        self._sandbox = sandbox
        self._turn = asyncio.Lock()
        self._session: ExecSession | None = None
        self._events: AsyncIterator[OutputEvent] | None = None
        self._started = 0
        self._said = b""
        self._unread = b""
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def read(self, path: str) -> bytes:
        async with self._turn:
            answer = await self._call("read", path)
            parts = [base64.b64decode(answer["data"])]
            while answer["more"]:
                answer = await self._call("more", path)
                parts.append(base64.b64decode(answer["data"]))
            return b"".join(parts)

    async def write(self, path: str, data: bytes) -> None:
        async with self._turn:
            for at in range(0, len(data), PIECE):
                await self._call("hold", path, data[at : at + PIECE])
            await self._call("write", path)

    async def copy(self, source: str, path: str) -> None:
        async with self._turn:
            await self._call("copy", path, source.encode(errors="surrogateescape"))

    async def remove(self, path: str) -> None:
        await self._one("remove", path)

    async def mkdir(self, path: str) -> None:
        await self._one("mkdir", path)

    async def rmdir(self, path: str) -> None:
        await self._one("rmdir", path)

    async def close(self) -> None:
        """End the helper now."""
        self._rest(None)
        session, self._session = self._session, None
        if session is not None:
            await session.terminate()

    async def _one(self, what: str, path: str) -> None:
        async with self._turn:
            await self._call(what, path)

    async def _call(self, what: str, path: str, data: bytes = b"") -> dict[str, Any]:
        self._rest(None)
        request = {"do": what, "path": path, "data": base64.b64encode(data).decode()}
        try:
            session = self._session or await self._start()
            await session.write(json.dumps(request).encode() + b"\n")
            line = await self._line()
        except ExecutorError as error:
            await self._abandon()
            said = self._said.decode("utf-8", "replace").strip().splitlines()
            why = said[-1] if said else str(error)
            raise FilesError(f"cannot get at files in the sandbox: {why}", path=path) from error
        self._rest(IDLE)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FilesError(answer["error"], kind=answer["kind"], path=answer["path"])
        return answer

    async def _start(self) -> ExecSession:
        self._started += 1
        request = SpawnRequest(
            f"{self._process_id}-files-{self._started}",
            (sys.executable, "-I", "-S", "-c", _PROGRAM),
            self._cwd,
            {},
            sandbox=self._sandbox,
        )
        if self._cover is not None:
            request = await self._cover(request)
        session = await self._executor.spawn(request)
        self._session = session
        self._events = aiter(session.subscribe_output())
        self._unread = self._said = b""
        return session

    async def _line(self) -> bytes:
        assert self._events is not None  # noqa: S101 (made together with the session)
        while b"\n" not in self._unread:
            try:
                event = await anext(self._events)
            except StopAsyncIteration:
                raise ExecutorError("the helper ended") from None
            if event.kind is OutputKind.STDERR:
                self._said = (self._said + event.data)[-_TAIL:]
            elif event.omitted:
                raise ExecutorError("its answer was not kept whole")
            else:
                self._unread += event.data
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    async def _abandon(self) -> None:
        session, self._session = self._session, None
        await _ended(session)

    def _rest(self, seconds: float | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        if self._turn.locked():
            return  # a call has begun; its end sets the next deadline
        # Taken at once: a call that comes before the task runs starts a new helper.
        session, self._session = self._session, None
        task = asyncio.ensure_future(_ended(session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _ended(session: ExecSession | None) -> None:
    if session is not None:
        try:
            await session.terminate()
        except ExecutorError:
            pass  # it has exited, or the connection is lost
