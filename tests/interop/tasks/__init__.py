"""The tasks, by what they are about."""

from . import broken_lines, commands, files, sandboxes, terminals
from .task import FILES, SANDBOX, Outcome, Task

ALL = (
    *commands.TASKS,
    *terminals.TASKS,
    *files.TASKS,
    *sandboxes.TASKS,
    *broken_lines.TASKS,
)

__all__ = ["ALL", "FILES", "SANDBOX", "Outcome", "Task"]
