"""The contract for files of an executor's machine, this one or another.

Paths are absolute and native to that machine, as ``str`` (bytes that are not UTF-8 as surrogate
escapes).  Everything raises FilesError with a ``kind``, or ExecutorTransportFailed when the
connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from handrail.errors import FilesError
from handrail.name_hints import AttributesChecked
from handrail.sandbox.profile import Intent

if TYPE_CHECKING:
    from handrail.executor.trees.base import Trees
    from handrail.filesystem.trees.loop_watch import Watch

#: Called with the bytes done and the bytes in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FileEntry(AttributesChecked):
    """One name in a directory; links are followed."""

    name: str
    is_directory: bool
    is_file: bool


@dataclass(frozen=True, slots=True)
class FileMetadata(AttributesChecked):
    """Metadata of a path's target; only ``is_symlink`` is about the path itself."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    size: int
    created_at_ms: int
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class TreeFile(AttributesChecked):
    """One name of a tree, as ``lstat`` tells it; ``target`` is where a link leads."""

    path: str
    kind: str
    size: int
    mode: int
    modified_at_ms: int
    target: str | None = None


class Files(Protocol):
    """Whole-file operations; each is done entirely or not at all, as far as the machine can.

    Implementations are subclasses: what comes after ``copy`` has defaults.
    """

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        """The content of a regular file."""

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        """Make ``data`` the content; the parent directory must exist."""

    async def writer(self, path: str) -> Callable[[bytes], None] | None:
        """What writes a file in the thread that calls it, at once; None: nothing but ``write``.

        It raises BlockingIOError or FilesError before anything was changed: then ``write`` does it,
        or says why not.
        """
        return None

    async def list(self, path: str) -> list[FileEntry]:
        """The names in a directory, sorted."""

    async def metadata(self, path: str) -> FileMetadata:
        """The metadata of the path's target."""

    async def canonical(self, path: str) -> str:
        """The path of something that exists, without links and dots."""

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory; with ``parents`` also those above it, and one that exists is fine."""

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        """Remove a file, a link, or with ``recursive`` a tree; ``force``: one missing is fine."""

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        """Copy a file or a link, or with ``recursive`` a tree, on that machine."""

    async def move(self, source: str, destination: str) -> None:
        """Give it another name on that machine; a file that has that name is replaced."""
        await self.copy(source, destination, recursive=True)
        await self.remove(source, recursive=True)

    @property
    def trees(self) -> Trees | None:
        """The calls about whole trees; None: this machine has none, see ``trees/by_calls``."""
        return None

    async def watch(self, path: str, *, recursive: bool = True) -> Watch:
        """Watch a directory, by default with everything below it, or a file."""
        raise FilesError(
            "files of that machine cannot be watched: its server has no call for it",
            kind="invalid_input",
            path=path,
        )

    def sandboxed(self, intent: Intent) -> Files:
        """The same files as a process under this intent sees them.

        Raises FilesError where the machine has no such files.
        """
        raise FilesError(
            "files of that machine cannot be reached under its sandbox: use a command",
            kind="permission_denied",
        )

    def without_links(self) -> Files:
        """The same files, where a link in any path is an error, as far as the machine can."""
        return self

    async def close(self) -> None:
        """End what was started for these files; another call starts it again."""
        return
