"""One task in its workspace: start its command, wait for the end, make the record of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from handrail.errors import (
    ExecutorSpawnFailed,
    ExecutorTransportFailed,
    FilesError,
    HandrailError,
)
from handrail.filesystem.trees.directory_fds import DirectoryFds
from handrail.filesystem.trees.inside_root import check_relative
from handrail.fleet.errors import NodeUnreachable
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.workspace.uncancellable import to_the_end

if TYPE_CHECKING:
    from handrail.fleet.tasks.task_file import Task, TaskCommand
    from handrail.fleet.workspace import FleetWorkspace
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.result import Result

#: Bytes of each stream in a record; beyond it the first and the last half are kept.
MOST_OUTPUT = 1024 * 1024
#: Seconds between two tries to reach a node again.
_PAUSE = 1.0
LOST = {"kind": "lost", "code": None, "signal": None}
NOT_STARTED = {"kind": "notStarted", "code": None, "signal": None}


async def start(space: FleetWorkspace, command: TaskCommand) -> AsyncProcess:
    """Start the command of a task; all of its stdin is on the node before.

    A pipe would have to be fed by this driver, and a killed one feeds nothing.
    """
    argv, stdin = command.argv, command.stdin
    if stdin is not None:
        path = f"{space.temporary}/stdin"
        await space.executor()
        await space.files.write(path, stdin)
        words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else argv
        argv = ["/bin/sh", "-c", 'exec "$@" <"$0"', path, *words]
    return await space.start(argv, env=command.env, timeout=command.timeout, stdin=False)


async def finished(
    space: FleetWorkspace, command: TaskCommand, process: AsyncProcess | None, lost_after: float
) -> Result[bytes]:
    """Start the command unless ``process`` has it, and wait for its end.

    A node that cannot be reached is tried again for ``lost_after`` seconds; what was started there
    meanwhile is not started twice.  Raises NodeLost, NodeUnreachable, ExecutorSpawnFailed.
    """
    silent_since: float | None = None
    while True:
        try:
            if process is None:
                process = await start(space, command)
            return await process.result(text=False)
        except NodeUnreachable:
            silent_since = silent_since or time.monotonic()
            process = await _again(space, silent_since + lost_after)


async def _again(space: FleetWorkspace, deadline: float) -> AsyncProcess | None:
    """Reach the node again; its process, None if nothing was started.  Raises NodeUnreachable."""
    while True:
        try:
            await space.reconnect()
        except NodeUnreachable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            return next(iter(space.processes), None)


async def fetch(
    space: FleetWorkspace, task: Task, patterns: Sequence[str], folder: str
) -> str | None:
    """Copy the files that match below ``folder``/ID; what went wrong, if anything did."""
    name = quote(task.id, safe=" ")
    place = os.path.join(folder, name if name.strip(".") else name.replace(".", "%2E"))
    problem: Exception | None = None
    try:
        os.makedirs(place, exist_ok=True)
        for pattern in patterns:
            for path in _without_inner(await space.files.glob(pattern)):
                try:
                    await _fetch_one(space, place, path)
                except (FilesError, OSError) as error:
                    problem = problem or error
    except ExecutorTransportFailed:
        raise
    except (HandrailError, OSError) as error:
        problem = error
    return f"not all files were fetched: {problem}" if problem is not None else None


def _without_inner(paths: Sequence[str]) -> list[str]:
    """The paths without those below another one, which come with it."""
    known = set(paths)
    return [path for path in paths if not any(above in known for above in _above(path))]


def _above(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) not in ("", "/"):
        yield path


async def _fetch_one(space: FleetWorkspace, place: str, path: str) -> None:
    """Copy a file, a tree or the file that a link leads to; raises FilesError and OSError.

    A link to a directory is the task's way to anything: all of that machine, or what has no end.
    """
    target = _way(place, path)
    found = await space.files.stat(path)
    if found.is_symlink and not found.is_file:
        message = f"{path} is a link to a directory, which is not followed"
        raise FilesError(message, kind="invalid_input", path=path)
    await space.files.download(path, target)


def _way(place: str, path: str) -> str:
    """Where a file comes below a directory; what leads there is made, and is no link.

    A link that was fetched before is the task's: through it anything could be written.  Raises
    FilesError for names that lead out, which a node may send, and OSError.
    """
    name = os.fsencode(path)
    check_relative(name)
    with DirectoryFds(os.fsencode(place)) as fds:
        here, own = fds.get(os.path.dirname(name), make=True), os.path.basename(name)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(own, dir_fd=here, follow_symlinks=False).st_mode):
                os.unlink(own, dir_fd=here)
    return os.path.join(place, path)


def record(
    task: Task, node: str, result: Result[bytes], attempts: int, error: str | None
) -> dict[str, Any]:
    """The line of a task whose command has ended."""
    end = result.exit or ExitInfo(ExitKind.LOST, None)
    stdout, cut_out = _bounded(result.stdout)
    stderr, cut_err = _bounded(result.stderr)
    lost = end.kind is ExitKind.LOST
    return {
        "id": task.id,
        "digest": task.digest,
        "state": "lost" if lost else "ok" if result.ok else "failed",
        "exit": _exit(end),
        "stdout": stdout,
        "stderr": stderr,
        "omitted": result.omitted + cut_out + cut_err,
        "node": node,
        "attempts": attempts,
        "duration": round(_duration(end, result.duration), 3),
        "error": error or ("how its command ended is not known" if lost else None),
    }


def record_without_exit(
    task: Task, state: str, error: object, *, node: str | None, attempts: int
) -> dict[str, Any]:
    """The line of a task that is lost, or whose command could not be started (failed)."""
    return {
        "id": task.id,
        "digest": task.digest,
        "state": state,
        "exit": LOST if state == "lost" else NOT_STARTED,
        "stdout": "",
        "stderr": "",
        "omitted": 0,
        "node": node,
        "attempts": attempts,
        "duration": 0.0,
        "error": error.detail if isinstance(error, ExecutorSpawnFailed) else str(error),
    }


async def release(space: FleetWorkspace) -> None:
    """Release an adopted workspace, also when its node is gone."""
    try:
        await to_the_end(space.release())
    except HandrailError:
        pass  # its lease ends it


def _exit(end: ExitInfo) -> dict[str, object]:
    return {"kind": end.kind.value, "code": end.code, "signal": end.signal}


def _duration(end: ExitInfo, seen: float) -> float:
    """As the keeper measured it: this driver may have adopted the process at its end."""
    return seen if end.usage is None else end.usage.wall_ms / 1000


def _bounded(data: bytes) -> tuple[str, int]:
    cut = max(0, len(data) - MOST_OUTPUT)
    if cut:
        half = MOST_OUTPUT // 2
        data = data[:half] + data[-half:]
    return data.decode("utf-8", "replace"), cut
