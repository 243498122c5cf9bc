"""JSON schemas of the tools of an ``AgentShell``.  Pure data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from handrail.errors import UsageError
from handrail.unified_exec.schemas import field, tool, tools

Tool: TypeAlias = dict[str, object]
APPLY_PATCH = (
    "Adds, changes, moves and deletes files by a patch: `*** Begin Patch`, then per file"
    " `*** Add File: path`, `*** Update File: path` (with `@@` hunks of context, - and + lines) or"
    " `*** Delete File: path`, then `*** End Patch`. All of it is applied or nothing."
)


def agent_tools(
    form: str = "openai", *, login: bool = False, additional: bool = False
) -> list[dict[str, object]]:
    """exec_command, write_stdin, read_output and apply_patch, in the form of an API.

    ``login``: login shells are allowed; ``additional``: a call may ask for particular permissions.
    Raises UsageError for a form that is not known.
    """
    if form not in _FORMS:
        raise UsageError(f"there is no form {form!r} of tools; take one of {', '.join(_FORMS)}")
    fields: dict[str, object] = {
        "patch": field("string", "The text of the patch"),
        "workdir": field("string", "Where its paths start (default: the workspace)"),
    }
    patch = tool("apply_patch", APPLY_PATCH, fields, ["patch"])
    return [_FORMS[form](one) for one in (*tools(login=login, additional=additional), patch)]


def _chat(given: Tool) -> Tool:
    return {"type": "function", "function": {k: v for k, v in given.items() if k != "type"}}


def _named(given: Tool, schema: str) -> Tool:
    return {
        "name": given["name"],
        "description": given["description"],
        schema: given["parameters"],
    }


#: How APIs want tools, by the name of the form: OpenAI's Responses and Chat Completions,
#: Anthropic's Messages, and MCP's ``tools/list``.
_FORMS: dict[str, Callable[[Tool], Tool]] = {
    "openai": lambda given: given,
    "openai-chat": _chat,
    "anthropic": lambda given: _named(given, "input_schema"),
    "mcp": lambda given: _named(given, "inputSchema"),
}
