"""What applying a patch needs of a file system, as steps, and two runners for them.

The rules (``apply``) are generators: they yield a ``Step``, are sent its answer, and have its
failure thrown in.  ``run`` answers from plain calls, ``run_async`` from awaited ones, so there is
one set of rules for the files of this machine and for those behind a connection.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Files(Protocol):
    """What is needed of a file system.  Paths are absolute; all raise FilesError.

    The error's ``kind`` matters (not_found, exists, is_a_directory, not_a_directory), its sentence
    is shown.
    """

    def read(self, path: str) -> bytes:
        """The bytes of a regular file."""

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file in an existing directory."""

    def copy(self, source: str, path: str) -> None:
        """Create a file with the mode of ``source``, which may hold the same or nothing yet."""

    def remove(self, path: str) -> None:
        """Remove a file, never a directory."""

    def mkdir(self, path: str) -> None:
        """Make one directory in an existing one."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""


class AsyncFiles(Protocol):
    """``Files``, awaited."""

    async def read(self, path: str) -> bytes:
        """The bytes of a regular file."""

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file in an existing directory."""

    async def copy(self, source: str, path: str) -> None:
        """Create a file with the mode of ``source``, which may hold the same or nothing yet."""

    async def remove(self, path: str) -> None:
        """Remove a file, never a directory."""

    async def mkdir(self, path: str) -> None:
        """Make one directory in an existing one."""

    async def rmdir(self, path: str) -> None:
        """Remove an empty directory."""


class Action(enum.Enum):
    """The method of ``Files`` to call."""

    READ = enum.auto()
    WRITE = enum.auto()
    COPY = enum.auto()
    REMOVE = enum.auto()
    MKDIR = enum.auto()
    RMDIR = enum.auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the file system; ``data`` is for WRITE, ``source`` for COPY."""

    action: Action
    path: str
    data: bytes = b""
    source: str = ""


T = TypeVar("T")
Steps = Generator[Step, bytes, T]


def run(steps: Steps[T], files: Files) -> T:
    """Run ``steps`` on ``files``; returns and raises what the generator does."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _perform(step, files)
            except BaseException as error:  # noqa: BLE001 - an interrupt, too, must be undone
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(steps: Steps[T], files: AsyncFiles) -> T:
    """``run``, awaited.

    A cancellation is thrown in like a failure: the rules undo what they did, then raise it.
    """
    try:
        step = next(steps)
        while True:
            try:
                answer = await _perform_async(step, files)
            except BaseException as error:  # noqa: BLE001 - see above
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def _perform(step: Step, files: Files) -> bytes:
    match step.action:
        case Action.READ:
            return files.read(step.path)
        case Action.WRITE:
            files.write(step.path, step.data)
        case Action.COPY:
            files.copy(step.source, step.path)
        case Action.REMOVE:
            files.remove(step.path)
        case Action.MKDIR:
            files.mkdir(step.path)
        case Action.RMDIR:
            files.rmdir(step.path)
    return b""


async def _perform_async(step: Step, files: AsyncFiles) -> bytes:
    match step.action:
        case Action.READ:
            return await files.read(step.path)
        case Action.WRITE:
            await files.write(step.path, step.data)
        case Action.COPY:
            await files.copy(step.source, step.path)
        case Action.REMOVE:
            await files.remove(step.path)
        case Action.MKDIR:
            await files.mkdir(step.path)
        case Action.RMDIR:
            await files.rmdir(step.path)
    return b""
