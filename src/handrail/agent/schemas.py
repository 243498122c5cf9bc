"""JSON schemas of the tools of an ``AgentShell``.  Pure data."""

from __future__ import annotations

from handrail.unified_exec.schemas import field, tool, tools

APPLY_PATCH = (
    "Adds, changes, moves and deletes files by a patch: `*** Begin Patch`, then per file"
    " `*** Add File: path`, `*** Update File: path` (with `@@` hunks of context, - and + lines) or"
    " `*** Delete File: path`, then `*** End Patch`. All of it is applied or nothing."
)


def agent_tools() -> list[dict[str, object]]:
    """exec_command, write_stdin, read_output and apply_patch, for function calling."""
    fields: dict[str, object] = {
        "patch": field("string", "The text of the patch"),
        "workdir": field("string", "Where its paths start (default: the workspace)"),
    }
    return [*tools(), tool("apply_patch", APPLY_PATCH, fields, ["patch"])]
