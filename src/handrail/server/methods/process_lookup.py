"""Which process a request means, and how far its numbers go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.table import Starting
from handrail.protocol.envelope import INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.struct_base import U64_MAX

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: Ids are the client's, but not without bound.
LONGEST_ID = 4096
#: A longer wait than this is answered early; the client asks again.
LONGEST_WAIT = 3600.0


def key(process_id: str) -> str:
    """The id of a process that is to be."""
    if len(process_id) > LONGEST_ID or len(process_id.encode()) > LONGEST_ID:
        raise RpcError(INVALID_PARAMS, f"`processId` is longer than {LONGEST_ID} bytes")
    return process_id


def entry(conn: Connection, key: str) -> Child | Starting | None:
    """What has this id for this client; one that is nobody's becomes its own."""
    session = conn.session
    if session is None:
        return None
    return session.table.get(key) or conn.server.sessions.reattach(session, key)


def child(conn: Connection, key: str) -> Child:
    """The same for what has to be there."""
    found = entry(conn, key)
    if isinstance(found, Starting):
        raise RpcError(INVALID_REQUEST, f"process id {key} is starting")
    if found is None:
        raise RpcError(INVALID_REQUEST, f"unknown process id {key}")
    return found


def u64s(field: str, value: int) -> int:
    """A number that was given, as the wire bounds it."""
    u64(field, value)
    return value


def u64(field: str, value: int | None) -> int | None:
    """The same for one that may be absent."""
    if value is not None and value > U64_MAX:
        raise RpcError(INVALID_PARAMS, f"invalid params: `{field}` does not fit 64 bits")
    return value
