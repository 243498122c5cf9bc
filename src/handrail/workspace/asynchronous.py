"""``AsyncWorkspace``: a directory of a machine, and the commands that are run in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from handrail.errors import UsageError
from handrail.executor.base import Executor
from handrail.executor.output.buffer import KEEP_OUTPUT
from handrail.name_hints import NamesChecked, call_checked
from handrail.network.settings import Network
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.process.spec import Limits
from handrail.workspace import detached_store
from handrail.workspace import profile as profiles
from handrail.workspace.arguments import (
    AnyPath,
    Command,
    Env,
    byte_count,
    check_labels,
    check_limits,
    seconds,
    to_path,
)
from handrail.workspace.detached_store import Claim
from handrail.workspace.files import AsyncFiles
from handrail.workspace.location import Location, check_machine
from handrail.workspace.opening import opens
from handrail.workspace.options import RunOptions, SessionOptions, check_options, without_stdin
from handrail.workspace.output.collector import MAX_OUTPUT
from handrail.workspace.process import AsyncProcess
from handrail.workspace.process_follower import ProcessFollower
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.result import Result
from handrail.workspace.start_command import AskedHosts, CommandDefaults, start_command
from handrail.workspace.uncancellable import to_the_end
from handrail.workspace.variables import InheritEnv, Variables

if TYPE_CHECKING:
    from typing import Unpack

    from handrail.orchestrator.approvers import AnyApprover
    from handrail.workspace.exposure import AsyncExposure
    from handrail.workspace.options import PythonOptions, StartOptions
    from handrail.workspace.sessions.python import AsyncPythonSession
    from handrail.workspace.sessions.shell import AsyncShell


class AsyncWorkspace(NamesChecked):
    """A directory, on this machine or another, in which commands are run.

    ``root`` is the directory; a relative one starts at the program's working directory, on another
    machine at its server's, and with ssh at the home directory.  ``at`` names the machine:
    None is this one, else ``ws://``, ``wss://``, ``unix:/path``, ``stdio:program`` or
    ``ssh://host``; ``token`` authenticates with its server.  ``sandbox`` applies to every command
    unless it names another: ``workspace-write`` (writes only below the root, no network),
    ``read-only``, ``off``, or a ``Profile``.  ``network`` is that of sandboxed commands: ``off``,
    ``open`` or ``Managed(allow=[...])``, a list of hosts; without it, as the sandbox says.
    ``approver`` is asked about unlisted hosts, for ``approval_timeout`` seconds at most; without
    one they are refused.

    ``inherit_env`` says which variables of the machine commands inherit: ``all``, ``core`` (PATH,
    HOME and the like) or ``none``, and never one that looks like a secret.  ``env`` is laid over
    them; None removes one.  ``secrets`` are variables too, and their values are masked in all text
    that comes from commands (docs/environment.md).  ``limits`` are for each command, unless it
    names others.  ``labels`` are texts by name that every process has, for listings.

    ``request_timeout`` is how long the server may take to accept the connection, and to answer,
    in seconds; ``detach_ttl`` how long it keeps processes when the connection is lost (None: its
    choice); ``detach`` has a time of its own.  ``keep_output`` is how many bytes of a process's
    output are kept for its readers, here, beyond 2 MiB in a temporary file.

    Leaving the ``async with`` ends every process that was started here, with its descendants.
    Raises UsageError, FilesError for a missing root, ExecutorTransportFailed for its machine.
    """

    def __init__(
        self,
        root: AnyPath = ".",
        *,
        at: str | None = None,
        token: str | None = None,
        sandbox: Sandbox = "workspace-write",
        network: Network | None = None,
        approver: AnyApprover | None = None,
        approval_timeout: float | None = 300.0,
        env: Env | None = None,
        inherit_env: InheritEnv = "all",
        secrets: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        request_timeout: float | None = 30.0,
        detach_ttl: float | None = None,
        keep_output: int = KEEP_OUTPUT,
        executor: Executor | None = None,
    ) -> None:
        given = to_path(root)
        if not given:
            raise UsageError("the root of a workspace is a path; '.' is where the program runs")
        check_machine(at, token, executor)
        self._tag = token_hex(4)
        self._network = network
        self._profile = profiles.with_network(profiles.find_profile(sandbox), network)
        self._hosts = AskedHosts(approver, seconds(approval_timeout, "approval_timeout"))
        self._variables = Variables(env, inherit_env, secrets)
        self._limits = check_limits(limits)
        self._labels = check_labels(labels)
        self._keep_output = byte_count(keep_output, "keep_output")
        self._location = Location(
            given,
            self._tag,
            at=at,
            token=token,
            request_timeout=seconds(request_timeout, "request_timeout"),
            detach_ttl=seconds(detach_ttl, "detach_ttl"),
            executor=executor,
        )
        self._claim: Claim | None = None
        self._processes: dict[ProcessFollower, AsyncProcess] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._location}>"

    async def __aenter__(self) -> Self:
        if self._claim is None:  # else it was attached to, and its server may be gone
            await self.executor()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process of this workspace, and release its machine.

        Can be repeated; raises nothing but a cancellation, when all is done.  In another event loop
        than its own it only stops being usable: its processes end with that loop, or on another
        machine when the server's time to live is over.
        """
        if not self._location.closed:
            self._location.closed = True
            elsewhere = self._location.elsewhere
            await to_the_end(self._location.abandon() if elsewhere else self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(one.end() for one in self._processes if not one.session.detached))
        if self._claim is not None:
            from handrail.workspace.detach import forget_results

            await forget_results(self._processes)
        self._let_go()
        await self._location.close()
        if self._claim is not None:
            self._claim.remove()
            self._claim.release()

    def _let_go(self) -> None:
        for follower in self._processes:
            follower.let_go()
        self._processes.clear()

    async def detach(self, keep: float | str | None = None) -> str:
        """Leave with everything still running; returns the id with which ``attach`` finds it again.

        Its processes go on until they end, or for ``keep`` seconds (or a text such as ``"2h"``).
        After ``attach`` the time it was left for before goes on, unless ``keep`` is given.  The
        server stores output and exits, for a week unless it was told otherwise (docs/detach.md).
        Raises UsageError for a workspace on this machine without a server, or with a server that we
        have started (``stdio:``), because its processes end with the program; and for a process
        with a ``timeout`` when the server would not keep it.
        """
        from handrail.workspace import detach  # loads the wire

        limit, until = detach.keep_until(keep, self._claim)
        detach.check_timeouts(self._processes)
        left = [one for one in self._processes if one.worth_finding]
        session = ("", None) if self._claim is None else self._claim.record.resume
        if self._claim is None and self._location.at is not None:
            detached_store.check_room(self._tag)
        if self._location.is_open or self._claim is None:
            live = [one.session.process_id for one in left if one.session_id is None or one.running]
            session = await self._location.detach(limit, live)
        self._location.closed = True
        record = detach.make_record(
            self._tag,
            self._location,
            session,
            left,
            profile=self._profile,
            variables=self._variables,
            limits=self._limits,
            labels=self._labels,
            count=self._count,
            until=until,
        )
        detached_store.leave(record, self._claim)
        self._let_go()
        return self._tag

    @classmethod
    @opens
    async def attach(
        cls,
        id: str,  # noqa: A002 (the name it has everywhere)
        *,
        token: str | None = None,
        secrets: Mapping[str, str | bytes] | None = None,
        request_timeout: float | None = 30.0,
        keep_output: int = KEEP_OUTPUT,
    ) -> AsyncWorkspace:
        """Come back to a workspace that was detached from; its processes are ours again.

        ``secrets`` are to be given again: no record has them.  ``request_timeout`` is how many
        seconds its server may take to answer.  Raises UsageError when there is none of that id,
        WorkspaceBusy while another program is attached, ExecutorTransportFailed when its server
        does not answer and no result is stored here.
        """
        claim = detached_store.claim(id)
        try:
            return await cls._resume(claim, token, secrets, request_timeout, keep_output)
        except BaseException:
            claim.release()
            raise

    @classmethod
    async def _resume(
        cls,
        claim: Claim,
        token: str | None,
        secrets: Mapping[str, str | bytes] | None,
        request_timeout: float | None,
        keep_output: int,
    ) -> AsyncWorkspace:
        record = claim.record
        if not record.at.startswith(("ws://", "wss://")):
            token = None  # such a server asks the kernel for the user
        workspace = cls(
            record.root,
            at=record.at,
            token=token,
            request_timeout=request_timeout,
            keep_output=keep_output,
        )
        workspace._claim = claim
        workspace._tag = record.id
        workspace._location.loopback = f"{record.id}-"
        workspace._profile = record.profile
        workspace._variables = Variables(
            record.env, record.inherit_env, secrets, known=record.secrets
        )
        workspace._limits = None if record.limits is None else Limits(**record.limits)
        workspace._labels = record.labels
        workspace._count = record.count
        from handrail.workspace.detach import followers

        secret = workspace._variables.secrets
        for follower in await followers(record, workspace._location, secret, keep_output):
            workspace._follow(follower)
        return workspace

    @property
    def id(self) -> str:
        """Its id, for ``attach`` after a ``detach``."""
        return self._tag

    @property
    def processes(self) -> list[AsyncProcess]:
        """The running processes that were started here, as far as is known, oldest first.

        One that has exited is not among them, even if it has left descendants.  After ``attach``
        everything that was left is; ``exit`` tells what has ended since.
        """
        return [process for follower, process in self._processes.items() if follower.shown]

    @opens
    async def process(self, id: str) -> AsyncProcess:  # noqa: A002 (the name it has everywhere)
        """A process that an earlier workspace at the same server has started with ``detach``.

        After its end its stored result is found too; it outlives this workspace, as before.
        Raises ProcessUnknown.
        """
        from handrail.workspace.detach import left_session

        executor = await self.executor()
        session = await left_session(executor, id)
        session.detached = True
        return self._follow(
            ProcessFollower(
                session,
                (),
                executor.features,
                sandboxed=self._profile is not None,
                secrets=self._variables.secrets,
                keep_output=self._keep_output,
            )
        )

    async def forget(self, process: AsyncProcess) -> None:
        """Forget a process that has ended, and remove its stored result; raises UsageError."""
        if not isinstance(process, AsyncProcess):
            raise UsageError(f"forget takes a process of this workspace, not {process!r}")
        from handrail.workspace.detach import forget_results

        for follower in [one for one, held in self._processes.items() if held is process]:
            follower.let_go()
            del self._processes[follower]
            await forget_results([follower])

    def _follow(self, follower: ProcessFollower) -> AsyncProcess:
        process = self._processes[follower] = AsyncProcess(follower)
        return process

    async def executor(self) -> Executor:
        """The executor of this workspace; it ends with the workspace.

        Raises UsageError when that is closed, ExecutorTransportFailed when it cannot be reached.
        """
        return await self._location.open()

    async def private_tmp(self) -> str | None:
        """The directory of the machine that sandboxed commands have as their /tmp.

        It is made on first use and removed with the workspace.  None: its server is too old.
        """
        return await self._location.private_tmp()

    @property
    def profile(self) -> Profile | None:
        """The profile of commands that name no other sandbox; None: not sandboxed."""
        return self._profile

    @property
    def variables(self) -> Variables:
        """What its commands inherit, the variables that are set, and the secrets."""
        return self._variables

    @property
    def limits(self) -> Limits | None:
        """The limits of commands that name no others; None: they have none."""
        return self._limits

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every process that is started here."""
        return dict(self._labels)

    @property
    def root(self) -> str:
        """The directory on the workspace's machine: absolute, without links."""
        return self._location.root

    @property
    def files(self) -> AsyncFiles:
        """The files of the workspace."""
        return AsyncFiles(self._location, self._profile, self._variables.secrets)

    @opens
    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncProcess:
        """Start a command and return while it runs.

        ``tty`` gives it a terminal of ``size`` (rows, columns).  ``cwd`` is relative to the root,
        ``env`` is laid over the workspace's, ``sandbox`` and ``network`` replace the workspace's,
        ``name`` is shown in listings, with ``labels`` and the workspace's.  ``timeout``: after so
        many seconds it is ended with its descendants.  ``on_output`` is called with every
        ``Output``, and awaited if it is a coroutine function; what it raises, ``result`` of the
        process raises.  ``stdin=False``: without a terminal its input is empty; ``input`` is its
        whole stdin, as for ``run``.  ``limits`` bounds what it may take (``Limits``).
        ``watch_denials`` records for certain what the sandbox refuses; each change to a file then
        takes tens of microseconds more.  ``keep_output`` replaces the workspace's.  ``detach``: it
        is not ended with the workspace, whose server keeps it until it exits; ``process`` of a
        later workspace there finds it by its id.

        Raises ExecutorSpawnFailed when it does not start, also for a limit that cannot be enforced
        on its machine, and UsageError, also for what its executor does not offer.
        """
        return self._processes[await self._start(command, **options)]

    @overload
    async def run(
        self, command: Command, *, text: Literal[True] = True, **options: Unpack[RunOptions]
    ) -> Result[str]: ...
    @overload
    async def run(
        self, command: Command, *, text: Literal[False], **options: Unpack[RunOptions]
    ) -> Result[bytes]: ...
    async def run(
        self,
        command: Command,
        *,
        text: bool = True,
        wait: float | None = None,
        check: bool = False,
        max_output: int | None = MAX_OUTPUT,
        input: str | bytes | None = None,  # noqa: A002 (subprocess calls it so)
        **options: Any,
    ) -> Result[Any]:
        """Run a command to its end: a string by ``/bin/sh -c``, an argument list as it is.

        ``timeout``: after so many seconds the command is ended with its descendants, and the
        result says so.  ``wait``: after so many seconds the result so far is returned and the
        command runs on, as ``result.process``.  ``check``: raise CommandFailed unless it exited
        with 0; without it no exit is an error.  ``input`` is its whole stdin, which is empty
        otherwise; in a terminal it is typed, with the end-of-file key (Ctrl-D) after it, which
        means an end only to programs that read lines.  ``text=False`` gives bytes.  ``max_output``
        bounds each stream of the result in bytes: beyond it the first and the last half are kept,
        and ``omitted`` counts the rest; None: no bound.  As ``start``: ``tty``, ``size``, ``cwd``,
        ``env``, ``sandbox``, ``network``, ``on_output``, ``name``, ``limits``, ``watch_denials``.

        Raises ExecutorSpawnFailed when it does not start, ExecutorTransportFailed when the
        connection to its machine is lost for good, UsageError (also for ``input`` without a
        terminal when the server cannot close stdin), and what ``on_output`` raised.
        """
        alone = without_stdin(options, RunOptions)
        pause = seconds(wait, "wait")
        most = None if max_output is None else byte_count(max_output, "max_output")
        to_end = input is None and pause is None  # input is not to wait for the start's answer
        follower = await self._start(command, to_end, input=input, **alone)
        follower.collect(most)
        if pause is None:  # there is no later reader
            follower.session.keep_output(RETENTION_BYTES)
        try:
            result: Result[Any] = await self._processes[follower].result(timeout=pause, text=text)  # type: ignore[call-overload]
        except BaseException:
            await to_the_end(follower.end(0.0))
            self._processes.pop(follower, None)
            raise
        if result.exit is not None:
            if result.held_open:
                follower.let_go()  # no reader is left for what may still come
            else:
                self._processes.pop(follower, None)
        return result.check() if check else result

    @opens
    async def expose(self, port: int, *, local_port: int | None = None) -> AsyncExposure:
        """Have a port of this machine's loopback lead to a port that commands here listen on.

        The listener is where this program runs, at ``local_port`` or a free port, for this user and
        root alone, until the workspace ends.  Raises UsageError for commands that have the network
        of their machine, and for a port that is taken.
        """
        return await self._location.expose(self._profile, port, local_port)

    @opens
    async def shell(self, program: str = "bash", **options: Unpack[SessionOptions]) -> AsyncShell:
        """Start a shell that keeps its state from one command to the next: ``bash`` or ``sh``.

        The other arguments are those of ``start``, and hold for the whole session.  Raises
        ExecutorSpawnFailed when it does not start, and UsageError.
        """
        from handrail.workspace.sessions.shell import AsyncShell

        check_options(options, SessionOptions, "program")
        return await AsyncShell(program, self.start, dict(options))._open()  # noqa: SLF001 (for its makers)

    @opens
    async def python(
        self,
        *,
        python: AnyPath | None = None,
        process: AsyncProcess | None = None,
        **options: Unpack[PythonOptions],
    ) -> AsyncPythonSession:
        """Start a Python interpreter that keeps its state, with the results of a notebook.

        ``python`` is the interpreter, which needs the packages of the extra ``notebook``; without
        it, the one of this program; on another machine ``python3``, or else the same path there.
        ``process`` goes on with the session of a process of this workspace, after ``attach``.  The
        others are those of ``start``.  Raises UsageError without the packages, ExecutorSpawnFailed.
        """
        from handrail.workspace.sessions.open_python import open_python

        return await open_python(self, python, process, dict(options))

    async def _start(
        self, command: Command, to_end: bool = False, /, **more: Any
    ) -> ProcessFollower:
        rules = self._profile, self._variables, self._limits, self._keep_output, self._labels
        defaults = CommandDefaults(*rules, self._network, self._hosts, to_end)
        self._count += 1
        process_id = f"{self._tag}-{self._count}"
        follower, begin = await call_checked(
            start_command, self._location, defaults, process_id, command, **more
        )
        # A process that has ended belongs to its holder alone, and its output with it.
        for one in [one for one in self._processes if not (one.shown or one.held_open)]:
            del self._processes[one]
        self._follow(follower)
        if self._location.closed:  # by another task, meanwhile
            await to_the_end(follower.end(0.0))
            raise UsageError("the workspace was closed while the command was being started")
        begin()
        return follower
