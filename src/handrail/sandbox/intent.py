"""From a portable intent, as it travels, to an intent of this machine.  Pure.

For executors, which are given the intent as plain data; ``handrail.server`` does the same with
the wire's own sentences.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from handrail.protocol import path_uri
from handrail.protocol.sandbox import (
    Disabled,
    GlobEntry,
    Managed,
    PathEntry,
    PermissionEntry,
    SandboxParams,
    UnrestrictedFiles,
)
from handrail.sandbox.profile import Access, BadIntent, Entry, Files, Intent

_ACCESS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny": Access.DENY,
    "none": Access.DENY,
}


def read_intent(given: Mapping[str, object], cwd: bytes) -> tuple[Intent, bytes]:
    """The intent, and where its relative patterns start; raises BadIntent.

    ``cwd`` is the command's own directory, for an intent that names none.
    """
    try:
        params = msgspec.convert(given, SandboxParams)
    except msgspec.ValidationError as error:
        raise BadIntent(f"invalid sandbox permissions: {error}") from None
    permissions = params.permissions
    base = cwd if params.cwd is None else _path(params.cwd)
    if isinstance(permissions, Disabled):
        return Intent(disabled=True), base
    files, entries, depth = Files.EXTERNAL, (), None  # type: tuple[Files, tuple[Entry, ...], int | None]
    if isinstance(permissions, Managed):
        if isinstance(permissions.file_system, UnrestrictedFiles):
            files = Files.UNRESTRICTED
        else:
            files = Files.RESTRICTED
            entries = tuple(map(_entry, permissions.file_system.entries))
            depth = permissions.file_system.glob_scan_max_depth
    roots = tuple(map(_path, params.workspace_roots))
    network = permissions.network == "enabled"
    intent = Intent(files, entries, network, False, roots, depth)
    if params.private_tmp is not None:
        intent = intent._replace(private_tmp=_path(params.private_tmp))
    return intent, base


def _entry(entry: PermissionEntry) -> Entry:
    access = _ACCESS[entry.access]
    path = entry.path
    if isinstance(path, PathEntry):
        return Entry(access, path=_path(path.path))
    if isinstance(path, GlobEntry):
        return Entry(access, glob=path.pattern)
    kind = path.value.kind
    subpath = None if path.value.subpath is None else os.fsencode(path.value.subpath)
    return Entry(
        access,
        special="project_roots" if kind == "current_working_directory" else kind,
        subpath=subpath,
    )


def _path(uri: str) -> bytes:
    try:
        return path_uri.to_path(uri)
    except (path_uri.BadUri, path_uri.NotNative) as error:
        raise BadIntent(f"invalid sandbox path `{uri}`: {error}") from None
