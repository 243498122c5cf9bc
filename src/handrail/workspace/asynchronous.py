"""``AsyncWorkspace``: a directory of a machine, and the commands that are run in it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import time
from collections.abc import Mapping
from typing import Any, Literal, Self, overload

from handrail.errors import (
    ExecutorError,
    ExecutorSpawnFailed,
    FilesError,
    ProcessUnknown,
    UsageError,
)
from handrail.executor.base import Executor, SandboxKind, SpawnRequest
from handrail.workspace import profile as profiles
from handrail.workspace import records
from handrail.workspace.command import Command, Environment, seconds, to_argv, to_bytes
from handrail.workspace.files import AsyncFiles
from handrail.workspace.finish import to_the_end
from handrail.workspace.process import AsyncProcess, Listener
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.reach import Release, reach_local, reach_remote
from handrail.workspace.records import Claim, Record
from handrail.workspace.result import Result

Env = Mapping[str, "str | None"]


class AsyncWorkspace:
    """A directory, here or on another machine, in which commands are run.

    ``root`` is the directory.  ``at`` says on which machine: None is this one, else
    ``ws://``, ``wss://``, ``unix:/path``, ``stdio:program`` or ``ssh://host``; ``token`` is what
    a server asks for.  ``sandbox`` holds for every command unless it names another:
    ``workspace-write`` (writes only below the root, no network), ``read-only``, ``off``, or a
    ``Profile``.  ``env`` is laid over the machine's own variables; None removes one.
    ``request_timeout`` is how long the other side may take to answer, in seconds; ``detach_ttl``
    how long it keeps the processes without a connection (None: as long as it likes).

    Leaving the ``async with`` ends every process that was started here, with its descendants.
    Raises UsageError for arguments that make no sense, FilesError when the root is missing,
    ExecutorTransportFailed when the machine cannot be reached.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = ".",
        *,
        at: str | None = None,
        token: str | None = None,
        sandbox: Sandbox = "workspace-write",
        env: Env | None = None,
        request_timeout: float | None = 30.0,
        detach_ttl: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._given_root = os.fspath(root)
        if not isinstance(self._given_root, str) or not self._given_root:
            raise UsageError("the root of a workspace is a path; '.' is where the program runs")
        if executor is not None and at is not None:
            raise UsageError("at and executor both say where; give one of them")
        self._at = at
        self._token = token
        self._profile = profiles.find_profile(sandbox)
        self._env: Env = dict(env or {})
        Environment(self._env)  # refuses bad names now
        self._request_timeout = seconds(request_timeout, "request_timeout")
        self._detach_ttl = seconds(detach_ttl, "detach_ttl")
        self._claim: Claim | None = None
        self._executor = executor
        self._release: Release | None = None
        self._opening = asyncio.Lock()
        self._root: str | None = None
        self._files: AsyncFiles | None = None
        self._temporary: str | None = None
        self._intents: dict[Profile | None, SandboxKind | Mapping[str, object]] = {}
        self._processes: set[AsyncProcess] = set()
        self._tag = secrets.token_hex(4)
        self._count = 0
        self._closed = False

    # --- life ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process of this workspace, and let go of its machine.  Can be repeated."""
        if not self._closed:
            self._closed = True
            await to_the_end(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(process._end() for process in self._processes))
        self._processes.clear()
        if self._temporary is not None and self._executor is not None:
            try:
                await self._executor.files.remove(self._temporary, recursive=True, force=True)
            except (FilesError, ExecutorError):
                pass  # the machine is out of reach, or somebody was quicker
            self._temporary = None
        if self._release is not None:
            release, self._release = self._release, None
            await release()
        if self._claim is not None:
            self._claim.remove()
            self._claim.release()

    async def _open(self) -> Executor:
        executor = self._executor
        if executor is not None and self._root is not None and not self._closed:
            return executor
        if self._closed:
            raise UsageError("the workspace is closed; open another")
        async with self._opening:
            if self._executor is None:
                self._executor, self._release = await self._reach()
            try:
                if self._root is None:
                    self._root = await self._find_root(self._executor)
            except BaseException:
                if self._release is not None:
                    release, self._release, self._executor = self._release, None, None
                    await to_the_end(release())
                raise
            return self._executor

    async def _reach(self) -> tuple[Executor, Release]:
        if self._at is None:
            if self._token is not None:
                raise UsageError("a token is for a server, and without at= there is none")
            return await reach_local()
        record = self._claim.record if self._claim is not None else None
        return await reach_remote(
            self._at,
            token=self._token,
            request_timeout=self._request_timeout,
            detach_ttl=self._detach_ttl,
            session=record.session if record is not None else None,
            secret=record.secret if record is not None else None,
        )

    # --- leaving and coming back ---------------------------------------------------------

    async def detach(self) -> str:
        """Leave with everything still running; the id with which ``attach`` finds it again.

        Its server keeps it for ``detach_ttl`` seconds.  Raises UsageError for a workspace on
        this machine without a server: its processes end with the program.
        """
        executor = await self._open()
        leave = getattr(executor, "detach", None)
        if leave is None or self._at is None:
            raise UsageError(
                "only a workspace at a server can be left running; open it with at=, for"
                " example at='ssh://localhost'"
            )
        for process in self._processes:
            process._let_go()
        session, secret = await to_the_end(leave())
        record = Record(
            id=self._tag,
            at=self._at,
            root=self.root,
            session=session,
            secret=secret,
            profile=self._profile,
            temporary=self._temporary,
            processes={
                p.id: [_text(word) for word in p.argv] for p in self._processes if p.running
            },
            count=self._count,
        )
        if self._claim is not None:
            self._claim.save(record)
            self._claim.release()
            self._claim = None
        else:
            records.create(record)
        self._closed = True
        self._processes.clear()
        self._release = None
        return self._tag

    @classmethod
    async def attach(
        cls,
        id: str,  # noqa: A002 (the name it has everywhere)
        *,
        token: str | None = None,
        request_timeout: float | None = 30.0,
    ) -> AsyncWorkspace:
        """Come back to a workspace that was detached from; its processes are ours again.

        Raises UsageError when there is none of that id, WorkspaceBusy while somebody else is
        attached, ExecutorTransportFailed when its server does not answer or has ended it.
        """
        claim = records.claim(id)
        record = claim.record
        workspace = cls(record.root, at=record.at, token=token, request_timeout=request_timeout)
        workspace._claim = claim
        workspace._tag = record.id
        workspace._profile = record.profile
        workspace._temporary = record.temporary
        workspace._count = record.count
        try:
            executor = await workspace._open()
            for process_id, argv in record.processes.items():
                try:
                    session = await executor.attach(process_id)
                except ProcessUnknown:
                    continue  # it has ended, longer ago than its server remembers
                workspace._processes.add(
                    AsyncProcess(
                        session,
                        tuple(argv),
                        sandboxed=record.profile is not None,
                        started=time.monotonic(),
                    )
                )
        except BaseException:
            claim.release()
            raise
        return workspace

    @property
    def id(self) -> str:
        """Its name, for ``attach`` after a ``detach``."""
        return self._tag

    @property
    def processes(self) -> list[AsyncProcess]:
        """The processes that were started here and have not been seen to end."""
        return sorted(self._processes, key=lambda process: int(process.id.rpartition("-")[2]))

    async def _find_root(self, executor: Executor) -> str:
        place = await executor.place()
        given = self._given_root
        if given == "~" or given.startswith("~/"):
            if place.home is None:
                raise UsageError("~ means nothing on a machine without a HOME; give the whole path")
            given = place.home + given[1:]
        full = await executor.files.canonical(posixpath.join(place.cwd, given))
        if not (await executor.files.metadata(full)).is_directory:
            raise FilesError(
                f"{full} is no directory, so nothing can be run in it; name a directory",
                kind="not_a_directory",
                path=full,
            )
        return full

    @property
    def root(self) -> str:
        """The directory on the workspace's machine: absolute, without links."""
        if self._root is None:
            raise UsageError("the workspace is not open yet; use it in a with statement")
        return self._root

    @property
    def files(self) -> AsyncFiles:
        """The files of the workspace."""
        if self._files is None:
            root = self.root
            assert self._executor is not None  # noqa: S101 (open, or ``root`` had raised)
            rules = None
            if self._profile is not None:
                rules = profiles.Rules(self._profile, root, self._temporary)
            self._files = AsyncFiles(self._executor.files, root, rules)
        return self._files

    # --- commands ------------------------------------------------------------------------

    async def start(
        self,
        command: Command,
        *,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: str | os.PathLike[str] | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> AsyncProcess:
        """Start a command and return while it runs.

        ``tty`` gives it a terminal of ``size`` (rows, columns).  ``cwd`` is relative to the
        root.  ``timeout``: after so many seconds it is ended with its descendants.
        ``on_output`` is called with every ``Output``.  Raises ExecutorSpawnFailed when it does
        not start, and UsageError.
        """
        limit = seconds(timeout, "timeout")
        process = await self._start(command, tty, size, cwd, env, sandbox, True, name)
        process._watch(timeout=limit, listener=on_output)
        return process

    @overload
    async def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        check: bool = False,
        input: str | bytes | None = None,
        text: Literal[True] = True,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: str | os.PathLike[str] | None = None,
        env: Env | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> Result[str]: ...
    @overload
    async def run(
        self,
        command: Command,
        *,
        text: Literal[False],
        timeout: float | None = None,
        wait: float | None = None,
        check: bool = False,
        input: str | bytes | None = None,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: str | os.PathLike[str] | None = None,
        env: Env | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> Result[bytes]: ...
    async def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        check: bool = False,
        input: str | bytes | None = None,  # noqa: A002 (subprocess calls it so)
        text: bool = True,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: str | os.PathLike[str] | None = None,
        env: Env | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> Result[Any]:
        """Run a command to its end: a string by ``/bin/sh -c``, a list of words as it is.

        ``timeout``: after so many seconds the command is ended with its descendants, and the
        result says so.  ``wait``: after so many seconds the result so far is returned and the
        command runs on, as ``result.process``.  ``check``: raise CommandFailed unless it exited
        with 0; without it no exit is an error.  ``input`` is its whole stdin, which is empty
        otherwise.  ``text=False`` gives bytes.  ``tty``, ``size``, ``cwd``, ``env``,
        ``sandbox`` and ``on_output`` are those of ``start``.

        Raises ExecutorSpawnFailed when it does not start, ExecutorTransportFailed when the way
        to its machine is lost for good, UsageError, and what ``on_output`` raised.
        """
        return await self._run(
            command,
            timeout=timeout,
            wait=wait,
            check=check,
            input=input,
            text=text,
            tty=tty,
            size=size,
            cwd=cwd,
            env=env,
            sandbox=sandbox,
            on_output=on_output,
            name=name,
        )

    async def _run(
        self,
        command: Command,
        *,
        timeout: float | None,
        wait: float | None,
        check: bool,
        input: str | bytes | None,  # noqa: A002 (as above)
        text: bool,
        tty: bool,
        size: tuple[int, int],
        cwd: str | os.PathLike[str] | None,
        env: Env | None,
        sandbox: Sandbox | None,
        on_output: Listener | None,
        name: str | None,
    ) -> Result[Any]:
        limit, pause = seconds(timeout, "timeout"), seconds(wait, "wait")
        stdin = None if input is None else to_bytes(input)
        process = await self._start(command, tty, size, cwd, env, sandbox, stdin is not None, name)
        try:
            process._collect()
            process._watch(timeout=limit, listener=on_output, stdin=stdin)
            result = await process._outcome(pause, text)
            if result.exit is not None:
                await process._settle()
        except BaseException:
            await to_the_end(process._end(0.0))
            self._processes.discard(process)
            raise
        if result.exit is not None and not result.held_open:
            self._processes.discard(process)
        return result.check() if check else result

    async def _start(
        self,
        command: Command,
        tty: bool,
        size: tuple[int, int],
        cwd: str | os.PathLike[str] | None,
        env: Env | None,
        sandbox: Sandbox | None,
        pipe_stdin: bool,
        name: str | None,
    ) -> AsyncProcess:
        argv = to_argv(command)
        profile = self._profile if sandbox is None else profiles.find_profile(sandbox)
        executor = await self._open()
        root = self.root
        temporary = await self._temporary_for(profile, executor)
        hidden = {"TMPDIR": temporary} if temporary is not None else None
        variables = Environment(hidden, self._env, env)
        self._count += 1
        request = SpawnRequest(
            process_id=f"{self._tag}-{self._count}",
            argv=argv,
            cwd=root if cwd is None else posixpath.normpath(posixpath.join(root, os.fspath(cwd))),
            env=variables.overlay,
            env_policy=variables.policy,
            tty=tty,
            size=size,
            sandbox=self._intent(profile, root, temporary),
            pipe_stdin=pipe_stdin,
            name=name,
        )
        started = time.monotonic()
        session = await executor.spawn(request)
        process = AsyncProcess(session, argv, sandboxed=profile is not None, started=started)
        self._processes.add(process)
        if self._closed:  # closed by somebody else meanwhile
            await to_the_end(process._end(0.0))
            raise UsageError("the workspace was closed while the command was being started")
        return process

    def _intent(
        self, profile: Profile | None, root: str, temporary: str | None
    ) -> SandboxKind | Mapping[str, object]:
        """The same object for the same profile, so that an executor can know it again."""
        found = self._intents.get(profile)
        if found is None:
            found = self._intents[profile] = profiles.intent(profile, root, temporary)
        return found

    async def _temporary_for(self, profile: Profile | None, executor: Executor) -> str | None:
        """A directory for temporary files that commands may write to, made when first needed."""
        if profile is None or not profile.temporary:
            return None
        if self._temporary is None:
            place = await executor.place()
            path = posixpath.join(place.temp_dir, f"handrail-{self._tag}")
            await self._make_private(executor, path)
            self._temporary = await executor.files.canonical(path)
            self._files = None  # its rules name the directory
        return self._temporary

    async def _make_private(self, executor: Executor, path: str) -> None:
        """A directory that nobody else on its machine can look into."""
        if self._at is None and self._release is not None:
            os.mkdir(path, 0o700)
            return
        # The file calls of the wire know no modes.
        self._count += 1
        request = SpawnRequest(
            process_id=f"{self._tag}-{self._count}",
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


def _text(word: str | bytes) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else word
