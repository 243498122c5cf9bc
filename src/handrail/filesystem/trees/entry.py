"""A name in a tree, and what is read, written or changed there.  Pure."""

from __future__ import annotations

import os
from typing import NamedTuple

from handrail.errors import FilesError
from handrail.filesystem.errors import of_os_error

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


def joined(directory: bytes, name: bytes) -> bytes:
    """The relative path of a name in a directory."""
    return directory + b"/" + name if directory else name


def problem(root: bytes, path: bytes, error: OSError) -> FilesError:
    """Describe the failure of one entry, with its whole path."""
    found = of_os_error(error, path, follow=False)
    whole = os.path.join(root, path) if path else root
    return FilesError(str(found), kind=found.kind, path=os.fsdecode(whole))
