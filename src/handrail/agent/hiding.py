"""An executor whose hidden files cannot be read by way of a patch either.

A patch is checked against the files before anybody is asked, outside any sandbox; what the
settings hide must not be told apart there, not even by whether a guess was right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handrail.errors import FilesError
from handrail.executor.base import ExecSession, Executor, Place, SpawnRequest
from handrail.orchestrator.run import Orchestrator
from handrail.workspace.profile import Access, Profile, Rules

if TYPE_CHECKING:
    from handrail.executor.files import Files, Progress


class HidingFiles:
    """``Files`` that reads nothing the settings of the moment hide; the rest passes through."""

    def __init__(self, files: Files, orchestrator: Orchestrator) -> None:
        self._files = files
        self._orchestrator = orchestrator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        """The content of a file that is not hidden, by its own name or through a link."""
        settings = self._orchestrator.settings
        if settings.sandbox.deny_read:
            real = await self._files.canonical(path)
            rules = Rules(Profile(deny=settings.sandbox.deny_read), settings.cwd, None)
            if Access.DENY in (rules.access(path), rules.access(real)):
                sentence = "Permission denied (os error 13)"
                raise FilesError(sentence, kind="permission_denied", path=path)
        return await self._files.read(path, progress=progress)


class HidingExecutor:
    """The executor, with such files."""

    def __init__(self, executor: Executor, orchestrator: Orchestrator) -> None:
        self._executor = executor
        self._files = HidingFiles(executor.files, orchestrator)

    @property
    def files(self) -> Any:
        """The files of that machine, as far as they may be read."""
        return self._files

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        return await self._executor.spawn(request)

    async def attach(self, process_id: str) -> ExecSession:
        return await self._executor.attach(process_id)

    async def place(self) -> Place:
        return await self._executor.place()

    async def close(self) -> None:
        await self._executor.close()
