"""Trees of a machine that has no calls about trees: one call for each file.

For the peer's server, and for ``Files`` of a caller's own.  Those calls know neither modes nor
links.  Where commands can be run there (``Command``), ``find`` tells them and a shell script sets
them, once for each call; else files get the default mode and a link is reported as not copied.
A file that is copied in parts is in memory until it is whole.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.executor.trees.base import Outcomes, Trees
from handrail.filesystem.trees.entry import (
    DIRECTORY,
    FILE,
    LINK,
    MODE_BITS,
    OTHER,
    Batch,
    Change,
    Contents,
    Names,
    TreeEntry,
    joined,
)
from handrail.filesystem.trees.exclude import Exclude
from handrail.filesystem.trees.inside_root import check_relative
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.names_listing import Directory, NamesPage
from handrail.filesystem.trees.reading import MOST_BYTES

if TYPE_CHECKING:
    from handrail.executor.files import FileMetadata, Files

#: Runs a command there; its stdout, or None when it failed.
Command = Callable[[tuple[str, ...]], Awaitable[bytes | None]]
#: The longest script; a word of argv has at most 128 KiB.
_SCRIPT = 64 * 1024

_MODES = {FILE: 0o644, DIRECTORY: 0o755}
#: What is told of each name: path, type, mode, time, target.
_FIND = "%P\\0%y\\0%m\\0%T@\\0%l\\0"
_Known = dict[bytes, tuple[bytes, int, int, bytes]]


class TreesByCalls(Trees):
    """``Trees`` on the single calls of ``Files``."""

    def __init__(self, files: Files, command: Command | None) -> None:
        self._files = files
        self._command = command
        self._reading = asyncio.Lock()
        #: The files that were listed, by root and path.
        self._listed: dict[tuple[str, bytes], TreeEntry] = {}
        self._stages: dict[str, bytearray] = {}
        #: The large file that is being read in parts.
        self._open: tuple[str, bytes] | None = None

    async def list(self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()) -> Page:
        """The whole tree in one page."""
        top = _entry(b"", await self._files.metadata(root))
        page = Page(top._replace(kind=top.kind if top.kind != LINK else FILE), [], [], False)
        left_out = Exclude(exclude, root.encode("utf-8", "surrogateescape"))
        known = await self._find(root) if top.kind in (DIRECTORY, FILE) else {}
        if b"" in known:
            page = page._replace(root=_better(page.root, known[b""]))
        pending = [b""] if top.kind == DIRECTORY else []
        while pending:
            directory = pending.pop()
            for path in await self._names(root, directory, page):
                if left_out.leaves_out(path):
                    continue
                try:
                    entry = _entry(path, await self._files.metadata(_whole(root, path)))
                except FilesError as error:
                    page.problems.append(error)
                    continue
                if path in known:
                    entry = _better(entry, known[path])
                if entry.kind == LINK and not entry.target:
                    page.problems.append(_no_links(_whole(root, path)))
                    continue
                page.entries.append(entry)
                if entry.kind == DIRECTORY:
                    pending.append(path)
        # The names of dangling links are not among those that are listed.
        there = {entry.path for entry in page.entries}
        for path, (kind, _, _, _) in known.items():
            if kind == b"l" and path and path not in there:
                page.entries.append(_better(TreeEntry(path, LINK), known[path]))
        page.entries.sort(key=lambda entry: entry.path.split(b"/"))
        for entry in page.entries:
            if entry.kind == FILE:
                self._listed[root, entry.path] = entry
        return page

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> NamesPage:
        """All names in one page."""
        page = await self.list(root, exclude=exclude)
        directories = {b"": Directory(page.root, [])} if page.root.kind == DIRECTORY else {}
        others = []
        for entry in page.entries:
            above, _, name = entry.path.rpartition(b"/")
            if entry.kind == DIRECTORY:
                directories[entry.path] = Directory(entry, [])
            elif entry.kind == FILE:
                directories[above].names.append(name)
            else:
                others.append(entry)
        return NamesPage(page.root, [*directories.values()], others, page.problems, None)

    async def _names(self, root: str, directory: bytes, page: Page) -> Sequence[bytes]:
        try:
            found = await self._files.list(_whole(root, directory))
        except FilesError as error:
            if not directory:
                raise
            page.problems.append(error)
            return []
        prefix = directory + b"/" if directory else b""
        return [prefix + os.fsencode(one.name) for one in found]

    async def _find(self, root: str) -> _Known:
        """Modes, times and targets by ``find``; nothing where it is missing or another one."""
        if self._command is None:
            return {}
        told = await self._command(("find", "-H", root, "-printf", _FIND))
        if told is None:
            return {}
        words = told.split(b"\0")
        known: _Known = {}
        try:
            for path, kind, mode, when, target in zip(*[iter(words)] * 5, strict=False):
                modified = int(float(when) * 1000) * 1_000_000
                known[path] = kind, int(mode, 8) & MODE_BITS, modified, target
        except ValueError:
            return {}
        return known

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        found = Contents([], [], [], b"", {}, {})
        parts: list[bytes] = []
        left = MOST_BYTES
        paths = [joined(directory, name) for directory, names in wanted for name in names]
        for index, path in enumerate(paths):
            entry = self._listed.get((root, path)) or TreeEntry(path, FILE, _MODES[FILE])
            size, length = entry.size, -1
            try:
                if size <= left:
                    data = await self._files.read(_whole(root, path))
                    size = len(data)
                if size <= left:
                    parts.append(data)
                    length = size
                    left -= size
                else:
                    found.large[index] = size
            except FilesError as error:
                found.problems[index] = error
            found.modes.append(entry.mode)
            found.times.append(entry.modified_ns)
            found.lengths.append(length)
        return found._replace(data=b"".join(parts))

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        async with self._reading:
            return await self._read_part(_whole(root, path), offset, length)

    async def _read_part(self, path: str, offset: int, length: int) -> bytes:
        if self._open is None or self._open[0] != path:
            self._open = path, await self._files.read(path)
        data = self._open[1][offset : offset + length]
        if offset + length >= len(self._open[1]):
            self._open = None
        return data

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        failed: dict[int, FilesError] = {}
        start = 0
        script: list[bytes] = []
        paths = [joined(directory, name) for directory, names in batch.groups for name in names]
        for index, path in enumerate(paths):
            part = batch.data[start : start + batch.lengths[index]]
            start += batch.lengths[index]
            try:
                check_relative(path)
                await self._write(_whole(root, path), bytes(part))
                change = Change(path, FILE, batch.modes[index], batch.times[index])
                script += _lines(os.fsencode(_whole(root, path)), change)
            except FilesError as error:
                failed[index] = error
        await self._dress(script)
        return failed

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        done: Outcomes = []
        start = 0
        script: list[bytes] = []
        for change in changes:
            part = data[start : start + change.length]
            start += change.length
            try:
                check_relative(change.path)
                await self._change(_whole(root, change.path), change, part)
                done.append(None)
                script += _lines(os.fsencode(_whole(root, change.path)), change)
            except FilesError as error:
                done.append(error)
        await self._dress(script)
        return done

    async def _dress(self, lines: Sequence[bytes]) -> None:
        """Run the lines, as few commands as possible; the wire takes no word that is not UTF-8."""
        command = self._command
        if command is None:
            return
        text = ""
        for line in lines:
            try:
                more = line.decode()
            except UnicodeDecodeError:
                continue
            if text and len(text) + len(more) > _SCRIPT // 2:
                await command(("sh", "-c", text))
                text = ""
            text += more
        if text:
            await command(("sh", "-c", text))

    async def _change(self, path: str, change: Change, data: bytes) -> None:
        if change.kind == DIRECTORY:
            await self._files.mkdir(path)
        elif change.kind == "part":
            stage = self._stages.setdefault(change.stage, bytearray())
            end = change.offset + len(data)
            stage.extend(bytes(max(0, end - len(stage))))
            stage[change.offset : end] = data
        elif change.kind == "finish":
            await self._write(path, bytes(self._stages.pop(change.stage, b"")[: change.offset]))
        elif change.kind == "abandon":
            self._stages.pop(change.stage, None)
        elif self._command is None:
            raise _no_links(path)
        else:
            await self._files.mkdir(posixpath.dirname(path))

    async def _write(self, path: str, data: bytes) -> None:
        try:
            await self._files.write(path, data)
        except FilesError as error:
            if error.kind != "not_found":
                raise
            await self._files.mkdir(posixpath.dirname(path))
            await self._files.write(path, data)


def trees_of(files: Files, command: Command | None) -> Trees:
    """The calls about trees that a machine has, or what stands in for them."""
    return files.trees or TreesByCalls(files, command)


def _no_links(path: str) -> FilesError:
    text = "a link, which is not copied: that machine has no calls for links"
    return FilesError(text, kind="invalid_input", path=path)


def _lines(path: bytes, change: Change) -> list[bytes]:
    """The commands that a change needs beside its content."""
    name = _quoted(path)
    if change.kind == LINK:
        return [b"ln -sfn -- %b %b\n" % (_quoted(change.target), name)]
    if change.kind not in (FILE, DIRECTORY, "finish"):
        return []
    seconds = b"%d.%09d" % divmod(change.modified_ns, 10**9)
    return [
        b"chmod %o -- %b\n" % (change.mode & MODE_BITS, name),
        b"touch -d @%b -- %b\n" % (seconds, name),
    ]


def _quoted(word: bytes) -> bytes:
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def _better(entry: TreeEntry, known: tuple[bytes, int, int, bytes]) -> TreeEntry:
    _, mode, modified, target = known
    return entry._replace(
        mode=mode, modified_ns=modified, target=target if entry.kind == LINK else b""
    )


def _whole(root: str, path: bytes) -> str:
    return posixpath.join(root, os.fsdecode(path)) if path else root


def _entry(path: bytes, found: FileMetadata) -> TreeEntry:
    if found.is_symlink and path:
        kind = LINK
    elif found.is_directory:
        kind = DIRECTORY
    else:
        kind = FILE if found.is_file else OTHER
    modified = found.modified_at_ms * 1_000_000
    size = found.size if kind == FILE else 0
    return TreeEntry(path, kind, _MODES.get(kind, 0), modified, size)
