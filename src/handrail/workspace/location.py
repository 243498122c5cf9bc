"""The machine and the directory of one workspace, reached when they are first used."""

from __future__ import annotations

import asyncio
import os
import posixpath
from typing import TYPE_CHECKING

from handrail.errors import ExecutorError, ExecutorSpawnFailed, FilesError, UsageError
from handrail.executor.base import Executor, SpawnRequest
from handrail.executor.files import Files
from handrail.sandbox import temp_dirs
from handrail.sandbox.profile import AT_ROOT, Intent
from handrail.workspace import profile as profiles
from handrail.workspace.arguments import Environment
from handrail.workspace.open_executor import Release, reach_local, reach_remote
from handrail.workspace.profile import Profile
from handrail.workspace.uncancellable import to_the_end
from handrail.workspace.writable_paths import check_writable

if TYPE_CHECKING:
    from handrail.executor.trees.by_calls import Command
    from handrail.workspace.exposure import AsyncExposure

#: On a machine whose server makes no directory that goes with the session.
_FAR_PREFIX = "handrail-far-"


#: How an address begins.
_ADDRESSES = ("ws://", "wss://", "unix:", "ssh://", "stdio:")


def check_machine(at: object, token: object, executor: object) -> None:
    """Raise UsageError for arguments that do not name a machine."""
    if executor is not None and at is not None:
        raise UsageError("at and executor both say where; give one of them")
    if at is not None and not isinstance(at, str):
        raise UsageError(f"at is an address such as 'ssh://box', not {at!r}")
    if isinstance(at, str) and not at.startswith(_ADDRESSES):
        raise UsageError(
            f"cannot connect to {at!r}; give ws://host:port, wss://host, unix:/path,"
            " ssh://host, or stdio: and the command line of a program"
        )
    if token is not None and not isinstance(token, str):
        raise UsageError(f"token is text, not a {type(token).__name__}")
    if token is not None and at is None:
        raise UsageError("a token is shown to a server; give its address with at=")
    if executor is not None and not isinstance(executor, Executor):
        raise UsageError(f"executor is an Executor, not {executor!r}")


class Location:
    """The executor, the root and the temporary directory of one workspace."""

    def __init__(
        self,
        root: str,
        tag: str,
        *,
        at: str | None,
        token: str | None,
        request_timeout: float | None,
        detach_ttl: float | None,
        executor: Executor | None,
    ) -> None:
        self._given = root
        self._tag = tag
        self.at = at
        self._token = token
        self._request_timeout = request_timeout
        self._detach_ttl = detach_ttl
        self._executor = executor
        self._release: Release | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._root: str | None = None
        #: The root, where it was found before; absolute.
        self.known_root: str | None = None
        self.temporary: str | None = None
        self._own: temp_dirs.TempDir | None = None
        self._sandboxed: tuple[Intent, Files] | None = None
        #: Of the last profile that was asked for, and what it depends on.
        self._intent: tuple[Profile, tuple[str, str | None, bool], Intent | None] | None = None
        self._writable: set[Profile] = set()
        self.closed = False
        #: The name under which its commands share their network; `end_left` forgets it.
        self.loopback = f"{tag}-"
        self._exposures: set[AsyncExposure] = set()
        #: The id and the secret of the session to go on with, instead of a new one.
        self.session: tuple[str, str | None] | None = None

    def __str__(self) -> str:
        place = self._root or self._given
        where = "" if self.at is None else f" at {self.at}"
        return f"{place!r}{where}{', closed' if self.closed else ''}"

    async def open(self) -> Executor:
        """The executor; raises UsageError, FilesError or ExecutorTransportFailed."""
        if self.closed:
            raise UsageError("the workspace is closed; open another")
        if self.elsewhere:
            raise UsageError(
                "this workspace is used in another event loop; open one in each, or use Workspace"
            )
        if self._executor is not None and self._root is not None:
            return self._executor
        async with self._opening:
            if self._executor is None:
                self._loop = asyncio.get_running_loop()
                self._executor, self._release = await self._reach()
            try:
                if self._root is None:
                    self._root = self.known_root or await self._find_root(self._executor)
            except BaseException:
                if self._release is not None:
                    release, self._release, self._executor = self._release, None, None
                    await to_the_end(release())
                raise
            return self._executor

    @property
    def is_ready(self) -> bool:
        """Whether `open` has nothing to do; may be asked in any thread."""
        return self._executor is not None and self._root is not None and not self.closed

    @property
    def elsewhere(self) -> bool:
        """Whether the executor belongs to another event loop than the running one."""
        return self._release is not None and self._loop is not asyncio.get_running_loop()

    @property
    def executor(self) -> Executor:
        """The executor of a workspace that is open."""
        if self._executor is None or (self._root is None and self.known_root is None):
            raise UsageError("the workspace is not open yet; use it in a with statement")
        return self._executor

    @property
    def root(self) -> str:
        """Absolute, without links."""
        if self._root is None and self.known_root is not None:
            return self.known_root
        if self._root is None:
            raise UsageError("the workspace is not open yet; use it in a with statement")
        return self._root

    async def expose(
        self, profile: Profile | None, port: int, local_port: int | None
    ) -> AsyncExposure:
        """Have a port of this machine lead to one of the commands'; raises UsageError."""
        from handrail.workspace.exposure import open_exposure

        executor = await self.open()
        if profile is None or profile.online:
            where = "127.0.0.1" if self.at is None else f"127.0.0.1 of {self.at}"
            raise UsageError(
                "commands of this workspace have the network of their machine, so what they listen"
                f" on is at {where} already; expose is for sandboxed commands without it"
            )
        if not executor.features.loopback:
            raise UsageError(
                "this executor does not share a loopback among commands, so none can be exposed;"
                " use one of this machine or a handrail server of this version"
            )
        made = open_exposure(executor, self.loopback, port, local_port, self._exposures.discard)
        self._exposures.add(made)
        return made

    async def _close_exposures(self) -> None:
        for one in list(self._exposures):
            await one.close()

    async def close(self) -> None:
        """Remove the temporary directory and close the executor; its processes have ended."""
        await self._close_exposures()
        if self._sandboxed is not None:
            await self._sandboxed[1].close()
            self._sandboxed = None
        if self._own is not None:
            await asyncio.to_thread(self._own.remove)
        elif (
            self.temporary is not None
            and self._executor is not None
            and not self._executor.out_of_reach
        ):
            try:
                await self._executor.files.remove(self.temporary, recursive=True, force=True)
            except (FilesError, ExecutorError):
                pass  # the machine is out of reach, or it was removed already
        self.temporary = self._own = None
        if self._release is not None:
            release, self._release = self._release, None
            await release()
        elif self._executor is not None:
            await self._executor.end_left(f"{self._tag}-")  # the caller's own goes on

    async def abandon(self) -> None:
        """Version of `close` for another event loop, where the executor cannot be awaited."""
        if self._release is not None and self.at is None:
            release, self._release = self._release, None
            await release()

    @property
    def is_open(self) -> bool:
        """Whether its machine was reached."""
        return self._executor is not None

    async def detach(self, keep: float | None, wanted: list[str]) -> tuple[str, str | None]:
        """Disconnect and leave all processes running; returns the session's id and resume secret.

        ``wanted``: the ids of processes whose results are to be stored.
        """
        executor = await self.open()
        if self.at is None or self.at.startswith("stdio:"):
            raise UsageError(
                "only a workspace at a server that goes on without us can be left running; open it"
                " with at=, for example at='ssh://localhost'"
            )
        await self._close_exposures()
        await executor.leave(keep, wanted)
        self.closed = True
        self._release = None
        return await to_the_end(executor.detach())

    async def _reach(self) -> tuple[Executor, Release]:
        if self.at is None:
            if self._token is not None:
                raise UsageError("a token is for a server, and without at= there is none")
            return await reach_local(f"{self._tag}-")
        session, secret = self.session or (None, None)
        return await reach_remote(
            self.at,
            token=self._token,
            request_timeout=self._request_timeout,
            detach_ttl=self._detach_ttl,
            session=session,
            secret=secret,
        )

    async def _find_root(self, executor: Executor) -> str:
        place = await executor.place()
        given = self._given
        if given == "~" or given.startswith("~/"):
            if place.home is None:
                raise UsageError("~ means nothing on a machine without a HOME; give the whole path")
            given = place.home + given[1:]
        start = place.cwd
        if self.at is not None and self.at.startswith("ssh://"):
            start = place.home or start  # as scp and its like have it
        await executor.make_root(posixpath.normpath(posixpath.join(start, given)))
        try:
            full = await executor.files.canonical(posixpath.join(start, given))
        except FilesError as error:
            path = posixpath.normpath(posixpath.join(start, given))
            raise FilesError(
                f"{path} cannot be a workspace: {error}; make it, or name another directory",
                kind=error.kind,
                path=path,
            ) from None
        if not (await executor.files.metadata(full)).is_directory:
            raise FilesError(
                f"{full} is no directory, so nothing can be run in it; name a directory",
                kind="not_a_directory",
                path=full,
            )
        return full

    # --- the sandbox ---------------------------------------------------------------------

    def intent(self, profile: Profile | None) -> Intent | None:
        """The intent of the workspace's commands; None: no sandbox.

        Raises UsageError for a workspace that is the whole machine: writing below its root
        would be writing anywhere.
        """
        if profile is None:
            return None
        if profile.write and self.root == "/" and "." in profile.write:
            raise UsageError(AT_ROOT)
        temporary = self.temporary if profile.temporary else None
        of = (self.root, temporary, self.has_private_tmp)
        known = self._intent  # each file call asks
        if known is None or known[0] is not profile or known[1] != of:
            made = profiles.intent(profile, self.root, temporary, private=self.has_private_tmp)
            self._intent = known = profile, of, made
        return known[2]

    async def check_writable(self, profile: Profile | None) -> None:
        """What `writable_paths` asks; what was found is not looked for again."""
        if profile is not None and profile not in self._writable:
            await check_writable(profile, self.root, self.executor)
            self._writable.add(profile)

    async def files(self, profile: Profile | None) -> Files:
        """The files of the machine as commands under a profile see them; None: all."""
        files = (await self.open()).files
        await self.make_temporary(profile)
        intent = self.intent(profile)
        if intent is None:
            return files
        if self._sandboxed is None or self._sandboxed[0] != intent:
            self._sandboxed = intent, files.sandboxed(intent)
        return self._sandboxed[1]

    def command_runner(self, profile: Profile | None) -> Command:
        """Runs commands of file calls that the machine's server does not offer."""
        from handrail.workspace.file_transfer import command_runner

        return command_runner(self.executor, self._tag, self.intent(profile))

    @property
    def has_private_tmp(self) -> bool:
        """Whether commands can have the temporary directory as their /tmp; old servers cannot."""
        return self._executor is not None and self._executor.features.private_tmp

    async def private_tmp(self) -> str | None:
        """The directory that sandboxes here can have as their /tmp; None: they cannot."""
        await self.open()
        return await self.make_temporary(Profile()) if self.has_private_tmp else None

    async def make_temporary(self, profile: Profile | None) -> str | None:
        """A directory for temporary files that commands may write to, made when first needed."""
        if profile is None or not profile.temporary:
            return None
        if self.temporary is not None:
            return self.temporary
        async with self._opening:
            if self.temporary is None:
                self.temporary = await self._make_temporary(self.executor)
        return self.temporary

    async def _make_temporary(self, executor: Executor) -> str:
        """Make one that no other user of its machine can look into."""
        if (made := await executor.temporary()) is not None:
            return await executor.files.canonical(made)
        if self.at is None and self.has_private_tmp:
            await asyncio.to_thread(temp_dirs.sweep)
            self._own = temp_dirs.TempDir(self._tag)
            return os.fsdecode(self._own.path)
        place = await executor.place()
        path = posixpath.join(place.temp_dir, f"{_FAR_PREFIX}{self._tag}")
        if self.at is None:  # an executor of the caller's own, which knows what it is worth
            await executor.files.mkdir(path)
        else:
            await self._mkdir(executor, path)
        return await executor.files.canonical(path)

    async def _mkdir(self, executor: Executor, path: str) -> None:
        # The file calls of the wire know no modes.
        request = SpawnRequest(
            process_id=f"{self._tag}-0",
            argv=("mkdir", "-m", "700", "--", path),
            cwd="/",
            env={},
            env_policy=Environment().policy,
            pipe_stdin=False,
        )
        info = await (await executor.spawn(request)).wait()
        if info.code != 0:
            raise ExecutorSpawnFailed(
                f"the directory for temporary files, {path}, cannot be made (mkdir exited with"
                f" {info.code}); use a Profile with temporary=False"
            )
