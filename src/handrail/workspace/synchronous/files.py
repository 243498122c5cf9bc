"""Blocking version of ``AsyncFiles``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from handrail.errors import FilesError, HandrailError
from handrail.executor.files import FileEntry, FileMetadata, Progress, TreeFile
from handrail.name_hints import NamesChecked
from handrail.workspace.arguments import AnyPath
from handrail.workspace.files import AsyncFiles, Paths

if TYPE_CHECKING:
    from handrail.executor.trees.copy_between_machines import Copied, CopyProgress
    from handrail.workspace.file_watch import FileWatch

T = TypeVar("T")
#: Names of a walk that are fetched in one turn of the loop.
_AT_ONCE = 1000


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
        if not parents and progress is None:
            begun = self._call(self._twin._begin_write(path, data))  # noqa: SLF001 (its twin)
            try:
                if begun is not None:
                    begun()
                return
            except (BlockingIOError, FilesError):
                pass  # nothing was changed
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

    def move(self, source: AnyPath, destination: AnyPath) -> None:
        """Rename on the workspace's machine; a file that has that name is replaced."""
        self._call(self._twin.move(source, destination))

    def walk(self, path: AnyPath = ".", *, exclude: str | Sequence[str] = ()) -> Iterator[TreeFile]:
        """Everything below a directory, sorted, as it is listed; links are not followed.

        A directory that cannot be read raises FilesError after all others were listed.
        """
        found = self._twin.walk(path, exclude=exclude)
        some: list[TreeFile] = []
        try:
            while self._call(_fill(some, found)):
                yield from some
                some.clear()
        except HandrailError:
            yield from some
            raise
        finally:
            self._call(found.aclose())

    def glob(
        self, pattern: str, path: AnyPath = ".", *, exclude: str | Sequence[str] = ()
    ) -> Paths:
        """The paths below a directory that match, relative to it and sorted."""
        found: Paths = self._call(self._twin.glob(pattern, path, exclude=exclude))
        return found

    def upload(
        self,
        source: AnyPath,
        destination: AnyPath,
        *,
        exclude: str | Sequence[str] = (),
        skip_unchanged: bool = False,
        progress: CopyProgress | None = None,
    ) -> Copied:
        """Copy a file or a tree of the caller's machine into the workspace."""
        copied: Copied = self._call(
            self._twin.upload(
                source,
                destination,
                exclude=exclude,
                skip_unchanged=skip_unchanged,
                progress=progress,
            )
        )
        return copied

    def download(
        self,
        source: AnyPath,
        destination: AnyPath,
        *,
        exclude: str | Sequence[str] = (),
        skip_unchanged: bool = False,
        progress: CopyProgress | None = None,
    ) -> Copied:
        """Copy a file or a tree of the workspace to the caller's machine, and nowhere else."""
        copied: Copied = self._call(
            self._twin.download(
                source,
                destination,
                exclude=exclude,
                skip_unchanged=skip_unchanged,
                progress=progress,
            )
        )
        return copied

    def watch(self, path: AnyPath = ".", *, recursive: bool = True) -> FileWatch:
        """Watch a directory, by default with everything below it, or a file."""
        from handrail.workspace.file_watch import FileWatch

        return FileWatch(self._call(self._twin.watch(path, recursive=recursive)), self._call)


async def _fill(some: list[T], found: AsyncGenerator[T, None]) -> bool:
    """Add the next ones, if any; a turn of the loop for each would cost more than they do.

    With an error, too, ``some`` has what was found before.
    """
    async for one in found:
        some.append(one)
        if len(some) >= _AT_ONCE:
            break
    return bool(some)
