"""The files of a workspace: paths below its root, text or bytes, under the sandbox's rules.

A path is relative to the root or absolute.  In a sandboxed workspace a written path must be one
that its commands may write too, links resolved; reading follows the profile's ``deny``.  ``/tmp``
is the one that its commands have.
"""

from __future__ import annotations

import posixpath
from typing import Literal, overload

from handrail.errors import FilesError
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress
from handrail.workspace.arguments import AnyPath, to_bytes, to_path
from handrail.workspace.profile import Access, Rules


class AsyncFiles:
    """Reads and writes below the root of a workspace, on the workspace's machine.

    Everything raises FilesError (its ``kind`` says which) or, when the connection to the machine
    is lost, ExecutorTransportFailed.  Paths may be relative to the root or absolute.
    """

    def __init__(self, files: Files, root: str, rules: Rules | None) -> None:
        self._files = files
        # Between our check and the change a command may swap a directory for a link.
        resolved = getattr(files, "without_links", None)
        self._changes: Files = files if rules is None or resolved is None else resolved()
        self._root = root
        self._rules = rules

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
        data = await self._files.read(await self._readable(path), progress=progress)
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
        full = self._join(path)
        if parents:
            await self.mkdir(posixpath.dirname(full))
        await self._changes.write(await self._writable(path), to_bytes(data), progress=progress)

    async def exists(self, path: AnyPath) -> bool:
        """Whether the path exists."""
        try:
            await self._files.metadata(await self._readable(path))
        except FilesError as error:
            if error.kind in ("not_found", "not_a_directory"):
                return False
            raise
        return True

    async def stat(self, path: AnyPath) -> FileMetadata:
        """Stat the path's target: kind, size in bytes, times in milliseconds since 1970."""
        return await self._files.metadata(await self._readable(path))

    async def list(self, path: AnyPath = ".") -> list[FileEntry]:
        """The names in a directory, sorted."""
        return await self._files.list(await self._readable(path))

    async def mkdir(self, path: AnyPath, *, parents: bool = True) -> None:
        """Make a directory; with ``parents`` those above it too, and one that exists is fine."""
        await self._changes.mkdir(await self._writable(path), parents=parents)

    async def remove(self, path: AnyPath, *, recursive: bool = False, force: bool = False) -> None:
        """Remove a file or link, with ``recursive`` a tree; ``force``: a missing one is fine.

        In a sandboxed workspace a link is left to commands, for its name may lead elsewhere.
        """
        full = await self._writable(path, entry=True)
        if full == self._root:
            raise FilesError(
                "the root of the workspace is not removed; remove what is in it",
                kind="invalid_input",
                path=full,
            )
        await self._changes.remove(full, recursive=recursive, force=force)

    async def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy a file, or with ``recursive`` a tree, on the workspace's machine."""
        await self._files.copy(
            await self._readable(source), await self._writable(destination), recursive=recursive
        )

    # --- paths ---------------------------------------------------------------------------

    def _join(self, path: AnyPath) -> str:
        text = to_path(path)
        if not text or "\0" in text:
            raise FilesError(f"{path!r} is no path", kind="invalid_input", path=text)
        full = posixpath.normpath(posixpath.join(self._root, text))
        return full if self._rules is None else self._rules.host_path(full)

    async def _readable(self, path: AnyPath) -> str:
        full = self._join(path)
        if self._rules is None or not self._rules.denies_anything:
            return full
        return await self._allowed(full, Access.READ)

    async def _writable(self, path: AnyPath, *, entry: bool = False) -> str:
        full = self._join(path)
        if self._rules is None:
            return full
        return await self._allowed(full, Access.WRITE, entry=entry)

    async def _allowed(self, full: str, wanted: Access, *, entry: bool = False) -> str:
        """The path without links, if the rules allow it; FilesError otherwise.

        With ``entry`` the last name itself is meant, and not its target.
        """
        assert self._rules is not None  # noqa: S101 (asked by the callers)
        if entry and full not in ("/", self._root):
            parent, name = posixpath.split(full)
            real = posixpath.join(await self._resolve(parent), name)
        else:
            real = await self._resolve(full)
        allowed = self._rules.access(real)
        if allowed is Access.DENY or (wanted is Access.WRITE and allowed is not Access.WRITE):
            verb = "written" if wanted is Access.WRITE else "read"
            raise FilesError(
                f"{real} may not be {verb} in this workspace, because its sandbox does not allow"
                " it; open the workspace with a Profile that does",
                kind="permission_denied",
                path=real,
            )
        return real

    async def _resolve(self, full: str) -> str:
        """Links of everything that exists resolved; the missing rest as it was given."""
        rest: list[str] = []
        head = full
        while True:
            try:
                found = await self._files.canonical(head)
            except FilesError as error:
                if error.kind not in ("not_found", "not_a_directory") or head == "/":
                    raise
                head, name = posixpath.split(head)
                rest.append(name)
            else:
                return posixpath.join(found, *reversed(rest))
