"""A workspace on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def sandbox(ws: Path) -> dict[str, Any]:
    """Writes there, reads everything, no network."""

    def entry(kind: str, access: str) -> dict[str, Any]:
        return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}

    return {
        "permissions": {
            "type": "managed",
            "file_system": {
                "type": "restricted",
                "entries": [entry("root", "read"), entry("project_roots", "write")],
            },
            "network": "restricted",
        },
        "workspaceRoots": [ws.as_uri()],
        "windowsSandboxLevel": "disabled",
    }
