"""An agent's shell as an MCP server; needs the extra ``mcp``.

tools, elicitation           schemas for a host; questions as forms         (pure)
call_approvals, tool_calls   calls that may take longer than an answer may
server, http                 the two transports of the SDK
"""
