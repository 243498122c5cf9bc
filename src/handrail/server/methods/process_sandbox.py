"""The ``sandbox`` of a request: its profile on this machine, and the command sandboxed by it.

The sandbox's errors get the wire's sentences here.  Imported when the first request asks for a
sandbox.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import handrail.sandbox.syscalls.supervisor  # noqa: F401 (now, rather than when a command first connects)
from handrail.errors import RpcError, SandboxError
from handrail.filesystem.pool import FilePool
from handrail.process.spec import ProcessSpec
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.sandbox import SandboxParams
from handrail.sandbox.intent import from_wire
from handrail.sandbox.profile import BadIntent, Profile
from handrail.sandbox.sandbox import Preparation, Sandbox
from handrail.sandbox.sandboxed_command import SandboxedCommand

if TYPE_CHECKING:
    from handrail.server.sessions import Session

#: What the wire's sentences call the URIs of an intent.
_URIS = {
    "cwd": "sandbox cwd URI",
    "workspaceRoots": "sandbox workspace root URI",
    "privateTmp": "private /tmp URI",
}


def sandboxed(
    sandbox: Sandbox, profile: Profile, spec: ProcessSpec, *, watch: bool = False
) -> SandboxedCommand:
    """The command sandboxed as the profile says; raises RpcError -32602.

    ``watch``: what it tries in vain is recorded.
    """
    try:
        return sandbox.sandboxed(spec, profile, watch=watch, lasting=True)
    except SandboxError as error:
        raise refused(error) from None


def refused(error: SandboxError, what: str = "process") -> RpcError:
    """The wire's error for a sandbox that could not be made."""
    return RpcError(INVALID_PARAMS, f"failed to prepare {what} sandbox: {error}")


def prepare(sandbox: Sandbox, profile: Profile) -> Preparation | None:
    """What to do in a thread before ``sandboxed``, if anything."""
    try:
        return sandbox.prepare(profile) if profile.sandboxed else None
    except SandboxError:
        return None  # which ``sandboxed`` has an answer for


async def planned(pool: FilePool, preparation: Preparation) -> None:
    """Do it; raises RpcError -32602, and FilesError when no thread is to be had."""
    try:
        await preparation.in_thread(pool)
    except SandboxError as error:
        raise refused(error) from None


def profile_of(sandbox: Sandbox, given: dict[str, Any], cwd: bytes) -> Profile:
    """What a ``sandbox`` member means on this machine; raises RpcError -32602.

    ``cwd`` is where relative patterns start from when the intent names no directory.
    """
    try:
        return sandbox.resolve(from_wire(codec.convert(given, SandboxParams)), cwd)
    except BadIntent as error:
        if error.field == "path":
            text = f"invalid sandbox permission path URI: {error}"
        elif error.field:
            what = _URIS[error.field]
            text = f"{what} `{error.uri}` is not valid on this exec-server host: {error}"
        else:
            text = f"invalid sandbox permissions: {error}"
        raise RpcError(INVALID_PARAMS, text) from None


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
