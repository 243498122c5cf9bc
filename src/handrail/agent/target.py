"""From a workspace, an executor or a path to a target: an executor, a directory, a sandbox."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from handrail.agent.workspace_executor import executor_of
from handrail.errors import HandrailError, UsageError
from handrail.executor.base import Executor
from handrail.orchestrator.settings import Mode, SandboxMode
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.profile import Profile
from handrail.workspace.synchronous import Workspace
from handrail.workspace.variables import Variables

Where = Workspace | AsyncWorkspace | Executor | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Target:
    """Where commands run.  ``release`` closes what was opened for it."""

    executor: Executor
    cwd: str
    local: bool
    release: Callable[[], Awaitable[None]]
    sandbox: SandboxMode | None = None
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
        root = where.root if cwd is None else os.path.join(where.root, cwd)
        return Target(
            executor,
            root,
            executor.features.local,
            where.close,
            from_profile(where.profile),
            where.private_tmp,
            where.variables,
        )

    if cwd is None or not cwd.startswith("/"):
        raise UsageError("an executor has no directory of its own: give cwd, an absolute path")
    # The executor is the caller's; what we make for its commands is ours.
    ground = AsyncWorkspace(cwd, executor=where)
    local = where.features.local
    return Target(where, cwd, local, ground.close, private_tmp=ground.private_tmp)


def from_profile(profile: Profile | None) -> SandboxMode:
    """The sandbox of a workspace as a mode; raises UsageError where a mode would allow more."""
    if profile is None:
        return SandboxMode(Mode.OFF)
    if profile.read != ("/",):
        raise UsageError(
            "a profile that hides most files cannot be kept here: give sandbox= with deny_read"
        )
    own = "." in profile.write
    roots = tuple(path for path in profile.write if path != ".")
    if any(not path.startswith("/") for path in roots) or (roots and not own):
        raise UsageError("further writable paths have to be absolute, beside '.': give sandbox=")
    return SandboxMode(
        Mode.WORKSPACE_WRITE if own else Mode.READ_ONLY,
        writable_roots=roots,
        network_access=profile.network,
        exclude_tmpdir=not profile.temporary,
        exclude_slash_tmp=not profile.temporary,
        deny_read=profile.deny,
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
