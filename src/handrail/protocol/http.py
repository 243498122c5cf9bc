"""Shapes of ``http/*``.  Bodies are base64."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from handrail.protocol.struct_base import Unsigned, Wire


class HeaderParams(Wire):
    """One header; with ``valueEnvVar`` its value ends with that variable of the server."""

    name: str
    value: str
    value_env_var: str | None = None


class HttpRequestParams(Wire):
    """One request, made from this machine."""

    method: str
    url: str
    request_id: str
    headers: list[HeaderParams] = field(default_factory=list)
    body_base64: str | None = None
    timeout_ms: Unsigned | None = None
    redirect_policy: Literal["follow", "stop"] = "follow"
    stream_response: bool = False


class HeaderShape(Wire):
    """One header of the answer, its name in lower case."""

    name: str
    value: str


class HttpResponseResult(Wire):
    """The answer, whatever its status; a streamed body follows in ``bodyDelta``."""

    status: int
    headers: list[HeaderShape]
    body_base64: str


class BodyDeltaNotification(Wire):
    """A piece of a streamed body; the last one is empty and says whether it went well."""

    request_id: str
    seq: int
    delta_base64: str
    done: bool
    error: str | None
