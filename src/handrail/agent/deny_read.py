"""An executor that reads files under the settings' sandbox, as commands do.

A patch is checked against the files before any question.  What the settings hide must not be
revealed there, not even by whether a guess was right, so the reading is sandboxed.  A
helper process reads; the patch that follows writes through the same one.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

from handrail.errors import FilesError
from handrail.executor.base import Executor, WrappedExecutor
from handrail.orchestrator.patches import Confine
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.sandboxed_files import SandboxedFiles
from handrail.orchestrator.settings import sandbox_intent
from handrail.patch.io_steps import AsyncFiles
from handrail.sandbox.profile import Intent
from handrail.unified_exec.patch_command import PatchFiles

if TYPE_CHECKING:
    from handrail.executor.files import Files, Progress

_CANNOT = "files of that machine cannot be read under its sandbox: read them by a command"
#: Helpers of earlier settings that may still be in use.
_MOST_HELPERS = 8


class DenyReadFiles:
    """``Files`` that reads nothing the current settings hide; other calls pass through."""

    def __init__(self, executor: Executor, orchestrator: Orchestrator, *, local: bool) -> None:
        self._executor = executor
        self._files: Files = executor.files
        self._local = local
        self._orchestrator = orchestrator
        self._helpers: deque[tuple[Intent, SandboxedFiles]] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        """The content of a file, as a sandboxed command sees it."""
        settings = self._orchestrator.settings
        intent = sandbox_intent(settings)
        if intent is not None and self.can_sandbox:
            return await self.sandboxed(intent).read(path)
        if settings.sandbox.deny_read:
            raise FilesError(_CANNOT, kind="permission_denied", path=path)
        return await self._files.read(path, progress=progress)

    @property
    def can_sandbox(self) -> bool:
        """Whether this executor has files under an intent; not every remote one does."""
        return self._local or hasattr(self._files, "confined")

    def sandboxed(self, intent: Intent) -> AsyncFiles:
        """The files as a process under this intent sees them; the same helper for the same one."""
        confined = getattr(self._files, "confined", None)
        if confined is not None:
            return PatchFiles(confined(intent))
        for known, helper in self._helpers:
            if known == intent:
                return helper
        name = f"patch-{secrets.token_hex(4)}"
        settings = self._orchestrator.settings
        cover = self._orchestrator.wall.cover(settings, self._executor)
        helper = SandboxedFiles(self._executor, name, settings.cwd, intent, cover)
        self._helpers.append((intent, helper))
        if len(self._helpers) > _MOST_HELPERS:
            self._helpers.popleft()  # it ends by itself when it is idle
        return helper

    async def close_helpers(self) -> None:
        """End the processes that read; another read starts a new one."""
        while self._helpers:
            await self._helpers.popleft()[1].close()


class DenyReadExecutor(WrappedExecutor):
    """The executor with ``DenyReadFiles``."""

    def __init__(self, executor: Executor, orchestrator: Orchestrator, *, local: bool) -> None:
        super().__init__(executor)
        self._files = DenyReadFiles(executor, orchestrator, local=local)

    @property
    def files(self) -> Any:
        """The files of that machine, as far as they may be read."""
        return self._files

    @property
    def confine(self) -> Confine | None:
        """The function from an intent to files under it; None if the executor has none."""
        return self._files.sandboxed if self._files.can_sandbox else None

    async def close_helpers(self) -> None:
        """End the processes that read and write for patches."""
        await self._files.close_helpers()
