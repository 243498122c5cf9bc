"""A name in a tree, and which names may come from another machine.  Pure."""

from __future__ import annotations

import os
from typing import NamedTuple

from handrail.errors import FilesError
from handrail.filesystem.errors import of_os_error, refusal, shown

FILE, DIRECTORY, LINK, OTHER = "file", "directory", "link", "other"
#: The bits of a mode that are copied: no set-id bits come from another machine.
MODE_BITS = 0o777


class TreeEntry(NamedTuple):
    """One name; ``path`` is relative to the root of the tree, empty for the root itself."""

    path: bytes
    kind: str
    mode: int = 0
    modified_ns: int = 0
    size: int = 0
    target: bytes = b""


class Names(NamedTuple):
    """Some files of one directory; ``directory`` is relative to the root, empty for the root."""

    directory: bytes
    names: list[bytes]


class Contents(NamedTuple):
    """What was read of the files that were asked for, each by its position among them.

    Lists, not an object for each file: making those took as long as half of the system calls.
    """

    modes: list[int]
    times: list[int]
    #: Bytes of ``data`` that are this file's; -1: it was not read.
    lengths: list[int]
    data: bytes
    #: Why files were not read.
    problems: dict[int, FilesError]
    #: Sizes of files that did not fit into this answer.
    large: dict[int, int]


class Batch(NamedTuple):
    """Files to be written, with their content one after the other."""

    groups: list[Names]
    modes: list[int]
    times: list[int]
    lengths: list[int]
    data: bytes | memoryview


class Change(NamedTuple):
    """One thing to be done below a root.

    ``kind`` is ``link`` or ``directory``; or for a file that comes in parts ``part``
    (bytes at an offset of the stage), ``finish`` (the stage becomes the file) and ``abandon`` (the
    stage is removed).  ``stage`` tells stages apart; ``length`` bytes of the call's data belong
    to it.
    """

    path: bytes
    kind: str
    mode: int = 0
    modified_ns: int = 0
    length: int = 0
    target: bytes = b""
    offset: int = 0
    stage: str = ""


_NO_NAMES = frozenset((b"", b".", b".."))


def joined(directory: bytes, name: bytes) -> bytes:
    """The relative path of a name in a directory."""
    return directory + b"/" + name if directory else name


def are_sound(names: list[bytes]) -> bool:
    """Whether each is the name of an entry of a directory, all at once."""
    text = b"/".join(names)
    return _NO_NAMES.isdisjoint(names) and text.count(b"/") == len(names) - 1 and b"\0" not in text


def check_relative(path: bytes, *, alone: bool = False) -> None:
    """Refuse a path that could lead out of its root; raises FilesError.

    ``alone``: it must be one name.
    """
    names = path.split(b"/")
    if not _NO_NAMES.isdisjoint(names) or b"\0" in path or (alone and len(names) > 1):
        raise refusal(f"`{shown(path)}` is no name below the directory that is copied", path)


def problem(root: bytes, path: bytes, error: OSError) -> FilesError:
    """Describe the failure of one entry, with its whole path."""
    found = of_os_error(error, path, follow=False)
    whole = os.path.join(root, path) if path else root
    return FilesError(str(found), kind=found.kind, path=os.fsdecode(whole))
