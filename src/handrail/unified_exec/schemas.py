"""JSON schemas of the tools, for function calling.  Pure data."""

from __future__ import annotations

from handrail.unified_exec.tools import SANDBOX_PERMISSIONS
from handrail.unified_exec.truncate import DEFAULT_TOKENS
from handrail.unified_exec.yield_time import DEFAULT_EXEC_MS, DEFAULT_WRITE_MS


def tools(*, login: bool = True, additional: bool = False) -> list[dict[str, object]]:
    """The schemas of the tools, for function calling.

    ``login``: login shells are allowed; ``additional``: a call may ask for particular permissions.
    """
    fields = {name: one for name, one in _EXEC_FIELDS.items() if login or name != "login"}
    if additional:
        fields |= _ADDITIONAL_FIELDS
    return [
        tool("exec_command", _EXEC_COMMAND, fields, ["cmd"]),
        tool("write_stdin", _WRITE_STDIN, _WRITE_FIELDS, ["session_id"]),
        tool("read_output", _READ_OUTPUT, _READ_FIELDS, ["session_id"]),
    ]


def tool(
    name: str, description: str, properties: dict[str, object], required: list[str]
) -> dict[str, object]:
    """The schema of one tool."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    }


def field(kind: str, description: str, **more: object) -> dict[str, object]:
    """The schema of one argument."""
    return {"type": kind, "description": description, **more}


_EXEC_COMMAND = (
    "Runs a command and returns what it printed. If it is still running after yield_time_ms, the"
    " answer carries a session ID for write_stdin."
)
_WRITE_STDIN = (
    "Writes to a running session and returns what it printed since the last answer. Without chars"
    " it waits for output."
)
_READ_OUTPUT = (
    "Returns a byte range of everything a session has printed, also of parts that an earlier"
    " answer left out, and for a while after the session ended."
)
_YIELD = "How long to wait for output, in milliseconds"
_TOKENS = field(
    "integer",
    f"Most tokens to return (default {DEFAULT_TOKENS}); more is cut in the middle",
    minimum=0,
)
_SESSION = field("integer", "The session ID that exec_command answered with")
_EXEC_FIELDS: dict[str, object] = {
    "cmd": field("string", "The shell script to run"),
    "workdir": field("string", "Where to run it (default: the workspace)"),
    "tty": field("boolean", "True gives it a terminal with an open stdin (default false: pipes)"),
    "yield_time_ms": field("integer", f"{_YIELD} (default {DEFAULT_EXEC_MS})", minimum=0),
    "max_output_tokens": _TOKENS,
    "shell": field("string", "bash, zsh or sh (default: the user's shell)"),
    "login": field("boolean", "Whether the shell reads the login profile (default true)"),
    "sandbox_permissions": field(
        "string",
        "require_escalated asks to run it outside the sandbox (default use_default)",
        enum=["use_default", "require_escalated"],
    ),
    "justification": field(
        "string", "With sandbox_permissions: the question to the user, in one sentence"
    ),
    "prefix_rule": field(
        "array",
        "With sandbox_permissions: the words a rule would start with to allow the like in future",
        items={"type": "string"},
    ),
}
_PATHS = {"type": "array", "items": {"type": "string"}}
_ADDITIONAL_FIELDS: dict[str, object] = {
    "sandbox_permissions": field(
        "string",
        "require_escalated asks to run it outside the sandbox, with_additional_permissions inside"
        " but with more (default use_default)",
        enum=list(SANDBOX_PERMISSIONS),
    ),
    "additional_permissions": field(
        "object",
        "With with_additional_permissions: what this call needs beyond the sandbox",
        properties={
            "network": {"type": "object", "properties": {"enabled": {"type": "boolean"}}},
            "file_system": {"type": "object", "properties": {"read": _PATHS, "write": _PATHS}},
        },
    ),
}
_WRITE_FIELDS: dict[str, object] = {
    "session_id": _SESSION,
    "chars": field("string", "What to write, exactly (default empty: only wait)"),
    "keys": field(
        "array",
        "Keys to press after chars, by name: enter, tab, escape, up, ctrl-c, f1, ...",
        items={"type": "string"},
    ),
    "resize": field(
        "object",
        "New size of the terminal",
        properties={
            "rows": {"type": "integer", "minimum": 1, "maximum": 65535},
            "cols": {"type": "integer", "minimum": 1, "maximum": 65535},
        },
        required=["rows", "cols"],
    ),
    "yield_time_ms": field("integer", f"{_YIELD} (default {DEFAULT_WRITE_MS})", minimum=0),
    "max_output_tokens": _TOKENS,
}
_READ_FIELDS: dict[str, object] = {
    "session_id": _SESSION,
    "offset": field("integer", "First byte to return (default 0)", minimum=0),
    "max_bytes": field("integer", "Most bytes to return (default 32768)", minimum=0),
}
