"""The tools with their MCP schemas.  Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handrail.agent.schemas import agent_tools
from handrail.unified_exec.schemas import field, tool

INSTRUCTIONS = (
    "Run shell commands with exec_command. One that is still running has a session ID: poll it or"
    " type into it with write_stdin, end it with kill. Output that was cut can be read whole with"
    " read_output. Change files with apply_patch. Commands run in a sandbox; set"
    " sandbox_permissions to require_escalated, with a justification, to ask for more."
)
_SESSION = field("integer", "The session ID of the process")
_OWN = (
    tool("list_processes", "Lists the processes that still run.", {}, []),
    tool(
        "kill",
        "Ends a process and everything it started.",
        {"session_id": _SESSION},
        ["session_id"],
    ),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; ``reads``: it changes nothing."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False


def mcp_tools() -> list[Tool]:
    """All tools, in the order they are shown."""
    schemas: list[dict[str, Any]] = [*agent_tools(), *_OWN]
    return [
        Tool(
            one["name"],
            one["description"],
            _with_calls(one["parameters"]) if one["name"] == "write_stdin" else one["parameters"],
            reads=one["name"] in ("read_output", "list_processes"),
        )
        for one in schemas
    ]


def _with_calls(schema: dict[str, Any]) -> dict[str, Any]:
    """Accept a session id, or the name of a call that is still running."""
    session = {
        "type": ["integer", "string"],
        "description": "The session ID, or the name of a call that is still waiting (call-...)",
    }
    return {**schema, "properties": {**schema["properties"], "session_id": session}}
