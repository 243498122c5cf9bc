"""Patches: approved by the paths they write, applied in the sandbox of the run.

A writer that the sandbox refuses asks, once, whether the rest may be done with more; nothing that
was written is written again.  When a patch was approved with paths outside the sandbox, those are
written without following any link (``no_link_files.py``), for an approved path is that path; the
others are still written sandboxed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from handrail.errors import ApprovalRejected, FilesError, Forbidden
from handrail.executor.base import Denied, Executor
from handrail.orchestrator.approval_cache import FileKey
from handrail.orchestrator.approvals import Kind
from handrail.orchestrator.audit import Outcome
from handrail.orchestrator.call import Call
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.orchestrator.no_link_files import AwaitedNoLinkFiles
from handrail.orchestrator.requirement import patch_requirement
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.sandboxed_files import Cover, SandboxedFiles
from handrail.patch.io_steps import AsyncFiles
from handrail.patch.plan import Change
from handrail.sandbox.profile import Intent

T = TypeVar("T")
#: From an intent to files under it.
Confine = Callable[[Intent], AsyncFiles]
TOOL = "apply_patch"


def changed_paths(changes: Iterable[Change]) -> tuple[str, ...]:
    """Every path a patch writes or removes, move targets among them."""
    paths = [path for change in changes for path in (change.path, change.move_to) if path]
    return tuple(dict.fromkeys(paths))


async def admit_patch(
    orchestrator: Orchestrator,
    executor: Executor,
    free_files: AsyncFiles,
    *,
    call_id: str,
    cwd: str,
    changes: Iterable[Change],
    environment_id: str = "local",
    local: bool = True,
    confine: Confine | None = None,
) -> PatchWriter:
    """Decide about a patch; raises Forbidden or ApprovalRejected.

    ``free_files`` are used where no sandbox is needed; ``local``: they are of this machine.
    ``confine`` gives those of another machine under an intent.
    """
    paths = changed_paths(changes)
    settings = orchestrator.settings
    call = Call(call_id, ("apply_patch",), cwd, tool=TOOL, environment_id=environment_id)
    requirement = patch_requirement(paths, settings, os.environ.get("TMPDIR") if local else None)
    keys = tuple(FileKey(environment_id, path) for path in paths)
    course = CallFlow(orchestrator, call, requirement, settings, keys, kind=Kind.PATCH, paths=paths)
    attempt = await course.admit()
    if attempt.sandboxed and not local and confine is None:
        raise Forbidden(
            "files of that machine cannot be written under its sandbox: change them by a command"
        )
    if local and settings.sandbox.restricted:
        free_files = AwaitedNoLinkFiles()
    outside = OutsidePaths(requirement.outside_paths)
    cover = orchestrator.wall.cover(settings, executor) if local else None
    return PatchWriter(
        course, attempt, executor, free_files, confine=confine, outside=outside, cover=cover
    )


class OutsidePaths:
    """The approved paths that a sandbox would refuse, and the folders above them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

    def __contains__(self, path: str) -> bool:
        below = path.rstrip("/") + "/"
        return path in self._paths or any(one.startswith(below) for one in self._paths)


class PatchWriter:
    """``AsyncFiles`` of one patch, under a ``CallFlow``."""

    def __init__(
        self,
        course: CallFlow,
        attempt: Attempt,
        executor: Executor,
        free_files: AsyncFiles,
        *,
        confine: Confine | None = None,
        outside: OutsidePaths | None = None,
        cover: Cover | None = None,
    ) -> None:
        self._course = course
        self._cover = cover
        self._executor = executor
        self._free_files = free_files
        self._confine = confine
        #: The part of an approved patch that is written outside; None: all of it.
        self._outside = outside
        self._sandboxed = False
        self._over = False
        #: The answer, if more was asked for and refused.
        self.rejection: ApprovalRejected | None = None
        self._inside: AsyncFiles | None = None
        self._take(attempt)

    async def read(self, path: str) -> bytes:
        return await self._files(path).read(path)

    async def write(self, path: str, data: bytes) -> None:
        await self._do(path, lambda files: files.write(path, data))

    async def copy(self, source: str, path: str) -> None:
        await self._do(path, lambda files: files.copy(source, path))

    async def remove(self, path: str) -> None:
        await self._do(path, lambda files: files.remove(path))

    async def mkdir(self, path: str) -> None:
        await self._do(path, lambda files: files.mkdir(path))

    async def rmdir(self, path: str) -> None:
        await self._do(path, lambda files: files.rmdir(path))

    async def close(self) -> None:
        """The patch is done; reports how it went."""
        await self.close_helper()
        if not self._over:
            self._over = True
            self._course.finished(Outcome.COMPLETED)

    async def _do(self, path: str, work: Callable[[AsyncFiles], Awaitable[T]]) -> T:
        try:
            return await work(self._files(path))
        except FilesError as error:
            if self._over or not self._sandboxed or not _is_refusal(error):
                raise
            evidence = {"kind": "file", "path": path, "source": "errno", "certain": True}
            denied = Denied(likely=True, evidence=(evidence,))
            try:
                attempt = await self._course.after(denied, str(error).encode())
            except ApprovalRejected as rejection:
                # Raised as a failure of the file, so that what was written before is put back.
                self._over, self.rejection = True, rejection
                raise FilesError(str(rejection), kind=error.kind, path=path) from rejection
            self._over = attempt is None
            if attempt is None:
                raise
        await self.close_helper()
        # The question named all of the paths, and each is written as that path.
        self._outside = None
        self._take(attempt)
        return await work(self._files(path))

    async def close_helper(self) -> None:
        """End the sandboxed helper, unless it is shared."""
        if self._confine is None and isinstance(self._inside, SandboxedFiles):
            await self._inside.close()

    def _take(self, attempt: Attempt) -> None:
        self._sandboxed = attempt.sandboxed
        sandbox = attempt.sandbox
        if sandbox is None:
            intent = self._course.sandboxed_intent
            if intent is None or self._outside is None:
                self._outside = self._inside = None
                return
            sandbox = intent
        if self._confine is not None:
            self._inside = self._confine(sandbox)
            return
        call = self._course.call
        name = f"{call.call_id}-{attempt.number}"
        self._inside = SandboxedFiles(self._executor, name, call.cwd, sandbox, self._cover)

    def _files(self, path: str) -> AsyncFiles:
        """The files through which this path is written."""
        if self._inside is None:
            return self._free_files
        if self._sandboxed or self._outside is None or path not in self._outside:
            return self._inside
        return self._free_files


def _is_refusal(error: FilesError) -> bool:
    """Whether a sandbox would fail a call like this; the wire has no kind for a read-only disk."""
    return error.kind == "permission_denied" or "read-only file system" in str(error).lower()
