"""The files of this machine, in threads of a pool that starts with the first call."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from handrail.errors import FilesError, HandrailError, SandboxUnavailable
from handrail.executor.brief_polling import BriefPolling
from handrail.executor.files import FileEntry, FileMetadata, Files, Progress
from handrail.filesystem import local
from handrail.filesystem.errors import CONTAINS_LINK, os_text
from handrail.filesystem.pool import DEADLINE, FilePool
from handrail.filesystem.trees import moving
from handrail.sandbox.profile import Files as Restriction
from handrail.sandbox.profile import Intent
from handrail.sandboxed_files import content

if TYPE_CHECKING:
    from handrail.executor.trees.base import Trees
    from handrail.filesystem.trees.loop_watch import Watch
    from handrail.sandboxed_files.mount_view import MountView
    from handrail.sandboxed_files.pool import FileHelper

T = TypeVar("T")

#: Files up to this size are read on the event loop, if they are in memory.
_SMALL = 64 * 1024


class HelperSource(Protocol):
    """Has the sandboxed file helpers of an executor."""

    async def file_helper(self, pool: FilePool, intent: Intent, *, writes: bool) -> FileHelper:
        """The helper for an intent; raises HandrailError."""

    async def file_view(
        self, pool: FilePool, intent: Intent, *, writes: bool
    ) -> tuple[MountView | None, FileHelper | None]:
        """Its mounts, and that helper; raises HandrailError."""

    async def release_helpers(self, used: Collection[FileHelper]) -> None:
        """End those that do nothing now; returns when they are gone."""


class LocalFiles(Files):
    """``Files`` on ``filesystem/``."""

    def __init__(
        self,
        helpers: HelperSource | None = None,
        *,
        parent: LocalFiles | None = None,
        follow: bool = True,
    ) -> None:
        self._helpers = helpers
        self._parent = parent
        self._follow = follow
        self._pool: FilePool | None = None

    def without_links(self) -> LocalFiles:
        """The same files, where a link in any path is an error.

        A check before a call would leave a moment in which a command puts a link there, so nothing
        is checked: the kernel refuses links in each component.  Links in the root directory are the
        system's, and are followed.
        """
        return LocalFiles(parent=self, follow=False)

    def sandboxed(self, intent: Intent) -> Files:
        """The same files as a process under this intent sees them, by a helper that is one."""
        if intent.is_off or intent.files is not Restriction.RESTRICTED:
            return self
        if self._helpers is None:
            return super().sandboxed(intent)
        return LocalSandboxedFiles(self, self._helpers, intent)

    @property
    def pool(self) -> FilePool:
        """The threads."""
        if self._parent is not None:
            return self._parent.pool
        if self._pool is None:
            self._pool = FilePool()
        return self._pool

    async def run(self, work: Callable[..., T], *paths: Any, **options: Any) -> T:
        if self._follow:
            return await self.pool.run(work, *paths, deadline=DEADLINE, **options)
        try:
            return await self.pool.run(_anchored, work, *paths, deadline=DEADLINE, **options)
        except FilesError as error:
            if str(error) != CONTAINS_LINK:
                raise
            text = (
                f"{paths[0]} is or leads through a link, and none is followed: name the real path"
            )
            raise FilesError(text, kind="link", path=error.path) from error

    async def close(self) -> None:
        """Let the threads end; another call starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        data = await self.run(local.read_file, path, follow=self._follow)
        if progress is not None:
            progress(len(data), len(data))
        return data

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        await self.run(local.write_file, path, data, follow=self._follow)
        if progress is not None:
            progress(len(data), len(data))

    async def list(self, path: str) -> list[FileEntry]:
        found = await self.run(local.read_directory, path)
        entries = [FileEntry(os.fsdecode(e.name), e.is_directory, e.is_file) for e in found]
        return sorted(entries, key=lambda entry: entry.name)

    async def metadata(self, path: str) -> FileMetadata:
        found = await self.run(local.get_metadata, path, follow=self._follow)
        return FileMetadata(*found)

    async def canonical(self, path: str) -> str:
        return os.fsdecode(await self.run(local.canonicalize, path))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        try:
            await self.run(local.create_directory, path, recursive=parents, follow=self._follow)
        except FilesError as error:
            # Without links the wire reports this also for a file at the path itself.
            if error.kind == "not_a_directory" and await self._is_file(path):
                text = os_text(errno.EEXIST)
                raise FilesError(text, kind="exists", path=path) from None
            raise

    async def _is_file(self, path: str) -> bool:
        try:
            return (await self.metadata(path)).is_file
        except FilesError:
            return False

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        follow = self._follow
        await self.run(local.remove, path, recursive=recursive, force=force, follow=follow)

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        await self.run(local.copy, source, destination, recursive=recursive, follow=self._follow)

    async def move(self, source: str, destination: str) -> None:
        await self.run(moving.move, source, destination)

    @property
    def trees(self) -> Trees | None:
        from handrail.executor.trees.local import LocalTrees

        return LocalTrees(self)

    async def watch(self, path: str, *, recursive: bool = True) -> Watch:
        from handrail.filesystem.trees.loop_watch import LoopWatch

        return await LoopWatch.lay(self.pool, path, recursive=recursive)


def _anchored(work: Callable[..., T], *paths: Any, **options: Any) -> T:
    """Run it with the links of the root directory resolved."""
    return work(*(anchored(p) if isinstance(p, str) else p for p in paths), **options)


def anchored(path: str) -> str:
    """``path`` with a link in the root directory resolved: those are the system's."""
    first, _, rest = path.lstrip("/").partition("/")
    top = f"/{first}"
    return os.path.join(os.path.realpath(top), rest) if rest and os.path.islink(top) else path


@contextlib.contextmanager
def _preparing(path: str) -> Iterator[None]:
    """Say of which call an error is; raises FilesError."""
    if not path.startswith("/"):
        text = f"{path!r} is not absolute; give the whole path"
        raise FilesError(text, kind="invalid_input", path=path)
    try:
        yield
    except FilesError:
        raise
    except HandrailError as error:
        from handrail.protocol.envelope import SANDBOX_UNAVAILABLE  # few meet this

        kind = SANDBOX_UNAVAILABLE if isinstance(error, SandboxUnavailable) else "other"
        text = f"failed to prepare file sandbox: {error}"
        raise FilesError(text, kind=kind, path=path) from error


class LocalSandboxedFiles(Files):
    """The files of this machine under an intent, by a helper process in that sandbox."""

    def __init__(self, plain: LocalFiles, helpers: HelperSource, intent: Intent) -> None:
        self._plain = plain
        self._helpers = helpers
        self._intent = intent
        self._used: WeakSet[FileHelper] = WeakSet()
        self._polling = BriefPolling()

    async def helper(self, path: str, *, writes: bool) -> FileHelper:
        """The process that does a call; raises FilesError."""
        pool = self._plain.pool
        with _preparing(path):
            helper = await self._helpers.file_helper(pool, self._intent, writes=writes)
        self._used.add(helper)
        return helper

    async def _view(self, path: str, *, writes: bool = False) -> MountView | None:
        """The mounts in which a call is done without the process; raises FilesError."""
        pool = self._plain.pool
        with _preparing(path):
            view, helper = await self._helpers.file_view(pool, self._intent, writes=writes)
        if helper is not None:
            self._used.add(helper)
        return view

    async def _do(self, op: str, path: str, *arguments: Any, writes: bool = False) -> Any:
        helper = await self.helper(path, writes=writes)
        if writes:  # takes longer than polling does
            return (await helper.call(op, path, *arguments)).result()
        self._polling.answer_is_near()
        reply = await helper.call(op, path, *arguments)
        self._polling.answered()
        return reply.result()

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        view = await self._view(path)
        with contextlib.suppress(BlockingIOError):
            if view is not None:
                data = view.read_file(os.fsencode(path), _SMALL)
                if progress is not None:
                    progress(len(data), len(data))
                return data
        helper = await self.helper(path, writes=False)
        self._polling.answer_is_near()
        found = await content.read(helper, path)
        self._polling.answered()
        pieces: list[bytes] = []
        done = 0
        async for piece in found:
            pieces.append(piece)
            done += len(piece)
            if progress is not None:
                progress(done, max(done, found.size))
        if progress is not None and not done:
            progress(0, 0)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        helper = await self.helper(path, writes=True)
        await content.write(helper, path, data, progress=progress)

    async def writer(self, path: str) -> Callable[[bytes], None] | None:
        view = await self._view(path, writes=True)
        return None if view is None else partial(view.write_file, os.fsencode(path))

    async def list(self, path: str) -> list[FileEntry]:
        rows = await self._do("readDirectory", path)
        return sorted((FileEntry(*row) for row in rows), key=lambda entry: entry.name)

    async def metadata(self, path: str) -> FileMetadata:
        view = await self._view(path)
        with contextlib.suppress(BlockingIOError):
            if view is not None:
                return FileMetadata(*view.get_metadata(os.fsencode(path)))
        return FileMetadata(*await self._do("metadata", path, True))

    async def canonical(self, path: str) -> str:
        view = await self._view(path)
        with contextlib.suppress(BlockingIOError):
            if view is not None:
                return os.fsdecode(view.canonicalize(os.fsencode(path)))
        found: str = await self._do("canonicalize", path)
        return found

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        await self._do("createDirectory", path, parents, True, writes=True)

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        await self._do("remove", path, recursive, force, True, writes=True)

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        await self._do("copy", source, destination, recursive, writes=True)

    async def move(self, source: str, destination: str) -> None:
        await self._do("move", source, destination, writes=True)

    @property
    def trees(self) -> Trees | None:
        from handrail.executor.trees.sandboxed import SandboxedTrees

        return SandboxedTrees(self)

    async def watch(self, path: str, *, recursive: bool = True) -> Watch:
        from handrail.sandboxed_files.trees import HelperWatch

        helper = await self.helper(path, writes=False)
        return await HelperWatch.lay(helper, path, recursive=recursive)

    async def close(self) -> None:
        """End the helpers that were used here; another call starts new ones."""
        await self._helpers.release_helpers(list(self._used))
