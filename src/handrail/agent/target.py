"""From a workspace, an executor or a path to a target: an executor, a directory, a sandbox."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from handrail import glob_pattern
from handrail.agent.workspace_executor import executor_of, shared_by
from handrail.errors import HandrailError, UsageError
from handrail.executor.base import Executor
from handrail.network.settings import OPEN, Managed, Network
from handrail.orchestrator.settings import Mode, SandboxMode, read_mode
from handrail.sandbox.profile import is_pattern
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.profile import Profile, find_profile, with_network
from handrail.workspace.synchronous.workspace import Workspace
from handrail.workspace.variables import Variables
from handrail.workspace.writable_paths import check_writable

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

    async def check_writable(self, profile: Profile | None) -> None:
        """Raises UsageError for a writable path that is missing; None: of the workspace's own."""
        profile = profile or self.profile
        if profile is not None:
            await check_writable(profile, self.root, self.executor)


def check_where(where: Where) -> None:
    """Raises UsageError for what is no place to run commands in."""
    if not isinstance(where, str | os.PathLike | Workspace | AsyncWorkspace | Executor):
        raise UsageError(
            f"an AgentShell takes a workspace, a directory or an executor, not {where!r}"
        )


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
    workspace = AsyncWorkspace(cwd, executor=where)
    executor = shared_by(where, workspace)
    local = where.features.local
    return Target(executor, cwd, cwd, local, workspace.close, private_tmp=workspace.private_tmp)


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
        profile = find_profile(mode.value)
        if target.profile is not None and target.profile.managed is not None:
            profile = with_network(profile, target.profile.managed)  # a name says nothing of it
        return from_profile(profile, target.root, target.cwd)
    return SandboxMode(mode)


def networked(mode: SandboxMode, network: Network | None) -> SandboxMode:
    """The mode with another network; None: its own.  Raises UsageError."""
    if network is None:
        return mode
    if not mode.restricted and network != OPEN:
        raise UsageError(
            "a network that is off or managed needs a sandbox, without which nothing enforces it"
        )
    managed = network if isinstance(network, Managed) else None
    return replace(mode, network_access=network == OPEN, managed=managed)


def from_profile(profile: Profile | None, root: str, cwd: str | None = None) -> SandboxMode:
    """The sandbox of a workspace as a mode; relative paths of the profile are below ``root``.

    ``cwd`` is where commands start, if that is elsewhere.
    """
    if profile is None:
        return SandboxMode(Mode.OFF)

    def full(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(posixpath.normpath(posixpath.join(root, path)) for path in paths)

    def pattern(path: str) -> str:
        if not is_pattern(path):
            return full((path,))[0]
        # Relative patterns start where commands do.
        return path if cwd in (None, root) else posixpath.join(glob_pattern.escape(root), path)

    write = full(profile.write)
    return SandboxMode(
        Mode.WORKSPACE_WRITE if write or profile.temporary else Mode.READ_ONLY,
        writable_roots=tuple(path for path in write if path != (cwd or root)),
        network_access=profile.online,
        managed=profile.managed,
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
