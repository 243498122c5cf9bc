"""The ``sandbox`` of a request: its profile on this machine, and the command sandboxed by it.

The sandbox's errors get the wire's sentences here.  Imported when the first request asks for a
sandbox.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError, SandboxError, SandboxUnavailable
from handrail.filesystem.pool import FilePool
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spec import ProcessSpec
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INVALID_PARAMS, SANDBOX_UNAVAILABLE
from handrail.protocol.sandbox import SandboxParams
from handrail.sandbox import loopback
from handrail.sandbox.choose_sandbox import Preparation, Sandbox
from handrail.sandbox.intent import from_wire
from handrail.sandbox.loopback import Joining
from handrail.sandbox.profile import BadIntent, Intent, Profile
from handrail.sandbox.sandboxed_command import SandboxedCommand

if TYPE_CHECKING:
    from handrail.server.session import Session

#: What the wire's sentences call the URIs of an intent.
_URIS = {
    "cwd": "sandbox cwd URI",
    "workspaceRoots": "sandbox workspace root URI",
    "privateTmp": "private /tmp URI",
}
#: Intents by their form on the wire, how many, and the longest form.
_INTENTS: dict[bytes, Intent] = {}
_MOST_INTENTS = 64
_LONGEST_KEY = 16 * 1024


def sandboxed(
    sandbox: Sandbox,
    profile: Profile,
    spec: ProcessSpec,
    launcher: Launcher,
    *,
    watch: bool = False,
    join: Callable[[Profile], Joining | None] | None = None,
) -> SandboxedCommand:
    """The command sandboxed as the profile says; raises RpcError -32602.

    ``watch``: every refused change is recorded.  ``join``: which network it shares.
    """
    # Now, rather than when a command first connects; file calls do without it.
    import handrail.sandbox.syscalls.supervisor  # noqa: F401

    try:
        return sandbox.sandboxed(
            spec, profile, watch=watch, lasting=True, join=join, launcher=launcher
        )
    except SandboxError as error:
        raise refused(error) from None


def refused(error: SandboxError, what: str = "process") -> RpcError:
    """The wire's error for a sandbox that could not be made."""
    unavailable = isinstance(error, SandboxUnavailable)
    data = {"kind": SANDBOX_UNAVAILABLE} if unavailable else None
    return RpcError(INVALID_PARAMS, f"failed to prepare {what} sandbox: {error}", data)


def prepare(sandbox: Sandbox, profile: Profile) -> Preparation | None:
    """The work for a thread before ``sandboxed``, if there is any."""
    try:
        return sandbox.prepare(profile) if profile.sandboxed else None
    except SandboxError:
        return None  # which ``sandboxed`` has an answer for


async def planned(pool: FilePool, preparation: Preparation | loopback.Preparation) -> None:
    """Do the prepared work; raises RpcError -32602, and FilesError when no thread is free."""
    try:
        await preparation.in_thread(pool)
    except SandboxError as error:
        raise refused(error) from None


def profile_of(
    sandbox: Sandbox, given: dict[str, Any], cwd: bytes, *, managed: bool = False
) -> Profile:
    """Bind a ``sandbox`` member to this machine; raises RpcError -32602.

    ``cwd`` is where relative patterns start from when the intent names no directory.  ``managed``:
    a proxy is the only way out, whatever the permissions say of the network.
    """
    try:
        intent = _intent(given)
        return sandbox.resolve(intent._replace(managed=True) if managed else intent, cwd)
    except BadIntent as error:
        if error.field == "path":
            text = f"invalid sandbox permission path URI: {error}"
        elif error.field:
            what = _URIS[error.field]
            text = f"{what} `{error.uri}` is not valid on this exec-server host: {error}"
        else:
            text = f"invalid sandbox permissions: {error}"
        raise RpcError(INVALID_PARAMS, text) from None


def _intent(given: dict[str, Any]) -> Intent:
    """Read a ``sandbox`` member; a client sends the same one with each of its requests."""
    key = marshal.dumps(given, 2)  # of equal bytes for equal members alone
    found = _INTENTS.get(key)
    if found is None:
        found = from_wire(codec.convert(given, SandboxParams))
        if len(key) <= _LONGEST_KEY:
            if len(_INTENTS) >= _MOST_INTENTS:
                _INTENTS.clear()
            _INTENTS[key] = found
    return found


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
