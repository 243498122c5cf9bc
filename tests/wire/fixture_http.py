"""A small HTTP server on loopback that the cases of ``http/request`` talk to."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Fixture(http.server.BaseHTTPRequestHandler):
    """Each path misbehaves in its own way; unknown ones say ok."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole answer."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.answer(302, b"", [("Location", "/ok")])
        elif self.path == "/404":
            self.answer(404, b"missing")
        elif self.path == "/slow":
            time.sleep(1.5)  # longer than the timeout of the request in the case
            self.answer(200, b"ok")
        elif self.path == "/headers":
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.answer(200, json.dumps(headers, sort_keys=True).encode())
        elif self.path == "/twice":
            self.answer(200, b"two", [("X-A", "1"), ("X-A", "2")])
        elif self.path == "/cut":
            self.cut()
        elif self.path == "/chunks":
            self.trickle(0.05)
        elif self.path == "/drip":
            self.trickle(0.3)
        else:
            self.answer(200, b"ok")

    def do_POST(self) -> None:
        self.answer(201, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def cut(self) -> None:
        """Promise 100 bytes, send 2, hang up."""
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"xx")
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def trickle(self, pause: float) -> None:
        """Three chunks with a pause after each."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(3):
            data = b"part%d;" % i
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")


class QuietServer(http.server.ThreadingHTTPServer):
    """Clients that hang up are what some cases are about."""

    def handle_error(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def fixture_http() -> Iterator[str]:
    """Serve while the block runs; gives the URL without a path."""
    with QuietServer(("127.0.0.1", 0), Fixture) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
