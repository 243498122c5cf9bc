"""Appends lines of JSON to a file, on disk before the caller goes on.

Callers that add at the same time share one ``fdatasync``: with many tasks under way it costs each
of them little.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Callable
from typing import Any

from handrail.errors import UsageError
from handrail.filesystem.content import write_all
from handrail.futures import retrieve_exception


class InUse(UsageError):
    """Another process has the file."""


class DurableLines:
    """An append-only file of JSON objects, one a line, locked by this process."""

    def __init__(self, path: str, each: Callable[[int, dict[str, Any]], None]) -> None:
        self.path = path
        self._size = 0
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        #: Held during each write: a thread may be in one when another closes the file.
        self._busy = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._read(each)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(
                f"{self.path} is in use by another run; wait for its end, or give --results another"
                " file"
            ) from None

    def _read(self, each: Callable[[int, dict[str, Any]], None]) -> None:
        """Give each object with its line number; what a crash left of the last line is dropped.

        Raises UsageError when another line is no object.
        """
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                value = _object(line)
                whole = line.endswith(b"\n")
                if value is not None:
                    each(number, value)
                    self._size += len(line)
                    if not whole:  # only its end of line was cut
                        self._append(b"\n")
                elif whole:
                    raise UsageError(
                        f"line {number} of {self.path} is no JSON object; repair it, or give"
                        " another file"
                    )
                else:
                    os.ftruncate(self._descriptor, self._size)

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop all other lines, all at once or not at all."""
        aside = f"{self.path}.{os.getpid()}"
        descriptor = os.open(
            aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, os.fstat(self._descriptor).st_mode & 0o777)
            size = 0
            with open(self.path, "rb") as file:
                for line in file:
                    if wanted(json.loads(line)):
                        write_all(descriptor, line)
                        size += len(line)
            os.fdatasync(descriptor)
            os.rename(aside, self.path)
        except BaseException:
            os.unlink(aside)
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, size

    def add_now(self, value: dict[str, Any]) -> None:
        """Append an object; blocks until it is on disk."""
        self._append(_line(value))

    async def add(self, value: dict[str, Any]) -> None:
        """Append an object; returns when it is on disk.  Raises OSError."""
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(retrieve_exception)
        self._waiting.append((_line(value), done))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_waiting())
        await asyncio.shield(done)

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                data = b"".join(line for line, _ in waiting)
                problem: OSError | None = None
                try:
                    await asyncio.to_thread(self._append, data)
                except OSError as error:
                    problem = error
                for _, done in waiting:
                    if done.cancelled():
                        continue
                    if problem is None:
                        done.set_result(None)
                    else:
                        done.set_exception(problem)
        finally:
            self._writing = None

    def _append(self, data: bytes) -> None:
        with self._busy:
            try:
                write_all(self._descriptor, data)
                os.fdatasync(self._descriptor)
            except OSError as error:
                if self._descriptor >= 0:  # no line that is cut in the middle
                    os.ftruncate(self._descriptor, self._size)
                error.filename = self.path
                raise
            self._size += len(data)

    def close(self) -> None:
        """Give the lock up; what was not added is not."""
        with self._busy:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _line(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate of an id, which JSON can escape
        return json.dumps(value).encode() + b"\n"
