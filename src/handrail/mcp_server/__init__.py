"""The shell of an agent as an MCP server; needs the extra ``mcp``.

tools, forms        what a host is told; questions as forms            (pure)
tickets, desk       calls that may take longer than an answer may
server, http        the two transports of the SDK
"""
