"""A tree, or one file, from one machine to another.

The tree is listed first.  Small files travel many to a call, large ones in parts, a few calls at a
time; both sides know nothing of each other.  Modes and times of directories are set at the end,
for content changes them.  On each machine ``filesystem/trees/listing.py`` reads them and
``filesystem/trees/writing.py`` sets them.

What a lost connection cuts is repeated by the calls themselves: a call that was confirmed is never
made again, so copying goes on where it was.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import posixpath
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from handrail.errors import FilesError, HandrailError
from handrail.executor.files import Files
from handrail.executor.trees.base import Trees, pages
from handrail.executor.trees.by_calls import Command, trees_of
from handrail.executor.trees.listed import (
    BATCH_BYTES,
    BATCH_FILES,
    Listed,
    batches,
    list_names,
    list_sized,
    sized_batches,
)
from handrail.filesystem.errors import named
from handrail.filesystem.trees.entry import (
    DIRECTORY,
    FILE,
    LINK,
    Batch,
    Change,
    Contents,
    Names,
    TreeEntry,
    joined,
)
from handrail.name_hints import AttributesChecked

#: Called with the files done, the bytes done and the bytes in all.
CopyProgress = Callable[[int, int, int], None]

#: Calls under way at a time: reading, travelling and writing overlap.
WINDOW = 4


@dataclass(frozen=True, slots=True)
class Copied(AttributesChecked):
    """What was copied.  ``unchanged``: files that were there already and were not sent."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    unchanged: int = 0
    #: Pipes, sockets and devices, which are not copied; absolute paths.
    skipped: tuple[str, ...] = ()


class NotCopied(FilesError):
    """Some files were not copied, the others were: ``failures`` and ``copied`` tell."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "other",
        path: str = "",
        failures: Sequence[FilesError] = (),
        copied: Copied | None = None,
    ) -> None:
        super().__init__(message, kind=kind, path=path)
        self.failures = tuple(failures)
        self.copied = copied or Copied()


@dataclass(slots=True)
class Side:
    """One end of a copy."""

    files: Files
    path: str
    #: Runs commands there, for a machine without calls about trees.
    command: Command | None = None
    trees: Trees = field(init=False)

    def __post_init__(self) -> None:
        self.trees = trees_of(self.files, self.command)

    def whole(self, path: bytes) -> str:
        """The absolute path of an entry."""
        return posixpath.join(self.path, os.fsdecode(path)) if path else self.path


async def copy_tree(
    source: Side,
    target: Side,
    *,
    exclude: Sequence[str] = (),
    skip_unchanged: bool = False,
    progress: CopyProgress | None = None,
) -> tuple[Copied, list[FilesError]]:
    """Copy what ``source`` names to what ``target`` names: a file to a file, a tree to a tree.

    Returns what was copied and what could not be.  Raises FilesError when nothing can be, and
    ExecutorTransportFailed when a connection is lost for good.
    """
    sized = skip_unchanged or progress is not None
    listed = await (list_sized if sized else list_names)(source.trees, source.path, exclude)
    root = single = None
    if listed.root.kind == DIRECTORY:
        if await _make_root(target):
            root = listed.root
    elif listed.root.kind == FILE:
        single = await _single(source, target, listed.root)
        listed.files = [single]
    else:
        text = "only files, directories and links are copied"
        raise FilesError(text, kind="invalid_input", path=source.path)
    copying = _Copying(source, target, listed, progress, single)
    await copying.run(root, skip_unchanged=skip_unchanged)
    return copying.copied(), [named(error) for error in copying.failures]


async def _make_root(target: Side) -> bool:
    """Make the directory that is copied to; whether it was missing."""
    try:
        missing = not (await target.files.metadata(target.path)).is_directory
    except FilesError as error:
        if error.kind != "not_found":
            raise
        missing = True
    if missing:
        await target.files.mkdir(target.path)
    return missing


async def _single(source: Side, target: Side, root: TreeEntry) -> TreeEntry:
    """One file as the only entry of its directory; it may get another name.

    In a directory it has the name that was asked for, also if that is a link: where a link leads
    is for the other side to say, which could name the file ``.bashrc``.
    """
    asked = posixpath.basename(source.path)
    source.path = await source.files.canonical(source.path)
    source.path, name = posixpath.split(source.path)
    above, own = posixpath.split(target.path)
    try:
        if (await target.files.metadata(target.path)).is_directory:
            above, own = target.path, asked
    except FilesError as error:
        if error.kind != "not_found":
            raise
        await target.files.mkdir(above)
    target.path = above
    # ``target`` of an entry that is no link: the name it gets there.
    return root._replace(path=os.fsencode(name), target=os.fsencode(own))


class _Links(NamedTuple):
    changes: list[Change]


#: Files that are read and written by one call each, links, or a large file.
_Job = list[Names] | _Links | TreeEntry


class _Copying:
    """One copy under way."""

    def __init__(
        self,
        source: Side,
        target: Side,
        listed: Listed,
        progress: CopyProgress | None,
        single: TreeEntry | None,
    ) -> None:
        self._source = source
        self._target = target
        self._listed = listed
        self._progress = progress
        #: What was named if it is one file, which may get another name.
        self._single = single
        #: Files that did not fit into the answer that was to have them.
        self._left: list[TreeEntry] = []
        self.failures = listed.problems
        self._total = sum(entry.size for entry in listed.files)
        self._files = self._bytes = self._links = self._directories = self._unchanged = 0

    def copied(self) -> Copied:
        return Copied(
            self._files,
            self._directories,
            self._links,
            self._bytes,
            self._unchanged,
            tuple(self._source.whole(entry.path) for entry in self._listed.others),
        )

    async def run(self, root: TreeEntry | None, *, skip_unchanged: bool) -> None:
        if skip_unchanged:
            there = await self._there()
            same = self._listed.without(lambda entry: _same(entry, there.get(_destination(entry))))
            self._unchanged = same
            self._total = sum(entry.size for entry in self._listed.files)
        links = [_change(entry) for entry in self._listed.links]
        await self._do(
            itertools.chain(
                batches(self._listed.groups),
                _jobs(self._listed.files),
                (_Links(links[at : at + BATCH_FILES]) for at in range(0, len(links), BATCH_FILES)),
            )
        )
        while self._left:
            left, self._left = self._left, []
            await self._do(_jobs(left))
        await self._finish_directories(root)

    async def _do(self, jobs: Iterator[_Job]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WINDOW):
                    group.create_task(self._work(jobs, group))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _work(self, jobs: Iterator[_Job], group: asyncio.TaskGroup) -> None:
        """Do one job after the other; the next is read while one is written.

        Without that all workers soon read at the same time and write at the same time, and one of
        the two machines always waits.
        """
        written: asyncio.Task[None] | None = None
        for job in jobs:
            if isinstance(job, _Links):
                await self._write_links(job.changes)
            elif isinstance(job, TreeEntry):
                await self._copy_large(job)
            else:
                batch = await self._read_batch(job)
                if written is not None:
                    await written
                written = group.create_task(self._write_batch(batch))

    async def _there(self) -> dict[bytes, TreeEntry]:
        """List the entries that the target has already."""
        return {
            entry.path: entry
            async for page in pages(self._target.trees, self._target.path)
            for entry in page.entries
        }

    async def _read_batch(self, groups: list[Names]) -> Batch:
        found = await self._source.trees.read(self._source.path, groups)
        if found.problems or found.large:
            groups, found = self._without_missing(groups, found)
        modes, times = found.modes, found.times
        if self._single is not None and groups:
            groups = [Names(b"", [_destination(self._single)])]
            modes, times = [self._single.mode], [self._single.modified_ns]
        return Batch(groups, modes, times, found.lengths, found.data)

    def _without_missing(
        self, groups: list[Names], found: Contents
    ) -> tuple[list[Names], Contents]:
        """Take out what could not be read, and what has to be read another time."""
        self.failures += found.problems.values()
        rows = zip(found.modes, found.times, found.lengths, strict=True)
        read = []
        kept: dict[bytes, Names] = {}
        paths = ((directory, name) for directory, names in groups for name in names)
        for index, ((directory, name), row) in enumerate(zip(paths, rows, strict=True)):
            if row[2] >= 0:
                read.append(row)
                kept.setdefault(directory, Names(directory, [])).names.append(name)
            elif index in found.large:
                entry = self._single or TreeEntry(joined(directory, name), FILE, *row[:2])
                self._left.append(entry._replace(size=found.large[index]))
        modes, times, lengths = ([row[column] for row in read] for column in range(3))
        return [*kept.values()], Contents(modes, times, lengths, found.data, {}, {})

    async def _write_batch(self, batch: Batch) -> None:
        if not batch.groups:
            return
        failed = await self._target.trees.write(self._target.path, batch)
        self.failures += failed.values()
        self._files += len(batch.lengths) - len(failed)
        self._bytes += len(batch.data) - sum(batch.lengths[index] for index in failed)
        self._tell()

    async def _write_links(self, links: list[Change]) -> None:
        for problem in await self._change(links):
            if problem is not None:
                self.failures.append(problem)
            else:
                self._links += 1

    async def _change(self, changes: list[Change], data: bytes = b"") -> list[FilesError | None]:
        return await self._target.trees.change(self._target.path, changes, data)

    # --- large files -------------------------------------------------------------------------

    async def _copy_large(self, entry: TreeEntry) -> None:
        stage = secrets.token_hex(8)
        path = _destination(entry)
        done = self._bytes
        try:
            size = await self._send_parts(entry, path, stage)
            finish = _change(entry)._replace(kind="finish", stage=stage, offset=size)
            _raise_first(await self._change([finish]))
            self._files += 1
            self._tell()
        except BaseException as error:
            try:
                await self._change([Change(path, "abandon", stage=stage)])
            except HandrailError:
                pass  # it is removed later, as ``writing`` says
            if not isinstance(error, FilesError):
                raise
            self._bytes = done
            self.failures.append(error)

    async def _send_parts(self, entry: TreeEntry, path: bytes, stage: str) -> int:
        """Send the content; how long it was, for the file may have been cut meanwhile."""
        end = await self._send_part(entry, path, stage, 0)  # makes the stage
        for first in range(BATCH_BYTES, entry.size, BATCH_BYTES * WINDOW):
            last = min(first + BATCH_BYTES * WINDOW, entry.size)
            lengths = await asyncio.gather(
                *(
                    self._send_part(entry, path, stage, offset)
                    for offset in range(first, last, BATCH_BYTES)
                )
            )
            end += sum(lengths)
        return end

    async def _send_part(self, entry: TreeEntry, path: bytes, stage: str, offset: int) -> int:
        length = min(BATCH_BYTES, entry.size - offset)
        found = await self._source.trees.read_part(self._source.path, entry.path, offset, length)
        if found:
            part = Change(path, "part", length=len(found), offset=offset, stage=stage)
            _raise_first(await self._change([part], found))
            self._bytes += len(found)
            self._tell()
        return len(found)

    # --- the end -----------------------------------------------------------------------------

    async def _finish_directories(self, root: TreeEntry | None) -> None:
        """Modes and times, the deepest first: a mode may lock out."""
        found = self._listed.directories[::-1]
        for start in range(0, len(found), BATCH_FILES):
            changes = [_change(entry) for entry in found[start : start + BATCH_FILES]]
            for problem in await self._change(changes):
                if problem is not None:
                    self.failures.append(problem)
                else:
                    self._directories += 1
        if root is not None:
            await self._finish_root(root)
        self._tell()

    async def _finish_root(self, root: TreeEntry) -> None:
        """Mode and time of a root that was made here: as an entry of the directory above."""
        above, name = posixpath.split(self._target.path)
        change = _change(root)._replace(path=os.fsencode(name))
        (problem,) = await self._target.trees.change(above, [change])
        self._directories += 1
        if problem is not None:
            self.failures.append(problem)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._files, self._bytes, max(self._total, self._bytes))


def _raise_first(outcomes: list[FilesError | None]) -> None:
    for problem in outcomes:
        if problem is not None:
            raise problem


def _destination(entry: TreeEntry) -> bytes:
    return entry.target if entry.kind == FILE and entry.target else entry.path


def _change(entry: TreeEntry) -> Change:
    link = entry.target if entry.kind == LINK else b""
    return Change(_destination(entry), entry.kind, entry.mode, entry.modified_ns, target=link)


def _jobs(files: list[TreeEntry]) -> Iterator[_Job]:
    """Small files of which the size is known by batches, and large ones alone."""
    yield from sized_batches([entry for entry in files if entry.size <= BATCH_BYTES])
    yield from (entry for entry in files if entry.size > BATCH_BYTES)


def _same(entry: TreeEntry, other: TreeEntry | None) -> bool:
    """Whether the target has it; files are whole there, so size, time and mode tell."""
    return (
        other is not None
        and entry[1:5] == other[1:5]
        and (entry.kind != LINK or entry.target == other.target)
    )
