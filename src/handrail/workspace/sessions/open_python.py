"""Starts the driver of a Python session in a workspace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from handrail.process.output.output_log import RETENTION_BYTES
from handrail.workspace.arguments import AnyPath, to_path
from handrail.workspace.process import AsyncProcess
from handrail.workspace.sessions.python import AsyncPythonSession, driver

if TYPE_CHECKING:
    from handrail.workspace.asynchronous import AsyncWorkspace


async def open_python(
    workspace: AsyncWorkspace,
    python: AnyPath | None,
    process: AsyncProcess | None,
    options: dict[str, Any],
) -> AsyncPythonSession:
    """Implements ``AsyncWorkspace.python``."""
    executor = await workspace.executor()
    default = sys.executable if executor.features.local else "python3"
    program = default if python is None else to_path(python)

    async def start() -> AsyncProcess:
        name = options.get("name") or "python session"
        # Its one reader is waited for.
        kept = {"name": name, "keep_output": RETENTION_BYTES}
        return await workspace.start([program, *driver()], **{**options, **kept})

    return await AsyncPythonSession(start)._open(process)  # noqa: SLF001 (for its makers)
