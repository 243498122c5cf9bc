"""Blocking versions of ``AsyncProcess`` and ``AsyncFiles``."""

from __future__ import annotations

import os
import re
import signal as signals
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from handrail.executor.files import FileEntry, FileMetadata, Progress
from handrail.process.exit_status import ExitInfo
from handrail.workspace import loop_thread
from handrail.workspace.arguments import AnyPath
from handrail.workspace.callback_thread import CallbackThread
from handrail.workspace.files import AsyncFiles
from handrail.workspace.misuse import NamesChecked
from handrail.workspace.process import AsyncProcess
from handrail.workspace.process_follower import GRACE_SECONDS
from handrail.workspace.result import Event, Result, Waited
from handrail.workspace.secrets import Secrets

if TYPE_CHECKING:
    from handrail.workspace.lines import Line

T = TypeVar("T")


class Process(NamesChecked):
    """A running command.  Made by ``Workspace.start``; every call may come from any thread.

    Iterating gives ``Output`` events from the first retained one on, then one ``Exited``; the
    process waits for the reader when ``keep_output`` is full, and a ``Gap`` tells what was dropped
    before.  As a context manager it ends the process.
    """

    def __init__(
        self,
        twin: AsyncProcess,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        listening: CallbackThread | None = None,
    ) -> None:
        self._twin = twin
        self._call = call
        self._listening = listening

    def __repr__(self) -> str:
        return repr(self._twin).replace("AsyncProcess", "Process", 1)

    @property
    def id(self) -> str:
        """Its id on its machine."""
        return self._twin.id

    @property
    def argv(self) -> tuple[str | bytes, ...]:
        """The argv it was started with."""
        return self._twin.argv

    @property
    def secrets(self) -> Secrets:
        """The values that are masked in its text."""
        return self._twin.secrets

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        return self._twin.exit

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self._twin.running

    def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Write to its stdin or terminal, without adding a newline; raises WriteFailed, also when
        it has not read enough to make room within ``timeout`` seconds."""
        self._call(self._twin.send(data, timeout=timeout))

    def press(self, *keys: str) -> None:
        """Press keys of its terminal, such as ``up`` or ``ctrl-c``; see ``AsyncProcess.press``."""
        self._call(self._twin.press(*keys))

    def close_stdin(self) -> None:
        """Tell it that no more input will come; raises WriteFailed where that is not possible."""
        self._call(self._twin.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal, in characters; raises ResizeFailed without one."""
        self._call(self._twin.resize(rows, cols))

    def signal(self, signal: str | int | signals.Signals) -> None:
        """Send a signal, by name or number, to its group; see ``AsyncProcess.signal``."""
        self._call(self._twin.signal(signal))

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C would; raises ExecutorTransportFailed."""
        self._call(self._twin.interrupt())

    def terminate(self, grace: float = GRACE_SECONDS) -> None:
        """End it with all its descendants, after ``grace`` seconds by SIGKILL.

        Raises TerminateFailed.
        """
        self._call(self._twin.terminate(grace))

    def wait(self, timeout: float | None = None) -> ExitInfo | None:
        """Wait for its exit; None if it still runs after ``timeout`` seconds.

        Raises ExecutorTransportFailed when the connection is lost for good.
        """
        found: ExitInfo | None = self._call(self._twin.wait(timeout))
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

    expect = wait_for

    @overload
    def result(
        self, *, timeout: float | None = None, text: Literal[True] = True
    ) -> Result[str]: ...
    @overload
    def result(self, *, timeout: float | None = None, text: Literal[False]) -> Result[bytes]: ...
    def result(
        self, *, timeout: float | None = None, text: bool = True
    ) -> Result[str] | Result[bytes]:
        """All its retained output and how it ended; see ``AsyncProcess.result``."""
        found: Result[Any] = self._call(
            self._twin.result(timeout=timeout, text=text)  # type: ignore[call-overload]
        )
        if found.process is not None:
            return replace(found, process=self)
        if self._listening is not None:
            self._listening.finish()
        return found

    def __iter__(self) -> Iterator[Event]:
        return self.follow()

    def follow(self) -> Generator[Event]:
        """Yield the events that iterating gives; see ``AsyncProcess.follow``."""
        for block in self._iterate(self._twin._event_blocks()):  # noqa: SLF001 (its twin)
            yield from block

    def lines(self) -> Iterator[Line]:
        """Yield its output as lines of text, as they come; see ``AsyncProcess.lines``."""
        blocks = self._iterate(self._twin._line_blocks())  # noqa: SLF001 (its twin)
        return chain.from_iterable(blocks)

    def _iterate(self, events: AsyncIterator[T]) -> Generator[T]:
        owner = os.getpid()
        try:
            while (event := self._call(_next(events))) is not None:
                yield event
        finally:
            # Not when the interpreter's end discards it: no loop can run then.  Nor in a forked
            # child, which has a copy of it but not its process.
            if not sys.is_finalizing() and owner == os.getpid():
                loop_thread.bridge().clean_up(events.aclose())  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._twin.__aexit__())


async def _next(events: AsyncIterator[T]) -> T | None:
    async for event in events:
        return event
    return None


class WorkspaceFiles(NamesChecked):
    """Reads and writes below the root of a workspace; see ``AsyncFiles`` for what is raised."""

    def __init__(self, twin: AsyncFiles, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._twin = twin
        self._call = call

    @overload
    def read(
        self, path: AnyPath, *, text: Literal[True] = True, progress: Progress | None = None
    ) -> str: ...
    @overload
    def read(
        self, path: AnyPath, *, text: Literal[False], progress: Progress | None = None
    ) -> bytes: ...
    def read(
        self, path: AnyPath, *, text: bool = True, progress: Progress | None = None
    ) -> str | bytes:
        """The content of a file: UTF-8 text, or its bytes."""
        found: str | bytes = self._call(
            self._twin.read(path, text=text, progress=progress)  # type: ignore[call-overload]
        )
        return found

    def write(
        self,
        path: AnyPath,
        data: str | bytes,
        *,
        parents: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Make ``data`` the content of a file, all of it or nothing; text as UTF-8."""
        self._call(self._twin.write(path, data, parents=parents, progress=progress))

    def exists(self, path: AnyPath) -> bool:
        """Whether the path exists."""
        found: bool = self._call(self._twin.exists(path))
        return found

    def stat(self, path: AnyPath) -> FileMetadata:
        """Stat the path's target: kind, size in bytes, times in milliseconds since 1970."""
        found: FileMetadata = self._call(self._twin.stat(path))
        return found

    def list(self, path: AnyPath = ".") -> list[FileEntry]:
        """The names in a directory, sorted."""
        found: list[FileEntry] = self._call(self._twin.list(path))
        return found

    def mkdir(self, path: AnyPath, *, parents: bool = True) -> None:
        """Make a directory; with ``parents`` those above it too, and one that exists is fine."""
        self._call(self._twin.mkdir(path, parents=parents))

    def remove(self, path: AnyPath, *, recursive: bool = False, force: bool = False) -> None:
        """Remove a file or link, with ``recursive`` a tree; ``force``: a missing one is fine."""
        self._call(self._twin.remove(path, recursive=recursive, force=force))

    def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy a file, or with ``recursive`` a tree, on the workspace's machine."""
        self._call(self._twin.copy(source, destination, recursive=recursive))
