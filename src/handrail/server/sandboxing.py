"""From the sandbox intent of a request to a spec that is contained.

The binding of URIs to this machine happens here, in the wire's order and with its sentences; the
rest is the sandbox's.  Imported when the first request asks for a sandbox.
"""

from __future__ import annotations

from typing import Any

from handrail.errors import RpcError, SandboxError
from handrail.process.spec import ProcessSpec
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.sandbox import (
    Disabled,
    GlobEntry,
    Managed,
    PathEntry,
    PermissionEntry,
    SandboxParams,
    UnrestrictedFiles,
)
from handrail.sandbox.profile import Access, Entry, Files, Intent, Profile
from handrail.sandbox.select import LINUX_SECCOMP, Sandbox

_ACCESS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny": Access.DENY,
    "none": Access.DENY,
}


def contain(sandbox: Sandbox, given: dict[str, Any], spec: ProcessSpec) -> tuple[ProcessSpec, str]:
    """The spec to start, and the name of what holds it; raises RpcError -32602."""
    profile = profile_of(sandbox, given, spec.cwd)
    if not profile.confined:
        return spec, "none"
    try:
        return sandbox.contain(spec, profile), LINUX_SECCOMP
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, f"failed to prepare process sandbox: {error}") from None


def profile_of(sandbox: Sandbox, given: dict[str, Any], cwd: bytes) -> Profile:
    """What a ``sandbox`` member means on this machine; raises RpcError -32602.

    ``cwd`` is where relative patterns start from when the intent names no directory.
    """
    params = codec.convert(given, SandboxParams)
    intent, base = _intent(params, cwd)
    try:
        return sandbox.resolve(intent, base)
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, f"invalid sandbox permissions: {error}") from None


def _intent(params: SandboxParams, cwd: bytes) -> tuple[Intent, bytes]:
    permissions = params.permissions
    entries: tuple[Entry, ...] = ()
    depth = None
    files = Files.EXTERNAL
    if isinstance(permissions, Managed):
        if isinstance(permissions.file_system, UnrestrictedFiles):
            files = Files.UNRESTRICTED
        else:
            files = Files.RESTRICTED
            entries = tuple(_entry(entry) for entry in permissions.file_system.entries)
            depth = permissions.file_system.glob_scan_max_depth
    base = cwd if params.cwd is None else _path(params.cwd, "sandbox cwd URI")
    roots = tuple(_path(uri, "sandbox workspace root URI") for uri in params.workspace_roots)
    if isinstance(permissions, Disabled):
        return Intent(disabled=True), base
    network = permissions.network == "enabled"
    return Intent(files, entries, network, False, roots, depth), base


def _entry(entry: PermissionEntry) -> Entry:
    access = _ACCESS[entry.access]
    path = entry.path
    if isinstance(path, PathEntry):
        try:
            return Entry(access, path=path_uri.to_path(path.path))
        except (path_uri.BadUri, path_uri.NotNative) as error:
            raise RpcError(
                INVALID_PARAMS, f"invalid sandbox permission path URI: {error}"
            ) from None
    if isinstance(path, GlobEntry):
        return Entry(access, glob=path.pattern)
    special = path.value
    kind = "project_roots" if special.kind == "current_working_directory" else special.kind
    subpath = None if special.subpath is None else special.subpath.encode()
    return Entry(access, special=kind, subpath=subpath)


def _path(uri: str, what: str) -> bytes:
    try:
        return path_uri.to_path(uri)
    except (path_uri.BadUri, path_uri.NotNative) as error:
        raise RpcError(
            INVALID_PARAMS, f"{what} `{uri}` is not valid on this exec-server host: {error}"
        ) from None
