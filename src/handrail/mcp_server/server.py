"""``ToolCalls`` as an MCP server, by the official SDK; and the server on stdio.

Today's hosts get a question as a request of ours while theirs waits; hosts of the sessionless
protocol get it as the reply and call again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from handrail.mcp_server import elicitation
from handrail.mcp_server.tool_calls import InputNeeded, Reply, ToolCalls
from handrail.mcp_server.tools import INSTRUCTIONS, mcp_tools
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.version import __version__

_APPROVAL = "approval"


class HostChannel:
    """The host behind one request."""

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._context = context
        capabilities = context.session.client_capabilities
        offers = capabilities is not None and capabilities.elicitation is not None
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.asks_in_reply = offers and modern
        self.can_ask = offers and not modern and context.session.can_send_request

    async def ask(self, question: Question) -> Answer:
        """Show a form to the user of the host."""
        try:
            result = await self._context.session.elicit_form(
                elicitation.message(question),
                elicitation.schema(question),
                self._context.request_id,
            )
        except (MCPError, OSError) as error:
            return Answer(Choice.DENY, f"the host could not ask: {error}")
        return elicitation.read(question, result.action, result.content)

    async def progress(self, seconds: float, total: float, message: str) -> None:
        """Report progress, if the host asked for it."""
        await self._context.session.report_progress(round(seconds, 1), total, message)


def make_server(calls: ToolCalls) -> Server[Any]:
    """The MCP server of a ``ToolCalls``."""
    tools = mcp_tools()

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads,
                        destructive_hint=not tool.reads,
                        open_world_hint=not tool.reads,
                    ),
                )
                for tool in tools
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        channel = HostChannel(context)
        if params.name not in {tool.name for tool in tools}:
            return _result(Reply(f"there is no tool {params.name!r}", ok=False))
        if params.request_state is not None:
            read = partial(_answered, params)
            found = await calls.resume(params.request_state, read, channel)
        else:
            found = await calls.call(params.name, params.arguments or {}, channel)
        if isinstance(found, InputNeeded):
            return _input_required(found)
        return _result(found)

    return Server(
        "handrail",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(calls: ToolCalls) -> None:
    """Serve until the host closes our standard input."""
    server = make_server(calls)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def _answered(params: types.CallToolRequestParams, question: Question) -> Answer | None:
    """The answer that came with a repeated call."""
    response = (params.input_responses or {}).get(_APPROVAL)
    if response is None:
        return None
    if not isinstance(response, types.ElicitResult):
        return Answer(Choice.DENY, "the host sent something else than an answer")
    return elicitation.read(question, response.action, response.content)


def _input_required(needed: InputNeeded) -> types.InputRequiredResult:
    form = types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=elicitation.message(needed.question),
            requested_schema=elicitation.schema(needed.question),
        )
    )
    return types.InputRequiredResult(input_requests={_APPROVAL: form}, request_state=needed.state)


def _result(reply: Reply) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=reply.text)],
        structured_content=reply.structured,
        is_error=not reply.ok,
    )
