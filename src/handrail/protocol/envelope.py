"""Request, response, notification, error: how messages are told apart.

The dialect of the wire: no ``jsonrpc`` member is sent and an inbound one is ignored, ids are
strings or signed 64-bit integers, and a message is classified by its members alone: ``method``
first, then ``result``, then ``error``.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from msgspec import Struct

from handrail.errors import RemoteProtocolError

RequestId = str | int

#: The id of the answer to a message that could not be read.
MALFORMED_ID = -1

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32004
ALREADY_ATTACHED = -32010
#: The message of an INVALID_REQUEST: the session has ended, and its connection has not.
SESSION_CLOSED = "the session of this connection was closed; connect again"
#: Ours, ``kind`` in the ``data`` of an error: the sandbox cannot be enforced, nothing was run.
SANDBOX_UNAVAILABLE = "sandboxUnavailable"
#: Ours: no room for a workspace; ``data.what`` says of which resource.
NO_ROOM = -32020

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


class Trace(Struct, frozen=True):
    """A W3C trace context, as sent."""

    traceparent: str | None = None
    tracestate: str | None = None


class Request(Struct, frozen=True):
    """A call that expects an answer."""

    id: RequestId
    method: str
    params: Any = None
    trace: Trace | None = None


class Notification(Struct, frozen=True):
    """A call that expects none."""

    method: str
    params: Any = None


class Response(Struct, frozen=True):
    """The answer to a request of this side."""

    id: RequestId
    result: Any


class ErrorResponse(Struct, frozen=True):
    """The refusal of a request of this side."""

    id: RequestId
    code: int
    message: str
    data: Any = None


Message = Request | Notification | Response | ErrorResponse


def classify(value: Any) -> Message:
    """Turn a decoded JSON value into a message, or raise RemoteProtocolError."""
    if type(value) is not dict:
        raise RemoteProtocolError("a message must be a JSON object")
    if "method" in value:
        method = value["method"]
        if type(method) is not str:
            raise RemoteProtocolError("`method` must be a string")
        if "id" in value:
            trace = _trace(value["trace"]) if "trace" in value else None
            return Request(_id(value["id"]), method, value.get("params"), trace)
        return Notification(method, value.get("params"))
    if "id" not in value:
        raise RemoteProtocolError("a message needs a `method` or an `id`")
    request_id = _id(value["id"])
    if "result" in value:
        return Response(request_id, value["result"])
    error = value.get("error")
    if type(error) is not dict:
        raise RemoteProtocolError("a message needs a `method`, a `result` or an `error` object")
    code, message = error.get("code"), error.get("message")
    if not _is_int64(code) or type(message) is not str:
        raise RemoteProtocolError("an `error` needs a 64-bit `code` and a string `message`")
    return ErrorResponse(request_id, code, message, error.get("data"))


def _id(value: Any) -> RequestId:
    if isinstance(value, str) or _is_int64(value):
        return value
    raise RemoteProtocolError("`id` must be a string or a signed 64-bit integer")


def _is_int64(value: Any) -> TypeGuard[int]:
    return type(value) is int and _MIN_INT64 <= value <= _MAX_INT64


def _trace(value: Any) -> Trace | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise RemoteProtocolError("`trace` must be an object")
    parent, state = value.get("traceparent"), value.get("tracestate")
    for text in (parent, state):
        if text is not None and type(text) is not str:
            raise RemoteProtocolError("the members of `trace` must be strings")
    return Trace(parent, state)
