"""Permissions typed on the command line: the wire's JSON, with native paths allowed as well."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from handrail.errors import UsageError
from handrail.protocol import path_uri
from handrail.protocol.sandbox import SandboxParams
from handrail.sandbox.intent import NO_WINDOWS, from_wire
from handrail.sandbox.profile import BadIntent, Intent


def read_permissions(text: str) -> Intent:
    """``{...}`` itself, or ``@FILE`` that holds it; raises UsageError.  It has no roots yet."""
    if text.startswith("@"):
        try:
            with open(text[1:]) as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the profile {text[1:]} cannot be read: {error}") from None
    try:
        permissions = _with_uris(json.loads(text))
    except ValueError:
        raise UsageError(
            f"{text[:40]!r} is no profile; give workspace-write, read-only, off or"
            " permissions as JSON"
        ) from None
    try:
        return from_wire(msgspec.convert({"permissions": permissions, **NO_WINDOWS}, SandboxParams))
    except (BadIntent, msgspec.ValidationError) as error:
        raise UsageError(f"the profile cannot be used: {error}") from None


def _with_uris(value: Any) -> Any:
    """Turn native paths into URIs wherever the wire wants one."""
    if isinstance(value, list):
        return [_with_uris(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: _with_uris(item) for key, item in value.items()}
    path = value.get("path")
    if value.get("type") == "path" and isinstance(path, str) and path.startswith("/"):
        value["path"] = path_uri.to_uri(os.fsencode(path))
    return value
