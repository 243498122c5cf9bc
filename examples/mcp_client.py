"""An MCP host: starts ``handrail mcp``, lists its tools, runs commands and answers a question.

Needs the extra ``mcp``.  ``python examples/mcp_client.py`` runs it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from typing import Any

import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def ask(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Show the question, as a host shows it to its user, and say yes, this once."""
    print(f"? {params.message.splitlines()[-1]}")
    return types.ElicitResult(action="accept", content={"decision": "approved"})


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "handrail", "mcp", "--cwd", folder]
        )
        async with Client(stdio_client(server), elicitation_callback=ask) as client:
            tools = await client.list_tools()
            print(", ".join(sorted(tool.name for tool in tools.tools)))
            for cmd in ("echo hello > made; cat made", "rm -rf made", "ls"):
                result = await client.call_tool("exec_command", {"cmd": cmd})
                (content,) = result.content
                assert isinstance(content, types.TextContent)
                lines = content.text.splitlines()
                print(f"{cmd!r}: {'failed' if result.is_error else lines[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
