"""Refuses methods that come before ``initialize`` and ``initialized``, or after the session."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from handrail.errors import RpcError
from handrail.protocol import codec, path_uri
from handrail.protocol.envelope import INVALID_PARAMS, INVALID_REQUEST, SESSION_CLOSED

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: Members that hold one path URI or a list of them, and members that hold base64.
_URIS = frozenset(("path", "cwd", "source_path", "destination_path", "missing"))
_BASE64 = frozenset(("chunk", "body_base64"))


def check_handshake(conn: Connection, family: str, params: Any) -> None:
    """Raise the wire's error for a method that comes too early."""
    if conn.session is None and not conn.initialized:
        text = f"client must call initialize before using {family} methods"
    elif not conn.initialized:
        text = f"client must send initialized before using {family} methods"
    elif conn.session is None or conn.session.ended:
        text = SESSION_CLOSED
    else:
        return
    _check_texts(params)
    raise RpcError(INVALID_REQUEST, text)


def _check_texts(params: Any) -> None:
    """Raise RpcError -32602 for text that is no URI, base64 or sandbox: that comes first.

    After the handshake the handlers find it, each for itself.
    """
    if isinstance(params, list):
        for one in params:
            _check_texts(one)
    if not isinstance(params, Struct):
        return
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if name in _URIS:
            for uri in value if isinstance(value, list) else (value,):
                _check_uri(uri)
        elif name in _BASE64 and value is not None:
            codec.decode_base64(value, name)
        elif name == "sandbox" and value is not None:
            from handrail.protocol.sandbox import SandboxParams

            codec.convert(value, SandboxParams)
        else:
            _check_texts(value)


def _check_uri(uri: str) -> None:
    with suppress(path_uri.NotNative):
        try:
            path_uri.to_path(uri)
        except path_uri.BadUri as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None
