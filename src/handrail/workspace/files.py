"""The files of a workspace: paths below its root, text or bytes, in the sandbox of its commands.

A path is relative to the root or absolute.  In a sandboxed workspace every call is done as one of
its commands would do it, by a process in that sandbox: what they can read and write, links and
``/tmp`` among it, can be read and written here.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, overload

from handrail.errors import FilesError, UsageError
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress, TreeFile
from handrail.filesystem.errors import named
from handrail.name_hints import NamesChecked
from handrail.secret_masks import NO_SECRETS, Secrets
from handrail.workspace.arguments import AnyPath, check_callable, to_bytes, to_path
from handrail.workspace.location import Location
from handrail.workspace.opening import opens
from handrail.workspace.profile import Profile

if TYPE_CHECKING:
    from handrail.executor.trees.copy_between_machines import Copied, CopyProgress
    from handrail.filesystem.trees.entry import TreeEntry
    from handrail.filesystem.trees.loop_watch import Watch
    from handrail.workspace.file_watch import AsyncFileWatch

Paths = list[str]

#: Content that is written by the caller's thread, which nothing can interrupt meanwhile.
_SMALL = 64 * 1024
#: The kinds of error by which a sandbox refuses a call.
_REFUSED = ("permission_denied", "read_only", "busy")


def _tree_file(entry: TreeEntry) -> TreeFile:
    return TreeFile(
        os.fsdecode(entry.path),
        entry.kind,
        entry.size,
        entry.mode,
        entry.modified_ns // 1_000_000,
        os.fsdecode(entry.target) if entry.kind == "link" else None,
    )


def _has_failures(error: FilesError) -> bool:
    return bool(getattr(error, "failures", ()))


class AsyncFiles(NamesChecked):
    """Reads and writes below the root of a workspace, on the workspace's machine.

    Everything raises FilesError, which names the path, has a ``kind`` and is also the OSError that
    Python raises for it (FileNotFoundError, PermissionError and so on); or, when the connection to
    the machine is lost, ExecutorTransportFailed.  Paths may be relative to the root or absolute.
    """

    def __init__(
        self, location: Location, profile: Profile | None, secrets: Secrets = NO_SECRETS
    ) -> None:
        self._location = location
        self._secrets = secrets
        self._root = location.root
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
            files = await self._files()
            try:
                data = await files.read(full, progress=progress)
            except FilesError as error:  # on the wire a directory is one of the invalid paths
                if error.kind == "invalid_input" and (await files.metadata(full)).is_directory:
                    why = "Is a directory (os error 21)"
                    raise FilesError(why, kind="is_a_directory", path=full) from None
                raise
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

    async def _begin_write(self, path: AnyPath, data: str | bytes) -> Callable[[], None] | None:
        """Write, or give what does so in the thread of the caller; see ``Files.writer``."""
        full, content = self._join(path), to_bytes(data)
        with self._refusals("written", full):
            files = await self._files()
            writer = await files.writer(full) if len(content) <= _SMALL else None
            if writer is not None:
                return partial(writer, content)
            await files.write(full, content)
        return None

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

    async def move(self, source: AnyPath, destination: AnyPath) -> None:
        """Rename on the workspace's machine; a file that has that name is replaced."""
        here, there = self._join(source), self._join(destination)
        if here == self._root:
            raise FilesError(
                "the root of the workspace is not moved; move what is in it",
                kind="invalid_input",
                path=here,
            )
        with self._refusals("moved", f"{here} to {there}"):
            await (await self._files()).move(here, there)

    # --- trees ---------------------------------------------------------------------------

    async def walk(
        self, path: AnyPath = ".", *, exclude: str | Sequence[str] = ()
    ) -> AsyncGenerator[TreeFile, None]:
        """Everything below a directory, sorted, as it is listed; links are not followed.

        What matches a pattern of ``exclude`` is left out with everything below it.  A directory
        that cannot be read raises FilesError after all others were listed.
        """
        from handrail.executor.trees.base import pages
        from handrail.executor.trees.by_calls import trees_of
        from handrail.workspace.file_transfer import patterns

        full, left_out = self._join(path), patterns(exclude)
        problems: list[FilesError] = []
        with self._refusals("read", full):
            calls = trees_of(await self._files(), self._location.command_runner(self._profile))
            async for page in pages(calls, full, left_out):
                if page.root.kind != "directory":
                    raise FilesError("Not a directory", kind="not_a_directory", path=full)
                problems += page.problems
                for one in page.entries:
                    yield _tree_file(one)
            if problems:
                raise problems[0]

    async def glob(
        self, pattern: str, path: AnyPath = ".", *, exclude: str | Sequence[str] = ()
    ) -> Paths:
        """The paths below a directory that match, relative to it and sorted.

        ``**`` stands for any number of directories, ``*`` and ``?`` stay within one name, ``[...]``
        is a set, ``{a,b}`` a choice.  Raises FilesError, and UsageError for a pattern that
        leads out of the directory.
        """
        from handrail.workspace.file_transfer import matcher

        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise UsageError(
                f"a pattern is relative to what glob looks below, without '..', not {pattern!r};"
                " another directory is given by path="
            )
        wanted = matcher(pattern)
        found = self.walk(path, exclude=exclude)
        return [one.path async for one in found if wanted.match(one.path)]

    async def upload(
        self,
        source: AnyPath,
        destination: AnyPath,
        *,
        exclude: str | Sequence[str] = (),
        skip_unchanged: bool = False,
        progress: CopyProgress | None = None,
    ) -> Copied:
        """Copy a file or a tree of the caller's machine into the workspace.

        A directory is copied to ``destination`` itself and merged with what is there; a file too,
        unless that is a directory.  Modes, times and links are kept; a link is never followed.
        ``exclude`` has patterns of paths relative to ``source``.  With ``skip_unchanged`` files
        that are there with the same size, time and mode are not sent.  ``progress`` is called
        with the files done, the bytes done and the bytes in all.  A cut connection is resumed.
        Raises NotCopied when some files could not be copied; the others were.
        """
        return await self._transfer(
            source, destination, exclude, progress, upload=True, skip_unchanged=skip_unchanged
        )

    async def download(
        self,
        source: AnyPath,
        destination: AnyPath,
        *,
        exclude: str | Sequence[str] = (),
        skip_unchanged: bool = False,
        progress: CopyProgress | None = None,
    ) -> Copied:
        """Copy a file or a tree of the workspace to the caller's machine.

        As ``upload``, the other way.  Nothing is written outside ``destination``, whatever names
        and links that machine sends.
        """
        return await self._transfer(
            destination, source, exclude, progress, upload=False, skip_unchanged=skip_unchanged
        )

    async def _transfer(
        self,
        here: AnyPath,
        there: AnyPath,
        exclude: str | Sequence[str],
        progress: CopyProgress | None,
        *,
        upload: bool,
        skip_unchanged: bool,
    ) -> Copied:
        from handrail.executor.trees.copy_between_machines import Side
        from handrail.workspace.file_transfer import local_path, patterns, transfer

        near, far = local_path(here), self._join(there)
        left_out = patterns(exclude)
        check_callable(progress, "progress")
        with self._refusals("written" if upload else "read", far):
            return await transfer(
                near,
                Side(await self._files(), far, self._location.command_runner(self._profile)),
                upload=upload,
                exclude=left_out,
                skip_unchanged=skip_unchanged,
                progress=progress,
            )

    @opens
    async def watch(self, path: AnyPath = ".", *, recursive: bool = True) -> AsyncFileWatch:
        """Watch a directory, by default with everything below it, or a file.

        What is given iterates over ``FileChange``; everything from this call's return on is told.
        """
        from handrail.workspace.file_watch import AsyncFileWatch

        full = self._join(path)

        async def lay() -> Watch:
            with self._refusals("watched", full):
                return await (await self._files()).watch(full, recursive=recursive)

        return AsyncFileWatch(await lay(), lay)

    async def _files(self) -> Files:
        return await self._location.files(self._profile)

    def _join(self, path: AnyPath) -> str:
        text = to_path(path)
        if not text or "\0" in text:
            raise self._masked(FilesError(f"{path!r} is no path", kind="invalid_input", path=text))
        return posixpath.normpath(posixpath.join(self._root, text))

    @contextmanager
    def _refusals(self, done: str, path: str) -> Iterator[None]:
        """Say of a call that was refused in a sandbox how to allow it."""
        try:
            yield
        except FilesError as error:
            if self._profile is None or error.kind not in _REFUSED or _has_failures(error):
                told = named(error)
            else:
                told = FilesError(
                    f"{path} cannot be {done}: {error}; what commands of this workspace may not do,"
                    " its file calls may not do either: open it with a Profile that allows this",
                    kind="permission_denied",
                    path=error.path or path,
                )
            self._masked(error)
            if told is error:
                raise
            raise self._masked(told) from error

    def _masked(self, error: FilesError) -> FilesError:
        """The error without the secrets of the workspace, which a path may contain."""
        if self._secrets:
            for one in (error, *getattr(error, "failures", ())):
                one.replace(lambda text: os.fsdecode(self._secrets.masked(os.fsencode(text))))
        return error
