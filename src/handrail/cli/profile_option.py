"""Permissions typed on the command line: the wire's JSON, with native paths allowed as well."""

from __future__ import annotations

import json
import os
from typing import Any

from handrail.errors import RpcError, UsageError
from handrail.protocol import path_uri
from handrail.sandbox.profile import Intent
from handrail.server.methods.process_sandbox import read_intent


def read_permissions(text: str, roots: tuple[bytes, ...]) -> Intent:
    """``{...}`` itself, or ``@FILE`` that holds it; raises UsageError."""
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
            f"{text[:40]!r} is no profile; give workspace-write, read-only, danger-full-access or"
            " permissions as JSON"
        ) from None
    given = {
        "permissions": permissions,
        "windowsSandboxLevel": "disabled",
        "workspaceRoots": [path_uri.to_uri(root) for root in roots],
    }
    try:
        return read_intent(given, roots[0])
    except RpcError as error:
        raise UsageError(f"the profile makes no sense: {error}") from None


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
