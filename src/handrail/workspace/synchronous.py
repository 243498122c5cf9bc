"""``Workspace``: the same names without ``await``, for scripts, threads and notebooks.

Nothing is done here: every call hands over to its asynchronous twin on the background loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar, overload

from handrail.errors import UsageError
from handrail.executor.base import Executor
from handrail.executor.files import FileEntry, FileMetadata, Progress
from handrail.process.spec import ExitInfo
from handrail.workspace import bridge
from handrail.workspace.asynchronous import AsyncWorkspace, Env
from handrail.workspace.command import Command
from handrail.workspace.files import AsyncFiles
from handrail.workspace.listening import Listening
from handrail.workspace.process import GRACE_SECONDS, AsyncProcess
from handrail.workspace.profile import Sandbox
from handrail.workspace.result import Event, Output, Result, Waited

T = TypeVar("T")


class Workspace:
    """A directory, here or on another machine, in which commands are run.

    The arguments are those of ``AsyncWorkspace``; every call may be made from any thread, also
    inside a running event loop, which it then holds up.  Leaving the ``with`` ends every process
    that was started here, with its descendants.  After a fork the child opens its own.
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
        self._twin = AsyncWorkspace(
            root,
            at=at,
            token=token,
            sandbox=sandbox,
            env=env,
            request_timeout=request_timeout,
            detach_ttl=detach_ttl,
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
        return bridge.call(coroutine)

    def __enter__(self) -> Self:
        self._call(self._twin._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this workspace, and let go of its machine.  Can be repeated."""
        if self._pid == os.getpid():
            self._call(self._twin.close())

    def detach(self) -> str:
        """Leave with everything still running; see ``AsyncWorkspace.detach``.

        Raises UsageError for a workspace without a server.
        """
        return self._call(self._twin.detach())

    @classmethod
    def attach(
        cls,
        id: str,  # noqa: A002 (the name it has everywhere)
        *,
        token: str | None = None,
        request_timeout: float | None = 30.0,
    ) -> Workspace:
        """Come back to a workspace that was detached from; see ``AsyncWorkspace.attach``.

        Raises UsageError, WorkspaceBusy or ExecutorTransportFailed.
        """
        twin = bridge.call(AsyncWorkspace.attach(id, token=token, request_timeout=request_timeout))
        workspace = cls.__new__(cls)
        workspace._twin = twin
        workspace._pid = os.getpid()
        return workspace

    @property
    def id(self) -> str:
        """Its name, for ``attach`` after a ``detach``."""
        return self._twin.id

    @property
    def processes(self) -> list[Process]:
        """The processes that were started here and have not been seen to end."""
        return [Process(twin, self._call) for twin in self._twin.processes]

    @property
    def root(self) -> str:
        """The directory on the workspace's machine: absolute, without links."""
        self._call(self._twin._open())
        return self._twin.root

    @property
    def files(self) -> WorkspaceFiles:
        """The files of the workspace."""
        self._call(self._twin._open())
        return WorkspaceFiles(self._twin.files, self._call)

    def start(
        self,
        command: Command,
        *,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        cwd: str | os.PathLike[str] | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        on_output: Callable[[Output], object] | None = None,
        name: str | None = None,
    ) -> Process:
        """Start a command and return while it runs; see ``AsyncWorkspace.start``.

        ``on_output`` is called in a thread of its own.
        """
        listening = None if on_output is None else Listening(on_output)
        twin = self._call(
            self._twin.start(
                command,
                tty=tty,
                size=size,
                cwd=cwd,
                env=env,
                timeout=timeout,
                sandbox=sandbox,
                on_output=None if listening is None else listening.put,
                name=name,
            )
        )
        return Process(twin, self._call)

    @overload
    def run(
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
        on_output: Callable[[Output], object] | None = None,
        name: str | None = None,
    ) -> Result[str]: ...
    @overload
    def run(
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
        on_output: Callable[[Output], object] | None = None,
        name: str | None = None,
    ) -> Result[bytes]: ...
    def run(
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
        on_output: Callable[[Output], object] | None = None,
        name: str | None = None,
    ) -> Result[Any]:
        """Run a command to its end; see ``AsyncWorkspace.run``.

        ``timeout`` (seconds) ends the command, ``wait`` (seconds) returns early with
        ``result.process``.  ``on_output`` is called in a thread of its own and has heard
        everything when this returns.  Raises CommandFailed with ``check``, ExecutorSpawnFailed,
        ExecutorTransportFailed, UsageError, and what ``on_output`` raised.
        """
        listening = None if on_output is None else Listening(on_output)
        running = self._twin._run(
            command,
            timeout=timeout,
            wait=wait,
            check=False,
            input=input,
            text=text,
            tty=tty,
            size=size,
            cwd=cwd,
            env=env,
            sandbox=sandbox,
            on_output=None if listening is None else listening.put,
            name=name,
        )
        try:
            result: Result[Any] = self._call(running)
        except BaseException:
            if listening is not None:
                listening.end()
            raise
        if result.process is not None:
            result = replace(result, process=Process(result.process, self._call))
        elif listening is not None:
            listening.finish()
        return result.check() if check else result


class Process:
    """A running command.  Made by ``Workspace.start``; every call may come from any thread.

    Iterating gives ``Output`` events from the first retained one on, then one ``Exited``.  As a
    context manager it ends the process.
    """

    def __init__(self, twin: AsyncProcess, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._twin = twin
        self._call = call

    @property
    def id(self) -> str:
        """The name it has on its machine."""
        return self._twin.id

    @property
    def argv(self) -> tuple[str | bytes, ...]:
        """The words it was started with."""
        return self._twin.argv

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        return self._twin.exit

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self._twin.running

    def send(self, data: str | bytes) -> None:
        """Write to its stdin or terminal, without a newline of its own; raises WriteFailed."""
        self._call(self._twin.send(data))

    def close_stdin(self) -> None:
        """Tell it that no more input will come."""
        self._call(self._twin.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal, in characters; raises ResizeFailed without one."""
        self._call(self._twin.resize(rows, cols))

    def signal(self, name: str) -> None:
        """Send a signal by its lower-case name (``term``, ``usr1``) to its process group."""
        self._call(self._twin.signal(name))

    def interrupt(self) -> None:
        """As Ctrl-C would."""
        self._call(self._twin.interrupt())

    def terminate(self, grace: float = GRACE_SECONDS) -> None:
        """End it with all its descendants, after ``grace`` seconds by force.

        Raises TerminateFailed.
        """
        self._call(self._twin.terminate(grace))

    def wait(self, wait: float | None = None) -> ExitInfo | None:
        """How it ended; None if it still runs after ``wait`` seconds."""
        found: ExitInfo | None = self._call(self._twin.wait(wait))
        return found

    def wait_for(
        self,
        *patterns: str | re.Pattern[str],
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
    ) -> Waited:
        """Wait for a pattern, silence, the exit or a deadline; see ``AsyncProcess.wait_for``."""
        waited: Waited = self._call(
            self._twin.wait_for(*patterns, idle=idle, exit=exit, timeout=timeout)
        )
        return waited

    @overload
    def result(self, *, wait: float | None = None, text: Literal[True] = True) -> Result[str]: ...
    @overload
    def result(self, *, wait: float | None = None, text: Literal[False]) -> Result[bytes]: ...
    def result(
        self, *, wait: float | None = None, text: bool = True
    ) -> Result[str] | Result[bytes]:
        """All its retained output and how it ended; see ``AsyncProcess.result``."""
        found: Result[Any] = self._call(self._twin._outcome(wait, text))
        return found if found.process is None else replace(found, process=self)

    def __iter__(self) -> Iterator[Event]:
        events = self._twin.__aiter__()
        try:
            while (event := self._call(_next(events))) is not None:
                yield event
        finally:
            self._call(events.aclose())  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._twin.__aexit__())


async def _next(events: Any) -> Event | None:
    async for event in events:
        found: Event = event
        return found
    return None


class WorkspaceFiles:
    """Read and write below the root of a workspace; see ``AsyncFiles`` for what is raised."""

    def __init__(self, twin: AsyncFiles, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._twin = twin
        self._call = call

    @overload
    def read(
        self, path: str, *, text: Literal[True] = True, progress: Progress | None = None
    ) -> str: ...
    @overload
    def read(
        self, path: str, *, text: Literal[False], progress: Progress | None = None
    ) -> bytes: ...
    def read(
        self, path: str, *, text: bool = True, progress: Progress | None = None
    ) -> str | bytes:
        """The content of a file: UTF-8 text, or its bytes."""
        found: str | bytes = self._call(
            self._twin.read(path, text=text, progress=progress)  # type: ignore[call-overload]
        )
        return found

    def write(
        self,
        path: str,
        data: str | bytes,
        *,
        parents: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Make ``data`` the content of a file, all of it or nothing; text as UTF-8."""
        self._call(self._twin.write(path, data, parents=parents, progress=progress))

    def exists(self, path: str) -> bool:
        """Whether the path leads to something."""
        found: bool = self._call(self._twin.exists(path))
        return found

    def stat(self, path: str) -> FileMetadata:
        """What the path leads to: kind, size in bytes, times in milliseconds since 1970."""
        found: FileMetadata = self._call(self._twin.stat(path))
        return found

    def list(self, path: str = ".") -> list[FileEntry]:
        """The names in a directory, sorted."""
        found: list[FileEntry] = self._call(self._twin.list(path))
        return found

    def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory; with ``parents`` those above it too, and one that exists is fine."""
        self._call(self._twin.mkdir(path, parents=parents))

    def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        """Remove a file or link, with ``recursive`` a tree; ``force``: a missing one is fine."""
        self._call(self._twin.remove(path, recursive=recursive, force=force))

    def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        """Copy a file, or with ``recursive`` a tree, on the workspace's machine."""
        self._call(self._twin.copy(source, destination, recursive=recursive))


@overload
def run(
    command: Command,
    *,
    cwd: str | os.PathLike[str] = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,
    text: Literal[True] = True,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[str]: ...
@overload
def run(
    command: Command,
    *,
    text: Literal[False],
    cwd: str | os.PathLike[str] = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[bytes]: ...
def run(
    command: Command,
    *,
    cwd: str | os.PathLike[str] = ".",
    at: str | None = None,
    token: str | None = None,
    sandbox: Sandbox = "workspace-write",
    env: Env | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | bytes | None = None,  # noqa: A002 (subprocess calls it so)
    text: bool = True,
    tty: bool = False,
    on_output: Callable[[Output], object] | None = None,
    request_timeout: float | None = 30.0,
) -> Result[Any]:
    """Run one command in a workspace of its own, whose root is ``cwd``.

    For several commands a ``Workspace`` is quicker.  The arguments and what is raised are those
    of ``Workspace`` and ``Workspace.run``; times are in seconds.
    """
    with Workspace(
        cwd, at=at, token=token, sandbox=sandbox, env=env, request_timeout=request_timeout
    ) as workspace:
        result: Result[Any] = workspace.run(
            command,
            timeout=timeout,
            check=check,
            input=input,
            text=text,  # type: ignore[call-overload]
            tty=tty,
            on_output=on_output,
        )
    return result
