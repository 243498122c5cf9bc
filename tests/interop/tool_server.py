"""A small MCP server with one tool, on stdio when run as a file, or over HTTP for a fixture.

The client can have such servers run, or asked, by the environment its commands run in.  Standard
library only: it is run as a file.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOOL = "where"
#: The answer over HTTP, where the process that answers is not the one of interest.
OVER_HTTP = "over HTTP"


def answer(request: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The reply to one message; none to a notification."""
    if "id" not in request:
        return None
    result: dict[str, Any] = {}
    match request["method"]:
        case "initialize":
            result = {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "handrail-interop", "version": "1"},
            }
        case "tools/list":
            schema = {"type": "object", "properties": {}}
            tool = {"name": TOOL, "description": "Where it runs.", "inputSchema": schema}
            result = {"tools": [tool]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": where}]}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


class Handler(http.server.BaseHTTPRequestHandler):
    """One message in, one event out."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.send(405, b"")  # no stream of notifications

    def do_DELETE(self) -> None:
        self.send(405, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        reply = answer(json.loads(body), OVER_HTTP)
        if reply is None:
            self.send(202, b"")
        else:
            self.send(200, f"event: message\ndata: {json.dumps(reply)}\n\n".encode())

    def send(self, status: int, body: bytes) -> None:
        """A whole answer, and the end of the connection."""
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def over_http() -> Iterator[str]:
    """Answer while the block runs; gives the URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    place = f"{os.environ.get('HANDRAIL_INTEROP_SET')} in {os.getcwd()}"
    for line in sys.stdin:
        if (reply := answer(json.loads(line), place)) is not None:
            print(json.dumps(reply), flush=True)
