"""Shapes of the calls about whole trees and of watches; all of them ours.

Paths below a root are relative and percent-encoded as in a URI; the root is a ``file:`` URI.
"""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from msgspec import field

from handrail.protocol import path_uri
from handrail.protocol.filesystem import PathParams
from handrail.protocol.struct_base import Unsigned, Wire

_ORDINARY = re.compile(rb"[A-Za-z0-9._~/-]*")


def relative_text(path: bytes) -> str:
    """A relative path for the wire."""
    if _ORDINARY.fullmatch(path):  # nearly all, and ten times faster
        return path.decode()
    return path_uri.quote(path).decode()


def relative_path(text: str) -> bytes:
    """A relative path of the wire."""
    return unquote_to_bytes(text) if "%" in text else text.encode()


class ListTreeParams(PathParams, kw_only=True):
    """A page of what is below a directory, behind the path ``after``."""

    after: str = ""
    #: Patterns of what is left out, with everything below.
    exclude: list[str] = field(default_factory=list)


class TreeEntryShape(Wire, omit_defaults=True):
    """One name; ``target`` is a link's, encoded like a path."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    mode: int
    modified_ns: int
    size: int = 0
    target: str = ""


class TreeProblemShape(Wire):
    """A path that could not be read or written."""

    path: str
    kind: str
    message: str


class ListTreeResult(Wire):
    """Sorted, depth first; ``more``: ask again with the last path as ``after``."""

    root: TreeEntryShape
    entries: list[TreeEntryShape]
    problems: list[TreeProblemShape]
    more: bool


class WantedShape(Wire):
    """A part of a file's content."""

    path: str
    length: Unsigned
    offset: Unsigned = 0


class ReadFilesParams(PathParams, kw_only=True):
    """Content of many files below a directory, at most 2 MiB in all."""

    files: list[WantedShape]


class ContentShape(Wire, omit_defaults=True):
    """How many bytes of ``dataBase64`` are this file's, or why there are none."""

    length: int = 0
    problem: TreeProblemShape | None = None


class ReadFilesResult(Wire):
    """One for each file that was asked for, and their content one after the other."""

    files: list[ContentShape]
    data_base64: str


class ChangeShape(Wire, omit_defaults=True):
    """One thing to be done; ``length`` bytes of ``dataBase64`` belong to it.

    A large file comes as ``part`` at an ``offset`` of its ``stage`` (16 hex digits), then
    ``finish`` with its size as ``offset``; ``abandon`` drops the stage.
    """

    path: str
    kind: Literal["file", "directory", "link", "part", "finish", "abandon"]
    mode: int = 0
    modified_ns: int = 0
    length: Unsigned = 0
    target: str = ""
    offset: Unsigned = 0
    stage: str = ""


class WriteFilesParams(PathParams, kw_only=True):
    """Files, links and directories below a directory; never outside it, through no link."""

    changes: list[ChangeShape]
    data_base64: str = ""


class ChangeProblemShape(Wire):
    """A change that was not made, by its position."""

    index: int
    kind: str
    message: str


class WriteFilesResult(Wire):
    """What was not done; everything else was."""

    problems: list[ChangeProblemShape]


class MoveParams(Wire):
    """A name and its next one."""

    source_path: str
    destination_path: str
    sandbox: dict[str, Any] | None = None


class WatchParams(PathParams, kw_only=True):
    """A directory or a file to be watched on this connection, under a name of the client's."""

    watch: str
    recursive: bool = True


class WatchReadParams(Wire):
    """Changes since the last call; waits up to ``waitMs`` for some."""

    watch: str
    wait_ms: Unsigned = 0


class FileChangeShape(Wire):
    """One change; the path is relative to what is watched, empty for that itself."""

    kind: Literal["created", "changed", "removed"]
    path: str


class WatchReadResult(Wire):
    """``gap``: changes before these were missed.  ``ended``: what was watched is gone."""

    changes: list[FileChangeShape]
    gap: bool
    ended: bool


class UnwatchParams(Wire):
    """One watch."""

    watch: str
