"""The tools with their MCP schemas.  Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handrail.agent.schemas import agent_tools

INSTRUCTIONS = (
    "Run shell commands with exec_command. One that is still running has a session ID: poll it or"
    " type into it with write_stdin, end it with kill. Output that was cut can be read whole with"
    " read_output. Change files with apply_patch. Commands run in a sandbox; set"
    " sandbox_permissions to require_escalated, with a justification, to ask for more."
)
_SESSION = {"type": "integer", "description": "The session ID of the process"}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; ``reads``: it changes nothing."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False


def mcp_tools() -> list[Tool]:
    """All tools, in the order they are shown."""
    found = []
    for tool in agent_tools():
        name = str(tool["name"])
        schema: Any = tool["parameters"]
        if name == "write_stdin":
            schema = _with_calls(schema)
        found.append(Tool(name, str(tool["description"]), schema, reads=name == "read_output"))
    found.append(
        Tool("list_processes", "Lists the processes that still run.", _object({}), reads=True)
    )
    found.append(
        Tool("kill", "Ends a process and everything it started.", _object({"session_id": _SESSION}))
    )
    return found


def _with_calls(schema: dict[str, Any]) -> dict[str, Any]:
    """Accept a session id, or the name of a call that is still running."""
    session = {
        "type": ["integer", "string"],
        "description": "The session ID, or the name of a call that is still waiting (call-...)",
    }
    return {**schema, "properties": {**schema["properties"], "session_id": session}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
