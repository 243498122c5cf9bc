"""Shapes of ``fs/*``.  Paths are ``file:`` URIs."""

from __future__ import annotations

from typing import Any, Literal

from handrail.protocol.struct_base import Unsigned, Wire


class PathParams(Wire):
    """One path."""

    path: str
    sandbox: dict[str, Any] | None = None


class LinkParams(PathParams, kw_only=True):
    """One path; ``followSymlinks: false`` refuses a link in any component."""

    follow_symlinks: bool | None = None


class ReadFileResult(Wire):
    """The whole content."""

    data_base64: str


class WriteFileParams(LinkParams, kw_only=True):
    """The whole content, put in place at once or not at all."""

    data_base64: str


class CreateDirectoryParams(LinkParams, kw_only=True):
    """A directory, with its parents unless ``recursive`` is false."""

    recursive: bool | None = None


class MetadataResult(Wire):
    """What a path leads to; only ``isSymlink`` is about the path itself."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    size: int
    created_at_ms: int
    modified_at_ms: int


class PathResult(Wire):
    """A path."""

    path: str


class DirectoryEntryShape(Wire, omit_defaults=True):
    """One name; ``uri`` is ours and there when the name is not UTF-8."""

    file_name: str
    is_directory: bool
    is_file: bool
    uri: str | None = None


class ReadDirectoryResult(Wire):
    """The names in a directory, in the system's order."""

    entries: list[DirectoryEntryShape]


class WalkOptionsParams(Wire):
    """Bounds of a walk."""

    max_depth: Unsigned
    max_directories: Unsigned
    max_entries: Unsigned
    follow_directory_symlinks: bool
    prune_hidden_directories: bool = False


class WalkParams(PathParams, kw_only=True):
    """A bounded listing of a tree."""

    options: WalkOptionsParams


class WalkEntryShape(Wire):
    """One file or directory."""

    path: str
    kind: Literal["file", "directory"]


class WalkErrorShape(Wire):
    """A path that could not be read."""

    path: str
    message: str


class WalkResultShape(Wire):
    """Breadth first, sorted within a directory."""

    entries: list[WalkEntryShape]
    errors: list[WalkErrorShape]
    truncated: bool


class RemoveParams(LinkParams, kw_only=True):
    """A file, a link or a tree."""

    recursive: bool | None = None
    force: bool | None = None


class CopyParams(Wire):
    """A file, a link or, with ``recursive``, a tree."""

    source_path: str
    destination_path: str
    recursive: bool
    sandbox: dict[str, Any] | None = None


class OpenParams(PathParams, kw_only=True):
    """A file under a name, for reading or replacing it in blocks."""

    handle_id: str
    mode: Literal["read", "replace"] = "read"


class HandleParams(Wire):
    """One open file."""

    handle_id: str


class HandleResult(Wire):
    """One open file."""

    handle_id: str


class ReadBlockParams(HandleParams, kw_only=True):
    """Up to ``len`` bytes from ``offset``."""

    offset: Unsigned
    len: Unsigned


class ReadBlockResult(Wire):
    """``eof`` when the file ended before all requested bytes."""

    chunk: str
    eof: bool


class WriteBlockParams(HandleParams, kw_only=True):
    """Bytes at ``offset``."""

    offset: Unsigned
    chunk: str


class WatchMissingParams(Wire):
    """Notify once when one of these paths appears."""

    watch_id: Unsigned
    missing: list[str]


class WatchMissingResult(Wire):
    """Whether anything is watched now."""

    watching: bool


class MissingChangedNotification(Wire):
    """One of the missing paths has appeared."""

    watch_id: int
