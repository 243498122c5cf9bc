"""A model on loopback that follows a script: enough of the Responses API, as a stream.

The client posts the conversation to ``/v1/responses`` and reads server-sent events:
``response.created``, one ``response.output_item.done`` for each item, ``response.completed``.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.interop.script import Item, Script, ScriptError

_USAGE = {
    "input_tokens": 1,
    "input_tokens_details": None,
    "output_tokens": 1,
    "output_tokens_details": None,
    "total_tokens": 2,
}


class Model:
    """One script behind a port."""

    def __init__(self, script: Script) -> None:
        self.script = script
        #: Every request body, for whoever wants to know what the client announces.
        self.requests: list[dict[str, Any]] = []
        #: What went wrong in here; the client only sees that a request failed.
        self.errors: list[str] = []
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def base_url(self) -> str:
        """What a model provider of the client is pointed at."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def tools(self) -> dict[str, Item]:
        """The tools that the client's first request offers, by name."""
        return {tool.get("name", tool["type"]): tool for tool in self.requests[0]["tools"]}

    @contextmanager
    def serving(self) -> Iterator[Model]:
        """Answer while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, body: bytes) -> bytes:
        """The events that answer one request."""
        with self._lock:
            request = json.loads(body)
            self.requests.append(request)
            items = self.script.reply(request["input"])
            name = f"response-{len(self.requests)}"
        return b"".join(map(event, stream(name, items)))

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                self.send(404, "text/plain", b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    self.send(200, "text/event-stream", model.answer(body))
                except (ScriptError, ValueError, KeyError) as error:
                    model.errors.append(f"{type(error).__name__}: {error}")
                    self.send(400, "text/plain", str(error).encode())

            def send(self, status: int, kind: str, body: bytes) -> None:
                self.close_connection = True  # nothing may keep a thread of ours waiting
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)

        return Handler


def stream(name: str, items: list[Item]) -> Iterator[Item]:
    """The events of one response."""
    yield {"type": "response.created", "response": {"id": name}}
    for item in items:
        yield {"type": "response.output_item.done", "item": item}
    yield {"type": "response.completed", "response": {"id": name, "usage": _USAGE}}


def event(data: Item) -> bytes:
    """One server-sent event."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
