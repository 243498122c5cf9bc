"""The files of a workspace: paths below its root, text or bytes, in the sandbox of its commands.

A path is relative to the root or absolute.  In a sandboxed workspace every call is done as one of
its commands would do it, by a process in that sandbox: what they can read and write, links and
``/tmp`` among it, can be read and written here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, overload

from handrail.errors import FilesError
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress
from handrail.workspace.arguments import AnyPath, to_bytes, to_path
from handrail.workspace.location import Location
from handrail.workspace.profile import Profile

#: The kinds of error by which a sandbox refuses a call.
_REFUSED = ("permission_denied", "read_only", "busy")


class AsyncFiles:
    """Reads and writes below the root of a workspace, on the workspace's machine.

    Everything raises FilesError (its ``kind`` says which) or, when the connection to the machine
    is lost, ExecutorTransportFailed.  Paths may be relative to the root or absolute.
    """

    def __init__(self, ground: Location, profile: Profile | None) -> None:
        self._ground = ground
        self._root = ground.root
        self._profile = profile

    @overload
    async def read(
        self, path: AnyPath, *, text: Literal[True] = True, progress: Progress | None = None
    ) -> str: ...
    @overload
    async def read(
        self, path: AnyPath, *, text: Literal[False], progress: Progress | None = None
    ) -> bytes: ...
    async def read(
        self, path: AnyPath, *, text: bool = True, progress: Progress | None = None
    ) -> str | bytes:
        """The content of a file: UTF-8 text (invalid bytes become U+FFFD), or its bytes.

        ``progress`` is called with the bytes done and the bytes in all.
        """
        full = self._join(path)
        with self._refusals("read", full):
            data = await (await self._files()).read(full, progress=progress)
        return data.decode("utf-8", "replace") if text else data

    async def write(
        self,
        path: AnyPath,
        data: str | bytes,
        *,
        parents: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Make ``data`` the content of a file, all of it or nothing; text as UTF-8.

        With ``parents`` missing directories above it are made.
        """
        full, content = self._join(path), to_bytes(data)
        if parents:
            await self.mkdir(posixpath.dirname(full))
        with self._refusals("written", full):
            await (await self._files()).write(full, content, progress=progress)

    async def exists(self, path: AnyPath) -> bool:
        """Whether the path exists."""
        try:
            await self.stat(path)
        except FilesError as error:
            if error.kind in ("not_found", "not_a_directory"):
                return False
            raise
        return True

    async def stat(self, path: AnyPath) -> FileMetadata:
        """Stat the path's target: kind, size in bytes, times in milliseconds since 1970."""
        full = self._join(path)
        with self._refusals("read", full):
            return await (await self._files()).metadata(full)

    async def list(self, path: AnyPath = ".") -> list[FileEntry]:
        """The names in a directory, sorted."""
        full = self._join(path)
        with self._refusals("read", full):
            return await (await self._files()).list(full)

    async def mkdir(self, path: AnyPath, *, parents: bool = True) -> None:
        """Make a directory; with ``parents`` those above it too, and one that exists is fine."""
        full = self._join(path)
        with self._refusals("made", full):
            await (await self._files()).mkdir(full, parents=parents)

    async def remove(self, path: AnyPath, *, recursive: bool = False, force: bool = False) -> None:
        """Remove a file or link, with ``recursive`` a tree; ``force``: a missing one is fine."""
        full = self._join(path)
        if full == self._root:
            raise FilesError(
                "the root of the workspace is not removed; remove what is in it",
                kind="invalid_input",
                path=full,
            )
        with self._refusals("removed", full):
            await (await self._files()).remove(full, recursive=recursive, force=force)

    async def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy a file, or with ``recursive`` a tree, on the workspace's machine."""
        here, there = self._join(source), self._join(destination)
        with self._refusals("copied", f"{here} to {there}"):
            await (await self._files()).copy(here, there, recursive=recursive)

    async def _files(self) -> Files:
        return await self._ground.files(self._profile)

    def _join(self, path: AnyPath) -> str:
        text = to_path(path)
        if not text or "\0" in text:
            raise FilesError(f"{path!r} is no path", kind="invalid_input", path=text)
        return posixpath.normpath(posixpath.join(self._root, text))

    @contextmanager
    def _refusals(self, done: str, path: str) -> Iterator[None]:
        """Say of a call that was refused in a sandbox how to allow it."""
        try:
            yield
        except FilesError as error:
            if self._profile is None or error.kind not in _REFUSED:
                raise
            raise FilesError(
                f"{path} cannot be {done}: {error}; what commands of this workspace may not do, its"
                " file calls may not do either: open it with a Profile that allows this",
                kind="permission_denied",
                path=error.path or path,
            ) from error
