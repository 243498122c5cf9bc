"""The tasks, by what they are about."""

from . import broken_lines, commands, files, sandboxes, terminals, tools
from .task import FILES, HTTP, SANDBOX, TOOL_URL, Outcome, Task

ALL = (
    *commands.TASKS,
    *terminals.TASKS,
    *files.TASKS,
    *sandboxes.TASKS,
    *tools.TASKS,
    *broken_lines.TASKS,
)

__all__ = ["ALL", "FILES", "HTTP", "SANDBOX", "TOOL_URL", "Outcome", "Task"]
