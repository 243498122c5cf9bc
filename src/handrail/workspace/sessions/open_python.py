"""Starts the driver of a Python session in a workspace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from handrail.errors import ExecutorSpawnFailed, UsageError
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.workspace.arguments import AnyPath, to_path
from handrail.workspace.options import PythonOptions, check_options
from handrail.workspace.process import AsyncProcess
from handrail.workspace.sessions.python import AsyncPythonSession, driver, is_driver

if TYPE_CHECKING:
    from handrail.workspace.asynchronous import AsyncWorkspace


async def open_python(
    workspace: AsyncWorkspace,
    python: AnyPath | None,
    process: AsyncProcess | None,
    options: dict[str, Any],
) -> AsyncPythonSession:
    """Implements ``AsyncWorkspace.python``.

    On another machine the ``python3`` of its PATH may lack the packages, while the server runs from
    a virtual environment that has them.  So the path of our own interpreter is tried next: it is
    there when that machine is this one, or was set up in the same way.
    """
    check_options(options, PythonOptions, "python", "process")
    if process is not None and process not in workspace.processes:
        raise UsageError(f"{process!r} is no running process of this workspace")
    if process is not None and not is_driver(process.argv):  # it would be sent what it never reads
        raise UsageError(f"{process!r} is no Python session; leave process= out to start one")
    executor = await workspace.executor()
    if python is not None:
        programs = [to_path(python)]
    else:
        programs = [sys.executable] if executor.features.local else ["python3", sys.executable]

    async def start() -> AsyncProcess:
        name = options.get("name") or "python session"
        # Its one reader is waited for.
        kept = {"name": name, "keep_output": RETENTION_BYTES}
        return await workspace.start([programs[0], *driver()], **{**options, **kept})

    session = AsyncPythonSession(start)
    try:
        return await session._open(process)  # noqa: SLF001 (for its makers)
    except (ExecutorSpawnFailed, UsageError) as error:
        if process is not None or len(programs) == 1:
            raise
        del programs[0]
        try:
            return await session._open()  # noqa: SLF001 (for its makers)
        except (ExecutorSpawnFailed, UsageError):
            raise error from None
