"""From the sandbox intent of a request to a spec that is contained.

The binding of URIs to this machine happens here, in the wire's order and with its sentences; the
rest is the sandbox's.  Imported when the first request asks for a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import handrail.sandbox.syscalls.supervisor  # noqa: F401 (now, rather than when a command first connects)
from handrail.errors import RpcError, SandboxError, SandboxUnavailable
from handrail.filesystem.pool import FilePool
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
from handrail.sandbox import verdict
from handrail.sandbox.profile import Access, Entry, Files, Intent, Profile
from handrail.sandbox.sandbox import LINUX_SECCOMP, Preparation, Sandbox

if TYPE_CHECKING:
    from handrail.server.sessions import Session

_ACCESS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny": Access.DENY,
    "none": Access.DENY,
}


#: Looking at a tree may take so long, on a file system that hangs.
_PLANNING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Contained:
    """A spec to start, and the names of what holds it; ``sent`` is called after it was sent."""

    spec: ProcessSpec
    type: str = "none"
    backend: str | None = None
    sent: Callable[[], None] = lambda: None


def contain(
    sandbox: Sandbox, profile: Profile, spec: ProcessSpec, *, watch: bool = False
) -> Contained:
    """The command held as the profile says; raises RpcError -32602.

    ``watch``: what it tries in vain is noted while it happens.
    """
    if not profile.confined:
        return Contained(spec)
    try:
        return _contained(sandbox, profile, spec, watch)
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, f"failed to prepare process sandbox: {error}") from None


def prepare(sandbox: Sandbox, profile: Profile) -> Preparation | None:
    """What to do in a thread before ``contain``, if anything."""
    try:
        return sandbox.prepare(profile) if profile.confined else None
    except SandboxError:
        return None  # which ``contain`` has an answer for


async def planned(pool: FilePool, preparation: Preparation, what: str = "process") -> None:
    """Do it; raises RpcError -32602, and FilesError when no thread is to be had."""
    try:
        plan = await pool.run(
            preparation.look, deadline=_PLANNING_SECONDS, discard=preparation.discard
        )
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, f"failed to prepare {what} sandbox: {error}") from None
    preparation.install(plan)


def _contained(sandbox: Sandbox, profile: Profile, spec: ProcessSpec, watch: bool) -> Contained:
    try:
        held = sandbox.contain(spec, profile, watch=watch, lasting=True)
    except SandboxUnavailable as why:
        from handrail.sandbox.landlock import (
            backend as fallback,  # machines without user namespaces
        )

        if watch:
            raise SandboxUnavailable(f"{why}; leave watchDenials out, it needs that") from None
        if profile.private_tmp is not None:  # which nothing can be mounted over here
            spec, profile = fallback.own_directory(spec, profile)
        held, fd = fallback.contain(spec, profile, why, lasting=True)
        held = replace(held, judge=verdict.judge)
        return Contained(held, LINUX_SECCOMP, fallback.BACKEND, lambda: os.close(fd))
    held = replace(held, judge=verdict.judge_watched if watch else verdict.judge)
    return Contained(held, LINUX_SECCOMP, "bubblewrap")


def profile_of(sandbox: Sandbox, given: dict[str, Any], cwd: bytes) -> Profile:
    """What a ``sandbox`` member means on this machine; raises RpcError -32602.

    ``cwd`` is where relative patterns start from when the intent names no directory.
    """
    intent, base = _intent(codec.convert(given, SandboxParams), cwd)
    try:
        return sandbox.resolve(intent, base)
    except SandboxError as error:
        raise RpcError(INVALID_PARAMS, f"invalid sandbox permissions: {error}") from None


def read_intent(given: dict[str, Any], cwd: bytes) -> Intent:
    """A ``sandbox`` member as it stands, not bound to this machine; raises RpcError -32602."""
    return _intent(codec.convert(given, SandboxParams), cwd)[0]


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
    intent = Intent(files, entries, network, False, roots, depth)
    if params.private_tmp is not None:
        intent = intent._replace(private_tmp=_path(params.private_tmp, "private /tmp URI"))
    return intent, base


def check_private_tmp(session: Session, given: dict[str, Any]) -> bool:
    """Whether commands are to have a /tmp of their own; raises RpcError -32602.

    It is the session's own directory, and no other of this machine.
    """
    uri = given.get("privateTmp")
    if uri is None:
        return False
    own = session.temporary
    if own is None or uri != path_uri.to_uri(os.fsencode(own)):
        raise RpcError(
            INVALID_PARAMS,
            "`sandbox.privateTmp` is not the directory of this session; ask for it with"
            " session/temporary",
        )
    return True


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
