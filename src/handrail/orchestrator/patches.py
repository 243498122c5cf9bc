"""Patches: approved by where they write, carried out in the sandbox of the run.

A writer that the sandbox refuses asks, once, whether the rest may be done with more; nothing that
was written is written again.  Outside a sandbox that the settings ask for, no link is followed:
whoever approved a path has approved that path.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from handrail.errors import ApprovalRejected, FilesError, Forbidden
from handrail.executor.base import Denied, Executor, SandboxKind
from handrail.orchestrator.approvals import Kind
from handrail.orchestrator.audit import Outcome
from handrail.orchestrator.calls import Call
from handrail.orchestrator.course import Attempt, Course
from handrail.orchestrator.memory import FileKey
from handrail.orchestrator.requirement import patch_requirement
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.sandboxed_files import SandboxedFiles
from handrail.patch.plan import Change
from handrail.patch.steps import AsyncFiles

T = TypeVar("T")
#: From an intent to files under it.
Confine = Callable[[Mapping[str, object]], AsyncFiles]
TOOL = "apply_patch"
_FOLLOWS_NONE = "{} is a link, and a patch outside the sandbox follows none: name the real path"


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
    """Let a patch through; raises Forbidden or ApprovalRejected.

    ``free_files`` are used where no sandbox is needed; ``local``: they are of this machine.
    ``confine`` gives those of another machine under an intent.
    """
    paths = changed_paths(changes)
    settings = orchestrator.settings
    call = Call(call_id, ("apply_patch",), cwd, tool=TOOL, environment_id=environment_id)
    requirement = patch_requirement(paths, settings, os.environ.get("TMPDIR") if local else None)
    keys = tuple(FileKey(environment_id, path) for path in paths)
    course = Course(orchestrator, call, requirement, settings, keys, kind=Kind.PATCH, paths=paths)
    attempt = await course.admit()
    if attempt.sandboxed and not local and confine is None:
        raise Forbidden(
            "files of that machine cannot be written under its sandbox: change them by a command"
        )
    if local and settings.sandbox.restricted and not attempt.sandboxed:
        for path in paths:
            link = first_link(path)
            if link is not None:
                raise Forbidden(_FOLLOWS_NONE.format(link))
    return PatchWriter(course, attempt, executor, free_files, local=local, confine=confine)


class PatchWriter:
    """``AsyncFiles`` under a course."""

    def __init__(
        self,
        course: Course,
        attempt: Attempt,
        executor: Executor,
        free_files: AsyncFiles,
        *,
        local: bool,
        confine: Confine | None = None,
    ) -> None:
        self._course = course
        self._executor = executor
        self._free_files = free_files
        self._local = local
        self._confine = confine
        self._sandboxed = False
        self._over = False
        #: The answer, if more was asked for and not given.
        self.rejection: ApprovalRejected | None = None
        self._links_refused = False
        self._files = self._through(attempt)

    async def read(self, path: str) -> bytes:
        return await self._files.read(path)

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
        """The patch is done with; tells how it went."""
        if isinstance(self._files, SandboxedFiles):
            await self._files.close()
        if not self._over:
            self._over = True
            self._course.finished(Outcome.COMPLETED)

    async def _do(self, path: str, work: Callable[[AsyncFiles], Awaitable[T]]) -> T:
        try:
            self._check(path)
            return await work(self._files)
        except FilesError as error:
            if self._over or not self._sandboxed or not _is_refusal(error):
                raise
            evidence = {"kind": "file", "path": path, "source": "errno", "certain": True}
            denied = Denied(likely=True, evidence=(evidence,))
            try:
                attempt = await self._course.after(denied, str(error).encode())
            except ApprovalRejected as rejection:
                # As a failure of the file, so that what was written before is put back.
                self._over, self.rejection = True, rejection
                raise FilesError(str(rejection), kind=error.kind, path=path) from rejection
            self._over = attempt is None
            if attempt is None:
                raise
        await self.close_helper()
        self._files = self._through(attempt)
        self._check(path)
        return await work(self._files)

    async def close_helper(self) -> None:
        """End what reads and writes inside."""
        if isinstance(self._files, SandboxedFiles):
            await self._files.close()

    def _through(self, attempt: Attempt) -> AsyncFiles:
        self._sandboxed = attempt.sandboxed
        if not isinstance(attempt.sandbox, SandboxKind):
            if self._confine is not None:
                return self._confine(attempt.sandbox)
            call = self._course.call
            name = f"{call.call_id}-{attempt.number}"
            return SandboxedFiles(self._executor, name, call.cwd, attempt.sandbox)
        self._links_refused = self._local and self._course.settings.sandbox.restricted
        return self._free_files

    def _check(self, path: str) -> None:
        if self._links_refused and not self._sandboxed:
            link = first_link(path)
            if link is not None:
                sentence = _FOLLOWS_NONE.format(link)
                raise FilesError(sentence, kind="invalid_input", path=path)


def _is_refusal(error: FilesError) -> bool:
    """Whether a sandbox would fail a call like this; the wire has no kind for a read-only disk."""
    return error.kind == "permission_denied" or "read-only file system" in str(error).lower()


def first_link(path: str) -> str | None:
    """The first link on the way to ``path``; those of the root directory are the system's."""
    at = "/"
    for depth, part in enumerate(part for part in path.split("/") if part):
        at = posixpath.join(at, part)
        try:
            mode = os.lstat(at).st_mode
        except OSError:
            return None
        if depth and stat.S_ISLNK(mode):
            return at
    return None
