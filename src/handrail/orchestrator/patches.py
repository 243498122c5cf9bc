"""Patches: approved by the paths they write, applied in the sandbox of the run.

A writer that the sandbox refuses asks, once, whether the rest may be done with more; nothing that
was written is written again.  When a patch was approved with paths outside the sandbox, those are
written without following any link, for an approved path is that path; the others are still written
sandboxed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from handrail.errors import ApprovalRejected, FilesError, Forbidden
from handrail.executor.base import Denied, Executor
from handrail.executor.files import Files
from handrail.executor.patch_files import PatchFiles
from handrail.orchestrator.approval_cache import FileKey
from handrail.orchestrator.approvals import Kind
from handrail.orchestrator.audit import Outcome
from handrail.orchestrator.call import Call
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.orchestrator.requirement import patch_requirement
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import sandbox_intent
from handrail.patch.io_steps import AsyncFiles
from handrail.patch.plan import Change
from handrail.sandbox.profile import Intent

T = TypeVar("T")
TOOL = "apply_patch"
#: Sandboxed files of earlier settings that may still be in use.
_MOST_SANDBOXED = 8


def changed_paths(changes: Iterable[Change]) -> tuple[str, ...]:
    """Every path a patch writes or removes, move targets among them."""
    paths = [path for change in changes for path in (change.path, change.move_to) if path]
    return tuple(dict.fromkeys(paths))


class PatchAccess:
    """The files of patches: of one executor, under the settings of one orchestrator."""

    def __init__(self, orchestrator: Orchestrator, executor: Executor, *, local: bool) -> None:
        """``local``: the executor runs on this machine."""
        self.orchestrator = orchestrator
        self.local = local
        self._executor = executor
        self._sandboxed: OrderedDict[Intent, Files] = OrderedDict()

    async def reader(self) -> AsyncFiles:
        """The files a patch is verified against, as a sandboxed command sees them.

        The check comes before any question, so it must not reveal what the settings hide, not even
        by whether a guess was right.  Raises FilesError.
        """
        intent = sandbox_intent(self.orchestrator.settings)
        return self.free() if intent is None else await self.inside(intent)

    async def inside(self, intent: Intent) -> AsyncFiles:
        """The files as a process under an intent sees them; raises FilesError."""
        if self.local:
            wall, settings = self.orchestrator.wall, self.orchestrator.settings
            intent = await wall.around_files(intent, settings, self._executor)
        files = self._sandboxed.pop(intent, None) or self._executor.files.sandboxed(intent)
        self._sandboxed[intent] = files
        while len(self._sandboxed) > _MOST_SANDBOXED:
            self._sandboxed.popitem(last=False)
        return PatchFiles(files)

    def free(self) -> AsyncFiles:
        """The files without a sandbox; no link is followed where the settings ask for one."""
        files = self._executor.files
        restricted = self.local and self.orchestrator.settings.sandbox.restricted
        return PatchFiles(files.without_links() if restricted else files)

    async def close(self) -> None:
        """End the processes that read and write; another call starts new ones."""
        while self._sandboxed:
            await self._sandboxed.popitem()[1].close()


async def admit_patch(
    access: PatchAccess,
    *,
    call_id: str,
    cwd: str,
    changes: Iterable[Change],
) -> PatchWriter:
    """Decide about a patch; raises Forbidden or ApprovalRejected."""
    paths = changed_paths(changes)
    orchestrator = access.orchestrator
    settings = orchestrator.settings
    call = Call(call_id, ("apply_patch",), cwd, tool=TOOL)
    tmpdir = os.environ.get("TMPDIR") if access.local else None
    requirement = patch_requirement(paths, settings, tmpdir)
    keys = tuple(FileKey(call.environment_id, path) for path in paths)
    flow = CallFlow(orchestrator, call, requirement, settings, keys, kind=Kind.PATCH, paths=paths)
    attempt = await flow.admit()
    writer = PatchWriter(flow, access, OutsidePaths(requirement.outside_paths))
    try:
        await writer.take(attempt)
    except FilesError as error:
        raise Forbidden(str(error)) from error
    return writer


class OutsidePaths:
    """The approved paths that a sandbox would refuse, and the folders above them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

    def __contains__(self, path: str) -> bool:
        below = path.rstrip("/") + "/"
        return path in self._paths or any(one.startswith(below) for one in self._paths)


class PatchWriter:
    """``AsyncFiles`` of one patch, under a ``CallFlow``."""

    def __init__(self, flow: CallFlow, access: PatchAccess, outside: OutsidePaths) -> None:
        self._flow = flow
        self._access = access
        self._free_files = access.free()
        #: The part of an approved patch that is written outside; None: all of it.
        self._outside: OutsidePaths | None = outside
        self._sandboxed = False
        self._over = False
        self._inside: AsyncFiles | None = None

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
        if not self._over:
            self._over = True
            self._flow.finished(Outcome.COMPLETED)

    async def _do(self, path: str, work: Callable[[AsyncFiles], Awaitable[T]]) -> T:
        try:
            return await work(self._files(path))
        except FilesError as error:
            if self._over or not self._sandboxed or not _is_refusal(error):
                raise
            evidence = {"kind": "file", "path": path, "source": "errno", "certain": True}
            denied = Denied(likely=True, evidence=(evidence,))
            try:
                attempt = await self._flow.after(denied, str(error).encode())
            except ApprovalRejected as rejection:
                # Raised as a failure of the file, so that what was written before is put back.
                self._over = True
                raise FilesError(str(rejection), kind=error.kind, path=path) from rejection
            self._over = attempt is None
            if attempt is None:
                raise
        # The question named all of the paths, and each is written as that path.
        self._outside = None
        await self.take(attempt)
        return await work(self._files(path))

    async def take(self, attempt: Attempt) -> None:
        """Go on as an attempt allows; raises FilesError where its sandbox has no files."""
        self._sandboxed = attempt.sandboxed
        sandbox = attempt.sandbox
        if sandbox is None and self._outside is not None:
            sandbox = self._flow.sandboxed_intent
        if sandbox is None:
            self._outside = self._inside = None
        else:
            self._inside = await self._access.inside(sandbox)

    def _files(self, path: str) -> AsyncFiles:
        """The files through which this path is written."""
        if self._inside is None:
            return self._free_files
        if self._sandboxed or self._outside is None or path not in self._outside:
            return self._inside
        return self._free_files


def _is_refusal(error: FilesError) -> bool:
    """Whether a sandbox would fail a call like this."""
    return error.kind in ("permission_denied", "read_only")
