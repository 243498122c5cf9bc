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


class Wanted(NamedTuple):
    """A part of a file's content."""

    path: bytes
    offset: int
    length: int


class Change(NamedTuple):
    """One thing to be done below a root.

    ``kind`` is ``file``, ``link`` or ``directory``; or for a file that comes in parts ``part``
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


def check_relative(path: bytes) -> None:
    """Refuse a path that could lead out of its root; raises FilesError."""
    names = path.split(b"/")
    if b"" in names or b"." in names or b".." in names or b"\0" in path:
        raise refusal(f"`{shown(path)}` is no name below the directory that is copied", path)


def problem(root: bytes, path: bytes, error: OSError) -> FilesError:
    """Describe the failure of one entry, with its whole path."""
    found = of_os_error(error, path, follow=False)
    whole = os.path.join(root, path) if path else root
    return FilesError(str(found), kind=found.kind, path=os.fsdecode(whole))
