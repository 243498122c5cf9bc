"""Refuses methods that come before ``initialize`` and ``initialized``, or after the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handrail.errors import RpcError
from handrail.protocol.envelope import INVALID_REQUEST, SESSION_CLOSED

if TYPE_CHECKING:
    from handrail.server.connection import Connection


def check_handshake(conn: Connection, family: str) -> None:
    """Raise the wire's error for a method that comes too early."""
    if conn.session is None and not conn.initialized:
        text = f"client must call initialize before using {family} methods"
    elif not conn.initialized:
        text = f"client must send initialized before using {family} methods"
    elif conn.session is None or conn.session.ended:
        text = SESSION_CLOSED
    else:
        return
    raise RpcError(INVALID_REQUEST, text)
