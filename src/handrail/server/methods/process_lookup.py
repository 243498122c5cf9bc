"""Look up the process of a request, and check the range of its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.starting import Starting
from handrail.protocol.envelope import INVALID_PARAMS, INVALID_REQUEST

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: Ids are chosen by the client, up to this length.
LONGEST_ID = 4096
#: A longer wait is answered early; the client asks again.
LONGEST_WAIT = 3600.0


def key(process_id: str) -> str:
    """Check the id of a process that is to be started."""
    if len(process_id) > LONGEST_ID or len(process_id.encode()) > LONGEST_ID:
        raise RpcError(INVALID_PARAMS, f"`processId` is longer than {LONGEST_ID} bytes")
    return process_id


def entry(conn: Connection, key: str) -> Child | Starting | None:
    """Look up a process by id; a detached one is attached to this session."""
    session = conn.session
    if session is None:
        return None
    return session.table.get(key) or conn.server.sessions.reattach(session, key)


def child(conn: Connection, key: str) -> Child:
    """Like `entry`, for a process that must exist and have started."""
    found = entry(conn, key)
    if isinstance(found, Starting):
        raise RpcError(INVALID_REQUEST, f"process id {key} is starting")
    if found is None:
        raise RpcError(INVALID_REQUEST, f"unknown process id {key}")
    return found


async def changed(conn: Connection, child: Child, seconds: float) -> None:
    """Wait for the next event of a process; raises RpcError when the session went meanwhile."""
    await child.changed(seconds)
    if conn.session is None:
        raise RpcError(INVALID_REQUEST, "session has been resumed by another connection")
    if conn.session.ended:
        raise RpcError(INVALID_REQUEST, "the session was closed")
