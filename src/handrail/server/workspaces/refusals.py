"""The errors by which requests for workspaces are refused."""

from __future__ import annotations

import errno

from handrail.errors import RpcError
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NO_ROOM
from handrail.server.workspaces.share import Amounts, Share


def gone(workspace_id: str) -> RpcError:
    return RpcError(INVALID_REQUEST, f"no workspace {workspace_id} here", {"what": "gone"})


def stops() -> RpcError:
    """The server stops, or hands over to the next one."""
    text = "the server stops and makes no more workspaces; ask another, or this one again"
    return RpcError(INVALID_REQUEST, text, {"what": "stops"})


def not_yours(workspace_id: str) -> RpcError:
    return RpcError(
        INVALID_REQUEST,
        f"workspace {workspace_id} is of another owner; adopt it first",
        {"what": "owner"},
    )


def other_tenant(tenant: str, own: str) -> RpcError:
    """A signed token speaks for one tenant."""
    return RpcError(
        INVALID_REQUEST,
        f"the token is of tenant {own!r}, so nothing can be asked for {tenant!r}; sign a token with"
        " that subject",
        {"what": "tenant"},
    )


def no_room(workspace_id: str, wanted: Amounts, share: Share, missing: list[str]) -> RpcError:
    free, never = share.free, share.never(wanted)
    return RpcError(
        NO_ROOM,
        f"no room for workspace {workspace_id}: too little of {', '.join(missing)} is free"
        f" ({free.cpu_millis} thousandths of a cpu, {free.memory_bytes} bytes of memory,"
        f" {free.workspaces} workspaces); release some, or use another server",
        {"what": ",".join(never or missing), "never": bool(never)},
    )


def no_disk(free: int, least: int) -> RpcError:
    """The refusal of a workspace for which there is no disk."""
    return RpcError(
        NO_ROOM,
        f"the disk of the workspaces has {free} bytes free and {least} have to stay so; remove"
        " something, or start the server with a smaller --min-free",
        {"what": "disk", "never": False},
    )


def files_failed(error: OSError) -> RpcError:
    """File work of a workspace failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"the disk of the workspaces is full: {error.strerror}"
        return RpcError(NO_ROOM, text, {"what": "disk", "never": False})
    return RpcError(INTERNAL_ERROR, f"the workspace's files cannot be made: {error}")


def bad_template(kind: str, message: str) -> RpcError:
    """A template cannot be used."""
    return RpcError(INVALID_PARAMS, message, {"what": "template", "kind": kind})


def session_ended() -> RpcError:
    text = "this session has ended; connect once more, or make workspaces with `shared`"
    return RpcError(INVALID_REQUEST, text, {"what": "session"})


def elsewhere(workspace_id: str) -> RpcError:
    """The session of the connection is in another workspace."""
    text = f"this session is in workspace {workspace_id}; release that first, or connect once more"
    return RpcError(INVALID_REQUEST, text, {"what": "session"})


def occupied(workspace_id: str, session_id: str) -> RpcError:
    """Another session is in the workspace."""
    return RpcError(
        INVALID_REQUEST,
        f"session {session_id} is in workspace {workspace_id}; resume that, or adopt the workspace",
        {"what": "session", "sessionId": session_id},
    )
