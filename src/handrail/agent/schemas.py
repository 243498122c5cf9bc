"""JSON schemas of the tools of an ``AgentShell``.  Pure data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from handrail.errors import UsageError
from handrail.unified_exec.schemas import tools

Tool: TypeAlias = dict[str, object]
APPLY_PATCH = (
    "Adds, changes, moves and deletes files by a patch: `*** Begin Patch`, then per file"
    " `*** Add File: path`, `*** Update File: path` (with `@@` hunks of context, - and + lines) or"
    " `*** Delete File: path`, then `*** End Patch`. All of it is applied or nothing."
)


def agent_tools(form: str = "openai", *, login: bool = False) -> list[dict[str, object]]:
    """exec_command, write_stdin, read_output and apply_patch, in the form of an API.

    ``login``: login shells are allowed.  Raises UsageError for a form that is not known.
    """
    if form not in _FORMS:
        raise UsageError(f"there is no form {form!r} of tools; take one of {', '.join(_FORMS)}")
    patch: dict[str, object] = {
        "type": "function",
        "name": "apply_patch",
        "description": APPLY_PATCH,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {
                "patch": {"type": "string", "description": "The text of the patch"},
                "workdir": {
                    "type": "string",
                    "description": "Where its paths start (default: the workspace)",
                },
            },
            "required": ["patch"],
            "additionalProperties": False,
        },
    }
    return [_FORMS[form](tool) for tool in (*tools(login=login), patch)]


def _chat(tool: Tool) -> Tool:
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _named(tool: Tool, schema: str) -> Tool:
    return {
        "name": tool["name"],
        "description": tool["description"],
        schema: tool["parameters"],
    }


#: How APIs want tools, by the name of the form: OpenAI's Responses and Chat Completions,
#: Anthropic's Messages, and MCP's ``tools/list``.
_FORMS: dict[str, Callable[[Tool], Tool]] = {
    "openai": lambda tool: tool,
    "openai-chat": _chat,
    "anthropic": lambda tool: _named(tool, "input_schema"),
    "mcp": lambda tool: _named(tool, "inputSchema"),
}
