"""Handlers of the methods of sessions, of the environment and of the server itself."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from msgspec import UnsetType, to_builtins

from handrail.errors import RpcError
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_REQUEST
from handrail.protocol.environment import (
    NOTHING,
    DetachParams,
    Empty,
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResult,
    Nothing,
    ResultParams,
    ResultResult,
    ServerStatus,
    TemporaryResult,
)
from handrail.results import store
from handrail.server.methods.process_start import LONGEST_TIMEOUT
from handrail.server.results import owned
from handrail.version import __version__

if TYPE_CHECKING:
    from handrail.server.connection import Connection


def initialize(conn: Connection, params: InitializeParams) -> InitializeResult:
    if conn.session is not None or conn.initialized:
        raise RpcError(INVALID_REQUEST, "initialize may only be sent once per connection")
    sessions = conn.server.sessions
    info = conn.server.environment_info()
    ttl_ms = params.detach_ttl_ms
    secret = params.resume_secret
    wants_secret = not isinstance(secret, UnsetType)
    conn.notifier.extended = wants_secret or ttl_ms is not None
    if params.resume_session_id is None:
        session = sessions.create(conn, conn.owner)
    else:
        given = secret if isinstance(secret, str) else None
        session = sessions.resume(params.resume_session_id, conn, conn.owner, given)
    conn.attached(session)
    if ttl_ms is not None:
        sessions.set_ttl(session, ttl_ms / 1000)
    result = InitializeResult(session_id=session.id, environment_info=info)
    if wants_secret:
        result.resume_secret = session.new_secret()
    return result


def environment_info(conn: Connection, params: Empty) -> EnvironmentInfo:
    return conn.server.environment_info()


def environment_status(conn: Connection, params: Empty) -> EnvironmentStatus:
    return EnvironmentStatus(status="ready")


async def session_close(conn: Connection, params: Empty) -> Nothing:
    session = conn.session
    if session is not None:
        sessions = conn.server.sessions
        # Not undone when the client disconnects at once, as it may.
        await asyncio.shield(sessions.close(session))
        await sessions.forget(session)
    return NOTHING


def session_detach(conn: Connection, params: DetachParams) -> Nothing:
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    keep_ms = params.keep_ms
    keep = None if keep_ms is None else min(keep_ms / 1000, LONGEST_TIMEOUT)
    conn.server.sessions.leave(session, keep, params.processes)
    return NOTHING


async def session_result(conn: Connection, params: ResultParams) -> ResultResult:
    """Read a stored result; one answer for "not yours" and "not there"."""
    results = conn.server.results

    def look_up() -> ResultResult:
        session = params.session_id or owned(conn.owner)
        found = store.find(session, params.process_id)
        if found is None or found.about.owner != conn.owner:
            return ResultResult(about=None)
        about = to_builtins(found.about)
        if params.forget:
            found.remove()
            return ResultResult(about=about)
        return ResultResult(
            about=about, data=codec.encode_base64(found.read(params.offset)).decode()
        )

    try:
        return await results.in_thread(look_up)  # type: ignore[no-any-return]
    except OSError as error:
        raise RpcError(
            INTERNAL_ERROR, f"the stored result cannot be read: {error.strerror}"
        ) from None


def server_status(conn: Connection, params: Empty) -> ServerStatus:
    server = conn.server
    return ServerStatus(
        pid=os.getpid(),
        version=__version__,
        started_at_ms=int(server.started_at * 1000),
        sessions=len(server.sessions) - (conn.session is not None),
        processes=sum(child.running for child in server.sessions.children()),
    )


def session_temporary(conn: Connection, params: Empty) -> TemporaryResult:
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    try:
        path = conn.server.sessions.temporary(session)
    except OSError as error:
        raise RpcError(
            INTERNAL_ERROR, f"no directory for temporary files: {error.strerror}; set TMPDIR"
        ) from None
    return TemporaryResult(path=path_uri.to_uri(os.fsencode(path)))
