"""``Workspace``: blocking version of ``AsyncWorkspace``, for scripts, threads and notebooks.

Every call runs its asynchronous counterpart on the background loop.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from handrail.errors import UsageError
from handrail.executor.base import Executor
from handrail.executor.output.buffer import KEEP_OUTPUT
from handrail.name_hints import NamesChecked
from handrail.network.settings import Network
from handrail.process.spec import Limits
from handrail.workspace.arguments import AnyPath, Command, Env
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.profile import Profile, Sandbox
from handrail.workspace.result import Result
from handrail.workspace.synchronous import loop_thread
from handrail.workspace.synchronous.callback_thread import CallbackThread
from handrail.workspace.synchronous.files import WorkspaceFiles
from handrail.workspace.synchronous.process import Process
from handrail.workspace.variables import InheritEnv, Variables

if TYPE_CHECKING:
    from typing import Unpack

    from handrail.orchestrator.approvers import AnyApprover
    from handrail.workspace.options import PythonOptions, RunOptions, SessionOptions, StartOptions
    from handrail.workspace.synchronous.exposure import Exposure
    from handrail.workspace.synchronous.python import PythonSession
    from handrail.workspace.synchronous.shell import Shell

T = TypeVar("T")


def _threaded(approver: AnyApprover) -> AnyApprover | None:
    """The approver, called in a thread if it is a plain function: it may take its time."""
    from handrail.orchestrator.approvers import as_approver

    return as_approver(approver, threaded=True)


class Workspace(NamesChecked):
    """A directory, on this machine or another, in which commands are run.

    The arguments are those of ``AsyncWorkspace``; every call may be made from any thread, also
    in a running event loop, which it then blocks.  Leaving the ``with`` ends every process
    that was started here, with its descendants.  After a fork the child opens its own.
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
        self._twin = AsyncWorkspace(
            root,
            at=at,
            token=token,
            sandbox=sandbox,
            network=network,
            approver=None if approver is None else _threaded(approver),
            approval_timeout=approval_timeout,
            env=env,
            inherit_env=inherit_env,
            secrets=secrets,
            limits=limits,
            labels=labels,
            request_timeout=request_timeout,
            detach_ttl=detach_ttl,
            keep_output=keep_output,
            executor=executor,
        )
        self._pid = os.getpid()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            coroutine.close()
            raise UsageError(
                "this workspace was opened before the fork and belongs to the parent; open"
                " another in the child"
            )
        return loop_thread.call(coroutine)

    def __repr__(self) -> str:
        return repr(self._twin).replace("AsyncWorkspace", "Workspace", 1)

    def __enter__(self) -> Self:
        self._call(self._twin.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this workspace, and release its machine.

        Can be repeated; raises nothing but an interrupt, when all is done.
        """
        if self._pid == os.getpid():
            self._call(self._twin.close())

    def asynchronous(self) -> AsyncWorkspace:
        """This workspace as an ``AsyncWorkspace``, if nothing was run in it yet; never raises."""
        return self._twin

    def detach(self, keep: float | str | None = None) -> str:
        """Leave with everything still running; see ``AsyncWorkspace.detach``.

        Raises UsageError for a workspace without a server.
        """
        return self._call(self._twin.detach(keep))

    @classmethod
    def attach(
        cls,
        id: str,  # noqa: A002 (the name it has everywhere)
        *,
        token: str | None = None,
        secrets: Mapping[str, str | bytes] | None = None,
        request_timeout: float | None = 30.0,
        keep_output: int = KEEP_OUTPUT,
    ) -> Workspace:
        """Come back to a workspace that was detached from; see ``AsyncWorkspace.attach``.

        Raises UsageError, WorkspaceBusy or ExecutorTransportFailed.
        """
        twin = loop_thread.call(
            AsyncWorkspace.attach(
                id,
                token=token,
                secrets=secrets,
                request_timeout=request_timeout,
                keep_output=keep_output,
            )
        )
        workspace = cls()
        workspace._twin = twin
        return workspace

    @property
    def id(self) -> str:
        """Its id, for ``attach`` after a ``detach``."""
        return self._twin.id

    @property
    def processes(self) -> list[Process]:
        """The running processes that were started here, as far as is known, oldest first; after
        ``attach`` also those that have ended since the detach."""
        return [Process(twin, self._call) for twin in self._twin.processes]

    def forget(self, process: Process) -> None:
        """Forget a process that has ended, and remove its stored result; raises UsageError."""
        if not isinstance(process, Process):
            raise UsageError(f"forget takes a process of this workspace, not {process!r}")
        self._call(self._twin.forget(process._twin))  # noqa: SLF001 (of this package)

    def executor(self) -> Executor:
        """The executor of this workspace, for code that runs on the background loop.

        Raises UsageError when the workspace is closed, ExecutorTransportFailed.
        """
        return self._call(self._twin.executor())

    def private_tmp(self) -> str | None:
        """The directory that sandboxed commands have as their /tmp; None: its server is too old.

        Raises ExecutorTransportFailed.
        """
        return self._call(self._twin.private_tmp())

    @property
    def profile(self) -> Profile | None:
        """The profile of commands that name no other sandbox; None: not sandboxed."""
        return self._twin.profile

    @property
    def variables(self) -> Variables:
        """What its commands inherit, the variables that are set, and the secrets."""
        return self._twin.variables

    @property
    def limits(self) -> Limits | None:
        """The limits of commands that name no others; None: they have none."""
        return self._twin.limits

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every process that is started here."""
        return self._twin.labels

    @property
    def root(self) -> str:
        """The directory on the workspace's machine: absolute, without links."""
        self._call(self._twin.executor())
        return self._twin.root

    @property
    def files(self) -> WorkspaceFiles:
        """The files of the workspace."""
        ready = self._twin._location.is_ready  # noqa: SLF001 (its twin)
        if not ready or self._pid != os.getpid():
            self._call(self._twin.executor())
        return WorkspaceFiles(self._twin.files, self._call)

    def process(self, id: str) -> Process:  # noqa: A002 (the name it has everywhere)
        """A process that an earlier workspace at the same server has started with ``detach``.

        It still outlives this workspace.  Raises ProcessUnknown.
        """
        return Process(self._call(self._twin.process(id)), self._call)

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Process:
        """Start a command and return while it runs; see ``AsyncWorkspace.start``.

        ``on_output`` is called in a thread of its own; what it raises, ``result`` of the process
        raises.
        """
        listening = _listening(options)
        try:
            return Process(self._call(self._twin.start(command, **options)), self._call, listening)
        except BaseException:
            if listening is not None:
                listening.end()
            raise

    @overload
    def run(
        self, command: Command, *, text: Literal[True] = True, **options: Unpack[RunOptions]
    ) -> Result[str]: ...
    @overload
    def run(
        self, command: Command, *, text: Literal[False], **options: Unpack[RunOptions]
    ) -> Result[bytes]: ...
    def run(
        self, command: Command, *, check: bool = False, text: bool = True, **options: Any
    ) -> Result[Any]:
        """Run a command to its end; see ``AsyncWorkspace.run``.

        ``timeout`` (seconds) ends the command, ``wait`` (seconds) returns early with
        ``result.process``.  ``on_output`` is called in a thread of its own and has heard
        everything when this returns.  Raises CommandFailed with ``check``, ExecutorSpawnFailed,
        ExecutorTransportFailed, UsageError, and what ``on_output`` raised.
        """
        listening = _listening(options)
        try:
            result: Result[Any] = self._call(
                self._twin.run(command, text=text, **options)  # type: ignore[call-overload]
            )
        except BaseException:
            if listening is not None:
                listening.end()
            raise
        if result.process is not None:
            result = replace(result, process=Process(result.process, self._call, listening))
        elif listening is not None:
            listening.finish()
        return result.check() if check else result

    def expose(self, port: int, *, local_port: int | None = None) -> Exposure:
        """Have a port of this machine lead to one of commands; see ``AsyncWorkspace.expose``."""
        from handrail.workspace.synchronous.exposure import Exposure

        return Exposure(self._call(self._twin.expose(port, local_port=local_port)), self._call)

    def shell(self, program: str = "bash", **options: Unpack[SessionOptions]) -> Shell:
        """Start a shell that keeps its state; see ``AsyncWorkspace.shell`` for what is raised."""
        from handrail.workspace.synchronous.shell import Shell

        return Shell(self._call(self._twin.shell(program, **options)), self._call)

    def python(
        self,
        *,
        python: AnyPath | None = None,
        process: Process | None = None,
        **options: Unpack[PythonOptions],
    ) -> PythonSession:
        """Start a Python interpreter that keeps its state; see ``AsyncWorkspace.python``."""
        from handrail.workspace.synchronous.python import PythonSession

        twin: Any = process  # what is no process of this workspace is refused there
        if isinstance(process, Process):
            twin = next((one for one in self._twin.processes if one.id == process.id), process)
        found = self._call(self._twin.python(python=python, process=twin, **options))
        return PythonSession(found, self._call)


def _listening(options: Any) -> CallbackThread | None:
    """Have ``on_output`` called in a thread of its own; raises UsageError for a coroutine."""
    if options.get("on_output") is None:
        return None
    options["on_output"] = listening = CallbackThread(options["on_output"])
    return listening
