"""What a copy has to copy: listed before anything is written, and every name checked.

The names come from another machine, which may be hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from handrail.errors import FilesError
from handrail.executor.trees.base import Trees, names_pages, pages
from handrail.filesystem.trees.entry import (
    DIRECTORY,
    FILE,
    LINK,
    Names,
    TreeEntry,
)
from handrail.filesystem.trees.inside_root import are_sound, check_relative

#: What one call carries.
BATCH_BYTES = 1024 * 1024
BATCH_FILES = 1024


@dataclass(slots=True)
class Listed:
    """A tree; its files by name alone, or with their sizes."""

    root: TreeEntry
    directories: list[TreeEntry] = field(default_factory=list)
    groups: list[Names] = field(default_factory=list)
    files: list[TreeEntry] = field(default_factory=list)
    links: list[TreeEntry] = field(default_factory=list)
    #: Pipes, sockets and devices.
    others: list[TreeEntry] = field(default_factory=list)
    problems: list[FilesError] = field(default_factory=list)

    def add(self, entry: TreeEntry) -> bool:
        """Add what is no file, or a file of which the size is known; False: its name is refused."""
        if not self._is_sound(entry.path):
            return False
        kinds = {DIRECTORY: self.directories, FILE: self.files, LINK: self.links}
        kinds.get(entry.kind, self.others).append(entry)
        return True

    def add_names(self, directory: bytes, names: list[bytes]) -> None:
        """Add files by their names in a directory that was added, or in the root."""
        if not are_sound(names):
            names = [name for name in names if self._is_sound(name, alone=True)]
        if names:
            self.groups.append(Names(directory, names))

    def _is_sound(self, path: bytes, *, alone: bool = False) -> bool:
        try:
            check_relative(path, alone=alone)
        except FilesError as error:
            self.problems.append(error)
            return False
        return True

    def without(self, same: Callable[[TreeEntry], bool]) -> int:
        """Leave files and links out of which ``same`` is true; how many."""
        before = len(self.files) + len(self.links)
        self.files = [entry for entry in self.files if not same(entry)]
        self.links = [entry for entry in self.links if not same(entry)]
        return before - len(self.files) - len(self.links)


async def list_names(trees: Trees, path: str, exclude: Sequence[str]) -> Listed:
    """List names; what a file is is seen when it is read."""
    found = [page async for page in names_pages(trees, path, exclude)]
    listed = Listed(found[0].root)
    last = b""
    for page in found:
        listed.problems += page.problems
        for entry, names in page.directories:
            if entry.path and entry.path != last:  # one may go on in the next page
                if not listed.add(entry._replace(kind=DIRECTORY)):
                    continue
                last = entry.path
            listed.add_names(entry.path, names)
        for entry in page.others:
            listed.add(entry)
    return listed


async def list_sized(trees: Trees, path: str, exclude: Sequence[str]) -> Listed:
    """List names with kind, mode, time and size, for callers that need them beforehand."""
    found = [page async for page in pages(trees, path, exclude)]
    listed = Listed(found[0].root)
    for page in found:
        listed.problems += page.problems
        for entry in page.entries:
            listed.add(entry)
    return listed


def batches(groups: Iterable[Names]) -> Iterator[list[Names]]:
    """Files of several directories, as many as one call takes.

    A directory is in one batch if it fits: a new one is cheaper to write as a whole.
    """
    return _filled((group, [0] * len(group.names)) for group in groups)


def sized_batches(files: Sequence[TreeEntry]) -> Iterator[list[Names]]:
    """Files of which the size is known, as many as one call carries."""
    directories: dict[bytes, tuple[Names, list[int]]] = {}
    for entry in files:
        directory, _, name = entry.path.rpartition(b"/")
        if directory not in directories:
            directories[directory] = Names(directory, []), []
        group, sizes = directories[directory]
        group.names.append(name)
        sizes.append(entry.size)
    return _filled(directories.values())


def _filled(directories: Iterable[tuple[Names, list[int]]]) -> Iterator[list[Names]]:
    batch: list[Names] = []
    count = size = 0
    for (directory, names), sizes in directories:
        if batch and (count + len(names) > BATCH_FILES or size + sum(sizes) > BATCH_BYTES):
            yield batch
            batch, count, size = [], 0, 0
        start = 0
        for index, one in enumerate(sizes):
            if count >= BATCH_FILES or (count and size + one > BATCH_BYTES):
                if start < index:
                    batch.append(Names(directory, names[start:index]))
                yield batch
                batch, start, count, size = [], index, 0, 0
            count += 1
            size += one
        batch.append(Names(directory, names[start:]))
    if batch:
        yield batch
