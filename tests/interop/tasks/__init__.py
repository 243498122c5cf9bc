"""The tasks, by what they are about."""

from tests.interop.tasks import (
    broken_lines,
    commands,
    files,
    networks,
    sandboxes,
    terminals,
    tools,
)
from tests.interop.tasks.task import FILES, HTTP, SANDBOX, TOOL_URL, Outcome, Task

ALL = (
    *commands.TASKS,
    *terminals.TASKS,
    *files.TASKS,
    *sandboxes.TASKS,
    *networks.TASKS,
    *tools.TASKS,
    *broken_lines.TASKS,
)

__all__ = ["ALL", "FILES", "HTTP", "SANDBOX", "TOOL_URL", "Outcome", "Task"]
