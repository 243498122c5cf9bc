"""From a workspace, an executor or a path to a target: an executor, a directory, a sandbox."""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from handrail.agent.workspace_executor import executor_of
from handrail.errors import HandrailError, UsageError
from handrail.executor.base import Executor
from handrail.orchestrator.settings import Mode, SandboxMode, read_mode
from handrail.sandbox.profile import GLOB_CHARACTERS
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.profile import Profile, find_profile
from handrail.workspace.synchronous import Workspace
from handrail.workspace.variables import Variables

Where = Workspace | AsyncWorkspace | Executor | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Target:
    """Where commands run.  ``release`` closes what was opened for it."""

    executor: Executor
    #: Where relative paths of a profile are.
    root: str
    cwd: str
    local: bool
    release: Callable[[], Awaitable[None]]
    #: The sandbox of the workspace; None: it has none, and runs everything freely.
    profile: Profile | None = field(default_factory=Profile)
    #: Makes the directory that commands have as their /tmp; None where it is not possible.
    private_tmp: Callable[[], Awaitable[str | None]] | None = None
    variables: Variables = field(default_factory=Variables)


async def take(where: Where, cwd: str | None) -> Target:
    """Open the target; raises UsageError, FilesError, ExecutorTransportFailed."""
    if isinstance(where, str | os.PathLike):
        where = AsyncWorkspace(where)
    if isinstance(where, Workspace):
        # A ``Workspace`` runs on another loop; the same location is opened on this one.
        where = where.asynchronous()
    if isinstance(where, AsyncWorkspace):
        executor = await executor_of(where)
        start = posixpath.normpath(posixpath.join(where.root, cwd or ""))
        return Target(
            executor,
            where.root,
            start,
            executor.features.local,
            where.close,
            where.profile,
            where.private_tmp,
            where.variables,
        )

    if cwd is None or not cwd.startswith("/"):
        raise UsageError("an executor has no directory of its own: give cwd, an absolute path")
    # The executor is the caller's; what we make for its commands is ours.
    ground = AsyncWorkspace(cwd, executor=where)
    local = where.features.local
    return Target(where, cwd, cwd, local, ground.close, private_tmp=ground.private_tmp)


def sandbox_mode(sandbox: SandboxMode | Profile | str | None, target: Target) -> SandboxMode:
    """The sandbox that was meant, None for the workspace's own; raises UsageError."""
    if sandbox is None:
        return from_profile(target.profile, target.root, target.cwd)
    if isinstance(sandbox, Profile):
        return from_profile(sandbox, target.root, target.cwd)
    if isinstance(sandbox, SandboxMode):
        return sandbox
    mode = read_mode(sandbox)
    if mode in (Mode.READ_ONLY, Mode.WORKSPACE_WRITE):
        return from_profile(find_profile(mode.value), target.root, target.cwd)
    return SandboxMode(mode)


def from_profile(profile: Profile | None, root: str, cwd: str | None = None) -> SandboxMode:
    """The sandbox of a workspace as a mode; relative paths of the profile are below ``root``.

    ``cwd`` is where commands start, if that is elsewhere.
    """
    if profile is None:
        return SandboxMode(Mode.OFF)

    def full(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(posixpath.normpath(posixpath.join(root, path)) for path in paths)

    def pattern(path: str) -> str:
        if GLOB_CHARACTERS.isdisjoint(path):
            return full((path,))[0]
        # Relative patterns start where commands do.
        return path if cwd in (None, root) else posixpath.join(glob.escape(root), path)

    write = full(profile.write)
    return SandboxMode(
        Mode.WORKSPACE_WRITE if write or profile.temporary else Mode.READ_ONLY,
        writable_roots=tuple(path for path in write if path != (cwd or root)),
        network_access=profile.network,
        exclude_tmpdir=not profile.temporary,
        exclude_slash_tmp=not profile.temporary,
        deny_read=tuple(map(pattern, profile.deny)),
        workspace=(cwd or root) in write,
        readable_roots=full(profile.read),
    )


def exists_on(executor: Executor) -> Callable[[str], Awaitable[bool]]:
    """Whether a path exists on the executor's machine."""

    async def exists(path: str) -> bool:
        try:
            await executor.files.metadata(path)
        except HandrailError:
            return False
        return True

    return exists
