"""``AsyncWorkspace``: a directory of a machine, and the commands that are run in it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import time
from typing import Any, Literal, Self, overload

from handrail.errors import ProcessUnknown, UsageError
from handrail.executor.base import Executor, SpawnRequest
from handrail.workspace import detached_store
from handrail.workspace import profile as profiles
from handrail.workspace.arguments import (
    AnyPath,
    Command,
    Env,
    Environment,
    seconds,
    to_argv,
    to_bytes,
    to_path,
    to_size,
)
from handrail.workspace.detached_store import Claim, DetachedRecord
from handrail.workspace.files import AsyncFiles
from handrail.workspace.location import Location
from handrail.workspace.process import AsyncProcess, Listener
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.result import Result
from handrail.workspace.uncancellable import to_the_end


class AsyncWorkspace:
    """A directory, on this machine or another, in which commands are run.

    ``root`` is the directory; a relative one starts at the program's working directory, on another
    machine at its server's, and with ssh at the home directory.  ``at`` names the machine:
    None is this one, else ``ws://``, ``wss://``, ``unix:/path``, ``stdio:program`` or
    ``ssh://host``; ``token`` authenticates with its server.  ``sandbox`` applies to every command
    unless it names another: ``workspace-write`` (writes only below the root, no network),
    ``read-only``, ``off``, or a ``Profile``.  ``env`` is laid over the machine's own variables;
    None removes one.
    ``request_timeout`` is how long the server may take to accept the connection, and to answer,
    in seconds; ``detach_ttl`` how long it keeps processes without a connection (None: its choice).

    Leaving the ``async with`` ends every process that was started here, with its descendants.
    Raises UsageError for invalid arguments, FilesError when the root is missing,
    ExecutorTransportFailed when the machine cannot be reached.
    """

    def __init__(
        self,
        root: AnyPath = ".",
        *,
        at: str | None = None,
        token: str | None = None,
        sandbox: Sandbox = "workspace-write",
        env: Env | None = None,
        request_timeout: float | None = 30.0,
        detach_ttl: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        given = to_path(root)
        if not given:
            raise UsageError("the root of a workspace is a path; '.' is where the program runs")
        if executor is not None and at is not None:
            raise UsageError("at and executor both say where; give one of them")
        if at is not None and not isinstance(at, str):
            raise UsageError(f"at is an address such as 'ssh://box', not {at!r}")
        self._tag = secrets.token_hex(4)
        self._profile = profiles.find_profile(sandbox)
        self._env: Env = dict(env or {})
        Environment(self._env)  # refuses bad names now
        self._ground = Location(
            given,
            self._tag,
            at=at,
            token=token,
            request_timeout=seconds(request_timeout, "request_timeout"),
            detach_ttl=seconds(detach_ttl, "detach_ttl"),
            executor=executor,
        )
        self._claim: Claim | None = None
        self._processes: set[AsyncProcess] = set()
        self._count = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._ground}>"

    # --- life ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._ground.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process of this workspace, and release its machine.

        Can be repeated; raises nothing but a cancellation, when all is done.  In another event
        loop than the one it was used in it only stops being usable: its processes end with that
        loop, or on another machine when the server's time to live is over.
        """
        if not self._ground.closed:
            self._ground.closed = True
            elsewhere = self._ground.elsewhere
            await to_the_end(self._ground.abandon() if elsewhere else self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(process._end() for process in self._processes))
        self._processes.clear()
        await self._ground.close()
        if self._claim is not None:
            self._claim.remove()
            self._claim.release()

    async def detach(self) -> str:
        """Leave with everything still running; returns the id with which ``attach`` finds it again.

        Its server keeps it for ``detach_ttl`` seconds, and the timeouts of its processes.  Raises
        UsageError for a workspace on this machine without a server, or with a server that we have
        started (``stdio:``), because its processes end with the program; and for a process with
        a ``timeout`` when the server would not keep it.
        """
        for process in self._processes:
            if process._timed_here and process.running:
                raise UsageError(
                    f"{process!r} has a timeout that its server cannot keep without us; let it"
                    " end first, or start it without one"
                )
        session, secret = await self._ground.detach()
        for process in self._processes:
            process._let_go()
        record = DetachedRecord(
            id=self._tag,
            at=self._ground.at or "",
            root=self.root,
            session=session,
            secret=secret,
            profile=self._profile,
            temporary=self._ground.temporary,
            env={
                os.fsdecode(name): None if value is None else os.fsdecode(value)
                for name, value in self._env.items()
            },
            processes={
                process.id: [_text(word) for word in process.argv]
                for process in self._processes
                if process._worth_finding
            },
            count=self._count,
        )
        if self._claim is not None:
            self._claim.save(record)
            self._claim.release()
        else:
            detached_store.create(record)
        self._processes.clear()
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

        ``request_timeout`` is how many seconds its server may take to answer.  Raises UsageError
        when there is none of that id, WorkspaceBusy while another program is attached,
        ExecutorTransportFailed when its server does not answer or has ended it.
        """
        claim = detached_store.claim(id)
        try:
            return await cls._resume(claim, token, request_timeout)
        except BaseException:
            claim.release()
            raise

    @classmethod
    async def _resume(
        cls, claim: Claim, token: str | None, request_timeout: float | None
    ) -> AsyncWorkspace:
        record = claim.record
        if not record.at.startswith(("ws://", "wss://")):
            token = None  # such a server knows who connects
        workspace = cls(record.root, at=record.at, token=token, request_timeout=request_timeout)
        workspace._claim = claim
        workspace._tag = record.id
        workspace._profile = record.profile
        workspace._env = record.env
        workspace._count = record.count
        workspace._ground.session = (record.session, record.secret)
        workspace._ground.temporary = record.temporary
        executor = await workspace._ground.open()
        for process_id, argv in record.processes.items():
            try:
                session = await executor.attach(process_id)
            except ProcessUnknown:
                continue  # it has ended, longer ago than its server remembers
            process = AsyncProcess(
                session,
                tuple(argv),
                sandboxed=record.profile is not None,
                started=time.monotonic(),
                returned_to=True,
            )
            workspace._processes.add(process)
        return workspace

    @property
    def id(self) -> str:
        """Its id, for ``attach`` after a ``detach``."""
        return self._tag

    @property
    def processes(self) -> list[AsyncProcess]:
        """The running processes that were started here, as far as is known, oldest first.

        One that has exited is not among them, even if it has left descendants.  After ``attach``
        everything that was left is, also what has ended since; ``exit`` tells.
        """
        shown = (process for process in self._processes if process._shown)
        return sorted(shown, key=lambda process: int(process.id.rpartition("-")[2]))

    async def executor(self) -> Executor:
        """The executor of this workspace; it ends with the workspace.

        Raises UsageError when that is closed, ExecutorTransportFailed when it cannot be reached.
        """
        return await self._ground.open()

    async def private_tmp(self) -> str | None:
        """The directory of the machine that sandboxed commands have as their /tmp.

        It is made on first use and removed with the workspace.  None: its server is too old.
        """
        return await self._ground.private_tmp()

    @property
    def profile(self) -> Profile | None:
        """The profile of commands that name no other sandbox; None: not sandboxed."""
        return self._profile

    @property
    def root(self) -> str:
        """The directory on the workspace's machine: absolute, without links."""
        return self._ground.root

    @property
    def files(self) -> AsyncFiles:
        """The files of the workspace."""
        return AsyncFiles(self._ground, self._profile)

    # --- commands ------------------------------------------------------------------------

    async def start(
        self,
        command: Command,
        *,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: AnyPath | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> AsyncProcess:
        """Start a command and return while it runs.

        ``tty`` gives it a terminal of ``size`` (rows, columns).  ``cwd`` is relative to the
        root.  ``timeout``: after so many seconds it is ended with its descendants.
        ``on_output`` is called with every ``Output``, and awaited if it is a coroutine function;
        what it raises, ``result`` of the process raises.  Raises ExecutorSpawnFailed when it does
        not start, and UsageError.
        """
        limit = seconds(timeout, "timeout")
        process = await self._start(command, tty, size, cwd, env, sandbox, True, name, limit)
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
        cwd: AnyPath | None = None,
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
        cwd: AnyPath | None = None,
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
        cwd: AnyPath | None = None,
        env: Env | None = None,
        sandbox: Sandbox | None = None,
        on_output: Listener | None = None,
        name: str | None = None,
    ) -> Result[Any]:
        """Run a command to its end: a string by ``/bin/sh -c``, an argument list as it is.

        ``timeout``: after so many seconds the command is ended with its descendants, and the
        result says so.  ``wait``: after so many seconds the result so far is returned and the
        command runs on, as ``result.process``.  ``check``: raise CommandFailed unless it exited
        with 0; without it no exit is an error.  ``input`` is its whole stdin, which is empty
        otherwise; in a terminal it is typed, with the end-of-file key (Ctrl-D) after it, which
        means an end only to programs that read lines.  ``text=False`` gives bytes.  ``tty``,
        ``size``, ``cwd``, ``env``, ``sandbox`` and ``on_output`` are those of ``start``.

        Raises ExecutorSpawnFailed when it does not start, ExecutorTransportFailed when the
        connection to its machine is lost for good, UsageError (also for ``input`` without a
        terminal when the server cannot close stdin), and what ``on_output`` raised.
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
        cwd: AnyPath | None,
        env: Env | None,
        sandbox: Sandbox | None,
        on_output: Listener | None,
        name: str | None,
    ) -> Result[Any]:
        limit, pause = seconds(timeout, "timeout"), seconds(wait, "wait")
        stdin = None if input is None else to_bytes(input)
        if stdin is not None and not tty:
            stdin = await self._ending_input(stdin)
        process = await self._start(
            command, tty, size, cwd, env, sandbox, stdin is not None, name, limit
        )
        try:
            process._collect()
            process._watch(timeout=limit, listener=on_output, stdin=stdin)
            result = await process._result_and_all_told(pause, text)
        except BaseException:
            await to_the_end(process._end(0.0))
            self._processes.discard(process)
            raise
        if result.exit is not None:
            if result.held_open:
                process._let_go()  # no reader is left for what may still come
            else:
                self._processes.discard(process)
        return result.check() if check else result

    async def _ending_input(self, stdin: bytes) -> bytes | None:
        """Input that has an end; raises UsageError where it cannot be given one."""
        if getattr(await self._ground.open(), "ends_input", True):
            return stdin
        if not stdin:
            return None  # no stdin is as empty
        raise UsageError(
            "this server cannot end the input of a command, which would wait for more for ever;"
            " give it a terminal (tty=True) or a file to read, or use a handrail server"
        )

    async def _start(
        self,
        command: Command,
        tty: bool,
        size: tuple[int, int],
        cwd: AnyPath | None,
        env: Env | None,
        sandbox: Sandbox | None,
        pipe_stdin: bool,
        name: str | None,
        timeout: float | None = None,
    ) -> AsyncProcess:
        argv = to_argv(command)
        size = to_size(size)
        profile = self._profile if sandbox is None else profiles.find_profile(sandbox)
        ground = self._ground
        executor = await ground.open()
        temporary = await ground.make_temporary(profile)
        if temporary is not None and ground.has_private_tmp:
            temporary = "/tmp"  # noqa: S108 (the one of the sandbox)
        hidden = {"TMPDIR": temporary} if temporary is not None else None
        variables = Environment(hidden, self._env, env)
        self._count += 1
        request = SpawnRequest(
            process_id=f"{self._tag}-{self._count}",
            argv=argv,
            cwd=ground.root if cwd is None else _below(ground.root, to_path(cwd)),
            env=variables.overlay,
            env_policy=variables.policy,
            tty=tty,
            size=size,
            sandbox=ground.intent(profile),
            pipe_stdin=pipe_stdin,
            name=name,
            timeout=timeout,
        )
        started = time.monotonic()
        session = await executor.spawn(request)
        process = AsyncProcess(session, argv, sandboxed=profile is not None, started=started)
        kept = getattr(executor, "keeps_timeouts", False)
        process._timed_here = timeout is not None and not kept
        # A process that has ended belongs to its holder alone, and its output with it.
        self._processes = {one for one in self._processes if one._shown or one._held_open}
        self._processes.add(process)
        if ground.closed:  # by another task, meanwhile
            await to_the_end(process._end(0.0))
            raise UsageError("the workspace was closed while the command was being started")
        return process


def _below(root: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(root, path))


def _text(word: str | bytes) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else word
