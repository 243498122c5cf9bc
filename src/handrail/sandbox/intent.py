"""The wire form of an intent: one parser, one serialiser.  Pure.

In a process an intent is an ``Intent``; it has the wire's form only in messages.
"""

from __future__ import annotations

import os
from typing import Any

from handrail.errors import UsageError
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
from handrail.sandbox.profile import PROTECTED_NAMES, Access, BadIntent, Entry, Files, Intent

_ACCESS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny": Access.DENY,
    "none": Access.DENY,
}
_WORDS = {Access.READ: "read", Access.WRITE: "write", Access.DENY: "deny"}
#: What the wire wants said about Windows.
NO_WINDOWS = {"windowsSandboxLevel": "disabled", "windowsSandboxPrivateDesktop": False}


def from_wire(params: SandboxParams) -> Intent:
    """Read the ``sandbox`` member of a message; raises BadIntent, whose ``field`` is set.

    The members are checked in the order in which the wire's error sentences expect it.
    """
    permissions = params.permissions
    files, depth = Files.EXTERNAL, None
    entries: tuple[Entry, ...] = ()
    if isinstance(permissions, Managed):
        if isinstance(permissions.file_system, UnrestrictedFiles):
            files = Files.UNRESTRICTED
        else:
            files = Files.RESTRICTED
            entries = tuple(map(_read_entry, permissions.file_system.entries))
            depth = permissions.file_system.glob_scan_max_depth
    cwd = None if params.cwd is None else _read_path(params.cwd, "cwd")
    roots = tuple(_read_path(uri, "workspaceRoots") for uri in params.workspace_roots)
    if isinstance(permissions, Disabled):
        return Intent(disabled=True, cwd=cwd)
    tmp = params.private_tmp
    return Intent(
        files,
        entries,
        network=permissions.network == "enabled",
        workspace_roots=roots,
        glob_depth=depth,
        private_tmp=None if tmp is None else _read_path(tmp, "privateTmp"),
        cwd=cwd,
    )


def _read_entry(entry: PermissionEntry) -> Entry:
    access = _ACCESS[entry.access]
    path = entry.path
    if isinstance(path, PathEntry):
        return Entry(access, path=_read_path(path.path, "path"))
    if isinstance(path, GlobEntry):
        return Entry(access, glob=path.pattern)
    kind, subpath = path.value.kind, path.value.subpath
    return Entry(
        access,
        special="project_roots" if kind == "current_working_directory" else kind,
        subpath=None if subpath is None else subpath.encode("utf-8", "surrogateescape"),
    )


def _read_path(uri: str, field: str) -> bytes:
    try:
        return path_uri.to_path(uri)
    except (path_uri.BadUri, path_uri.NotNative) as error:
        raise BadIntent(str(error), field, uri) from None


def to_wire(intent: Intent) -> dict[str, object]:
    """Write the ``sandbox`` member of a message; raises UsageError for what has no wire form."""
    if intent.protected != PROTECTED_NAMES:
        raise UsageError(
            "a server protects the names it knows and no others; leave `protected` as it is"
        )
    wire: dict[str, object] = {
        "permissions": _permissions(intent),
        "workspaceRoots": list(map(path_uri.to_uri, intent.workspace_roots)),
        **NO_WINDOWS,
        "useLegacyLandlock": False,
    }
    if intent.cwd is not None:
        wire["cwd"] = path_uri.to_uri(intent.cwd)
    if intent.private_tmp is not None:
        wire["privateTmp"] = path_uri.to_uri(intent.private_tmp)
    return wire


def _permissions(intent: Intent) -> dict[str, object]:
    if intent.disabled:
        return {"type": "disabled"}
    network = "enabled" if intent.network else "restricted"
    if intent.files is Files.EXTERNAL:
        return {"type": "external", "network": network}
    files: dict[str, object] = {"type": "unrestricted"}
    if intent.files is Files.RESTRICTED:
        files = {"type": "restricted", "entries": list(map(_entry, intent.entries))}
        if intent.glob_depth is not None:
            files["glob_scan_max_depth"] = intent.glob_depth
    return {"type": "managed", "file_system": files, "network": network}


def _entry(entry: Entry) -> dict[str, object]:
    where: dict[str, Any]
    if entry.path is not None:
        where = {"type": "path", "path": path_uri.to_uri(entry.path)}
    elif entry.glob is not None:
        where = {"type": "glob_pattern", "pattern": entry.glob}
    else:
        where = {"type": "special", "value": {"kind": entry.special}}
        if entry.subpath is not None:
            where["value"]["subpath"] = os.fsdecode(entry.subpath)
    return {"path": where, "access": _WORDS[entry.access]}
