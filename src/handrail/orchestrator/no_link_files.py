"""Files of this machine for an unsandboxed patch: no link is followed, anywhere.

An approved path is that path.  A check before the write would leave a moment in which a command
puts a link there, so nothing is checked: the kernel opens every file with links refused in
each component, and all work is done by descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from handrail.errors import FilesError
from handrail.filesystem import local
from handrail.filesystem.errors import CONTAINS_LINK, os_error, os_errors, refusal
from handrail.filesystem.no_follow import open_no_follow, open_parent

T = TypeVar("T")
_FOLLOWS_NONE = (
    "{} is or leads through a link, and a patch outside the sandbox follows none: name the real"
    " path"
)


class NoLinkFiles:
    """``Files`` of the patch tool."""

    def read(self, path: str) -> bytes:
        return _done(path, _read)

    def write(self, path: str, data: bytes) -> None:
        _done(path, lambda raw: local.write_file(raw, data, follow=False))

    def copy(self, source: str, path: str) -> None:
        _done(path, lambda raw: _create_like(anchored(source), raw))

    def remove(self, path: str) -> None:
        _done(path, _unlink)

    def mkdir(self, path: str) -> None:
        _done(path, lambda raw: local.create_directory(raw, recursive=False, follow=False))

    def rmdir(self, path: str) -> None:
        _done(path, _remove_directory)


class AwaitedNoLinkFiles:
    """``AsyncFiles``: ``NoLinkFiles`` in threads."""

    def __init__(self) -> None:
        self._files = NoLinkFiles()

    async def read(self, path: str) -> bytes:
        return await asyncio.to_thread(self._files.read, path)

    async def write(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._files.write, path, data)

    async def copy(self, source: str, path: str) -> None:
        await asyncio.to_thread(self._files.copy, source, path)

    async def remove(self, path: str) -> None:
        await asyncio.to_thread(self._files.remove, path)

    async def mkdir(self, path: str) -> None:
        await asyncio.to_thread(self._files.mkdir, path)

    async def rmdir(self, path: str) -> None:
        await asyncio.to_thread(self._files.rmdir, path)


def _done(path: str, work: Callable[[str], T]) -> T:
    try:
        return work(anchored(path))
    except FilesError as error:
        if str(error) != CONTAINS_LINK:
            raise
        sentence = _FOLLOWS_NONE.format(path)
        raise FilesError(sentence, kind="invalid_input", path=path) from error


def anchored(path: str) -> str:
    """``path`` with a link in the root directory resolved: those are the system's."""
    first, _, rest = path.lstrip("/").partition("/")
    top = f"/{first}"
    return os.path.join(os.path.realpath(top), rest) if rest and os.path.islink(top) else path


@contextmanager
def _entry(raw: str) -> Iterator[tuple[int, bytes]]:
    """Open the directory of an entry; returns its fd and the entry's name."""
    with os_errors(os.fsencode(raw), follow=False):
        parent, name = open_parent(raw, follow=False)
        try:
            yield parent, name
        finally:
            os.close(parent)


def _read(raw: str) -> bytes:
    try:
        return local.read_file(raw, follow=False)
    except FilesError as error:
        # The patch tool distinguishes a folder from other things that are no files.
        if error.kind == "invalid_input" and _is_directory(raw):
            text = f"path `{raw}` is not a file"
            raise FilesError(text, kind="is_a_directory", path=raw) from error
        raise


def _is_directory(raw: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(raw).st_mode)
    except OSError:
        return False


def _create_like(source: str, raw: str) -> None:
    """Create an empty file with the mode of another."""
    with os_errors(os.fsencode(source), follow=False):
        descriptor = open_no_follow(source, os.O_PATH | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
        finally:
            os.close(descriptor)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _entry(raw) as (parent, name):
        descriptor = os.open(name, flags, mode, dir_fd=parent)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _unlink(raw: str) -> None:
    with _entry(raw) as (parent, name):
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise refusal(CONTAINS_LINK, os.fsencode(raw))
        if stat.S_ISDIR(mode):
            raise os_error(errno.EISDIR)
        os.unlink(name, dir_fd=parent)


def _remove_directory(raw: str) -> None:
    with _entry(raw) as (parent, name):
        os.rmdir(name, dir_fd=parent)
