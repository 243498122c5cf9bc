"""The method table, and the handlers of session and environment methods.

A handler answers at once with a shape, or is a coroutine when it has to wait.  Only this package
sees both the wire's shapes and the process layer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UnsetType

from handrail.errors import RpcError
from handrail.protocol import path_uri
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_REQUEST
from handrail.protocol.environment import (
    Empty,
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResult,
    Nothing,
    TemporaryResult,
)
from handrail.server.methods import process_lookup
from handrail.server.methods.capabilities import CAPABILITY_HANDLERS
from handrail.server.methods.config import CONFIGURATION_HANDLERS
from handrail.server.methods.files_sandboxed import FILE_HANDLERS
from handrail.server.methods.http import HTTP_HANDLERS
from handrail.server.methods.process_end import process_list, process_signal, process_terminate
from handrail.server.methods.process_read import process_read
from handrail.server.methods.process_start import process_start
from handrail.server.methods.process_wait import process_wait
from handrail.server.methods.process_write import process_close_stdin, process_resize, process_write

if TYPE_CHECKING:
    from handrail.server.connection import Connection

_NOTHING = Nothing()


def initialize(conn: Connection, params: InitializeParams) -> InitializeResult:
    if conn.session is not None or conn.initialized:
        raise RpcError(INVALID_REQUEST, "initialize may only be sent once per connection")
    sessions = conn.server.sessions
    info = conn.server.environment_info()
    ttl_ms = process_lookup.u64("detachTtlMs", params.detach_ttl_ms)
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
        # Not undone when the client disconnects at once, as it may.
        await asyncio.shield(conn.server.sessions.close(session))
    return _NOTHING


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


HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "initialize": initialize,
    "environment/info": environment_info,
    "environment/status": environment_status,
    "session/close": session_close,
    "session/temporary": session_temporary,
    "process/start": process_start,
    "process/read": process_read,
    "process/write": process_write,
    "process/closeStdin": process_close_stdin,
    "process/resize": process_resize,
    "process/signal": process_signal,
    "process/terminate": process_terminate,
    "process/list": process_list,
    "process/wait": lambda conn, params: process_wait(
        conn, params, process_lookup.child(conn, params.process_id)
    ),
    **FILE_HANDLERS,
    **HTTP_HANDLERS,
    **CAPABILITY_HANDLERS,
    **CONFIGURATION_HANDLERS,
}
