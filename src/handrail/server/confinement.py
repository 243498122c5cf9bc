"""From the ``sandbox`` of a file call to the plan its helper runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.server.file_helpers import Confinement

if TYPE_CHECKING:
    from handrail.server.connection import Connection


def confinement_of(conn: Connection, sandbox: dict[str, Any] | None) -> Confinement | None:
    """The plan; None when the profile confines no file.  Raises the wire's errors."""
    if sandbox is None:
        return None
    permissions = sandbox.get("permissions")
    if isinstance(permissions, dict) and permissions.get("type") in ("disabled", "external"):
        return None
    raise RpcError(INVALID_PARAMS, "sandbox intent cannot be enforced on this executor")
